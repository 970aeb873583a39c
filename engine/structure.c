/* structure.c - structured output: the grammars of requests, and the text that a sample has so far.
 * See engine_state.h; token_masks.c has the masks.
 *
 * A request whose grammar is not made yet is UNREADY in the scheduler. Its form is compiled on the
 * thread of engine/grammar/compile.h, when no other waiting request of its owner has had its form
 * compiled: waiting requests hold little memory, and no owner keeps the thread from others. */

#include "engine/engine_state.h"

static bool is_eos(const cn_engine *e, uint32_t token)
{
    for (uint32_t i = 0; i < e->n_eos; i++)
        if (e->eos[i] == token) return true;
    return false;
}

/* ---- open ---- */

/* Special tokens, EOS and the tags of reasoning are not text of an answer. */
static uint32_t list_tokens(const cn_engine *e, cn_token_bytes *out)
{
    uint32_t n = 0;
    for (uint32_t id = 0; id < e->model_config.vocab; id++) {
        const char *bytes;
        size_t len;
        bool special;
        if (!cn_tokenizer_token(e->tokenizer, id, &bytes, &len, &special) || special) continue;
        if (is_eos(e, id) || id == e->reasoning.open_id || id == e->reasoning.close_id) continue;
        if (len <= CN_TRIE_MAX_DEPTH) out[n++] = (cn_token_bytes){bytes, id, (uint32_t)len};
    }
    return n;
}

/* The trie of the vocabulary is made for the first request that needs it. */
static cn_status make_grammars(cn_engine *e)
{
    cn_token_bytes *tokens = cn_calloc(e->model_config.vocab, sizeof *tokens);
    if (!tokens) return cn_fail(CN_ERR_MEMORY, "out of memory for the vocabulary");
    const cn_grammars_opts o = {.tokens = tokens,
                                .n_tokens = list_tokens(e, tokens),
                                .vocab = e->model_config.vocab,
                                .eos = e->eos,
                                .n_eos = e->n_eos};
    const cn_status status = cn_grammars_create(&e->grammars, &o);
    cn_free(tokens);
    return status;
}

static const char *structure_name_of(cn_structure_kind kind)
{
    static const char *const names[] = {
        [CN_STRUCTURE_NONE] = "none",       [CN_STRUCTURE_JSON] = "json_object",
        [CN_STRUCTURE_SCHEMA] = "json",     [CN_STRUCTURE_REGEX] = "regex",
        [CN_STRUCTURE_CHOICE] = "choice",   [CN_STRUCTURE_CALLS] = "tool_choice",
        [CN_STRUCTURE_GRAMMAR] = "grammar",
    };
    return names[kind];
}

/* Refuses rules that leave no first token. The mask of the empty text is always made. */
static cn_status check_rules(const cn_engine *e, cn_engine_request *r)
{
    const uint32_t vocab = e->model_config.vocab, *form;
    uint64_t no_steps = 0;
    uint32_t *mask = cn_calloc(cn_mask_words(vocab), sizeof *mask);
    if (!mask) return cn_fail(CN_ERR_MEMORY, "out of memory for a token mask");
    cn_mask_fill(mask, vocab);
    if (r->grammar && cn_matcher_mask(&r->samples[0].matcher, &no_steps, &form) == CN_OK && form)
        memcpy(mask, form, cn_mask_words(vocab) * sizeof *mask);
    cn_token_rules_apply(&r->rules, NULL, 0, vocab, mask);
    for (uint32_t i = 0; i < r->n_bans; i++) cn_mask_ban(mask, r->bans[i]);
    const bool empty = cn_mask_is_empty(mask, vocab);
    cn_free(mask);
    if (!empty) return CN_OK;
    if (!r->rules.allowed)
        return cn_fail_param("bad_words",
                             "bad_words: expected words that do not exclude every first token that "
                             "structured output and min_tokens allow");
    return cn_fail_param("allowed_token_ids",
                         "allowed_token_ids: expected a token that structured output, bad_words "
                         "and min_tokens do not exclude");
}

/* Checks what beside the form must be so. */
static cn_status check_params(const cn_engine *e, const cn_request_params *p)
{
    if (!e->tokenizer) return cn_fail(CN_ERR_ARG, "structured output: the model has no tokenizer");
    if (p->sampling.min_tokens > 0)
        return cn_fail_param("min_tokens",
                             "structured output: expected min_tokens 0, got %u: the text ends "
                             "where its form does",
                             p->sampling.min_tokens);
    if (p->n_forced > 0)
        return cn_fail(CN_ERR_ARG, "structured output: expected no forced tokens, got %zu",
                       p->n_forced);
    return CN_OK;
}

static cn_status name_kind(cn_status status, cn_structure_kind kind)
{
    return cn_for_param(cn_fail_within(status, "structured output (%s)", structure_name_of(kind)),
                        "structured_outputs");
}

/* Uses the grammar of the request's form if it is made. CN_ERR_ARG: the form is refused. */
static cn_status use_grammar(cn_engine *e, cn_engine_request *r)
{
    const cn_status status = cn_grammars_open(e->grammars, &r->form, &r->grammar);
    if (status != CN_OK) return name_kind(status, r->form.structure.kind);
    if (!r->grammar) return CN_OK;
    cn_form_free(&r->form);
    r->compiling = false;
    for (uint32_t i = 0; i < r->n_samples; i++)
        cn_grammar_match(r->grammar, &r->samples[i].matcher);
    return cn_token_rules_apply_ever(&r->rules) ? check_rules(e, r) : CN_OK;
}

static cn_status make_rules(cn_engine *e, const cn_request_params *p, cn_engine_request *r)
{
    const uint32_t vocab = e->model_config.vocab;
    cn_bad_words *bad = cn_bad_words_share(p->bad_words_made);
    cn_status status =
        bad ? CN_OK : cn_bad_words_make(&bad, &p->sampling, e->tokenizer, vocab, NULL);
    if (status == CN_OK) status = cn_token_rules_make(&r->rules, &p->sampling, bad, vocab);
    cn_bad_words_free(bad);
    return status;
}

cn_status cn_structure_open(cn_engine *e, const cn_request_params *p, cn_engine_request *r)
{
    const bool has_form = p->structure.kind != CN_STRUCTURE_NONE;
    if (has_form) CN_TRY(cn_for_param(check_params(e, p), "structured_outputs"));
    CN_TRY(make_rules(e, p, r));
    const bool has_rules = cn_token_rules_apply_ever(&r->rules);
    r->has_mask = has_form || has_rules;
    if (!has_form) return has_rules ? check_rules(e, r) : CN_OK;
    if (!e->grammars) CN_TRY(make_grammars(e));
    const cn_status status = cn_form_copy(&r->form, &p->structure);
    if (status != CN_OK) return name_kind(status, p->structure.kind);
    CN_TRY(use_grammar(e, r));
    e->forms_changed |= !r->grammar;
    return CN_OK;
}

static cn_engine_request *next_request(const cn_engine_request *r)
{
    return CN_CONTAINER_OF(r->node.next, cn_engine_request, node);
}

static cn_engine_request *first_request(const cn_engine *e)
{
    return CN_CONTAINER_OF(e->requests.head, cn_engine_request, node);
}

/* The form of a request that ends is compiled for another one that waits for it, or, if that has
 * not begun, not at all. */
static void leave_compiler(cn_engine *e, cn_engine_request *r)
{
    cn_engine_request *heir = first_request(e);
    while (heir && (heir == r || !heir->is_unready || !cn_form_equal(&heir->form, &r->form)))
        heir = next_request(heir);
    if (heir)
        heir->compiling = heir->was_compiled = true;
    else
        cn_grammars_cancel(e->grammars, &r->form);
    r->compiling = false;
}

void cn_structure_close(cn_engine *e, cn_engine_request *r)
{
    cn_token_rules_free(&r->rules);
    for (uint32_t i = 0; i < r->n_samples; i++) {
        cn_matcher_end(&r->samples[i].matcher);
        cn_free(r->samples[i].kept);
    }
    cn_grammars_close(r->grammar);
    if (r->compiling) leave_compiler(e, r);
    cn_form_free(&r->form);
    cn_free(r->refusal);
    r->grammar = NULL;
    e->forms_changed = true;
}

/* ---- compile ---- */

static uint32_t owner_of(const cn_engine_request *r) { return r->samples[0].seq->owner; }

/* Whether a form is compiled for the owner, or has been for a request that still waits. */
static bool is_served(const cn_engine *e, uint32_t owner)
{
    for (const cn_engine_request *r = first_request(e); r; r = next_request(r))
        if (owner_of(r) == owner && (r->compiling || (r->was_compiled && r->admitted_s == 0)))
            return true;
    return false;
}

/* Bytes of the networks that the owner's requests use, each once. */
static uint64_t held_bytes(const cn_engine *e, uint32_t owner)
{
    uint64_t bytes = 0;
    for (const cn_engine_request *r = first_request(e); r; r = next_request(r)) {
        if (!r->grammar || owner_of(r) != owner) continue;
        const cn_engine_request *same = first_request(e);
        while (same->grammar != r->grammar || owner_of(same) != owner) same = next_request(same);
        if (same == r) bytes += cn_grammar_bytes(r->grammar);
    }
    return bytes;
}

static cn_status begin_structure(cn_engine *e, cn_engine_request *r)
{
    if (is_served(e, owner_of(r))) return CN_OK;
    if (!cn_grammars_have_room(e->grammars, held_bytes(e, owner_of(r)))) return CN_OK;
    CN_TRY(cn_grammars_begin(e->grammars, &r->form));
    r->compiling = r->was_compiled = true;
    return CN_OK;
}

/* Ends a request that is not ready with the last error. */
static void refuse_structure(cn_engine *e, cn_engine_request *r, cn_status status)
{
    const uint32_t n = r->n_samples;
    r->refusal = cn_strdup(cn_last_error());
    snprintf(r->refused_param, sizeof r->refused_param, "%s", cn_last_param());
    r->is_refused = status == CN_ERR_ARG;
    for (uint32_t i = 0; i < n; i++)
        cn_engine_fail_sample(e, &r->samples[i],
                              r->refusal ? r->refusal : "out of memory for an error");
}

/* Uses the grammar of a request that is not ready, or has it compiled if `may_begin`. */
static void prepare_structure(cn_engine *e, cn_engine_request *r, bool may_begin)
{
    cn_status status = use_grammar(e, r);
    if (status == CN_OK && !r->grammar && may_begin) status = begin_structure(e, r);
    if (status == CN_OK && !r->grammar) return;
    e->n_unready--;
    r->is_unready = false;
    if (status != CN_OK)
        refuse_structure(e, r, status);
    else
        cn_scheduler_ready(e->scheduler, r->samples[0].seq);
}

void cn_structure_prepare(cn_engine *e)
{
    uint32_t owners[64], n_owners = 0; /* those whose first request was looked at */
    if (e->n_unready == 0) return;
    e->forms_changed |= cn_grammars_poll(e->grammars);
    if (!e->forms_changed) return;
    e->forms_changed = false;
    for (cn_engine_request *r = first_request(e), *next; r; r = next) {
        next = next_request(r);
        if (!r->is_unready || r->n_live == 0) continue;
        uint32_t i = 0;
        while (i < n_owners && owners[i] != owner_of(r)) i++;
        const bool is_first = i == n_owners && i < sizeof owners / sizeof *owners;
        if (is_first) owners[n_owners++] = owner_of(r);
        prepare_structure(e, r, is_first);
    }
    e->forms_changed |= n_owners == sizeof owners / sizeof *owners; /* there may be more */
}

bool cn_structure_wait(cn_engine *e)
{
    enum { WAIT_MS = 5 }; /* short, because requests and cancels come between steps */
    if (e->n_unready == 0) return false;
    cn_grammars_wait(e->grammars, WAIT_MS);
    e->forms_changed = true;
    return true;
}

/* ---- tokens ---- */

cn_status cn_structure_push(cn_engine *e, cn_sample *s, uint32_t token, cn_finish *finish)
{
    const char *bytes;
    size_t n;
    bool special;
    bool complete = is_eos(e, token) && cn_matcher_accepts(&s->matcher);
    if (!complete) {
        if (!cn_tokenizer_token(e->tokenizer, token, &bytes, &n, &special))
            return cn_fail(CN_ERR_ARG, "structured output: token %u is not text", token);
        const cn_status status = cn_matcher_push(&s->matcher, bytes, n);
        if (status != CN_OK) return cn_fail_within(status, "structured output: token %u", token);
        complete = cn_matcher_is_complete(&s->matcher);
    }
    if (complete) *finish = CN_FINISH_STOP;
    return CN_OK;
}
