/* structure.c - structured output: the grammars of requests, token masks, and the text that a
 * sample has so far. See engine_state.h. The masks also have the token rules of requests.
 *
 * A grammar begins behind the reasoning. Inside the reasoning any token may follow but EOS. */
#include <string.h>

#include "engine/engine_state.h"

static bool is_eos(const cn_engine *e, uint32_t token)
{
    for (uint32_t i = 0; i < e->n_eos; i++)
        if (e->eos[i] == token) return true;
    return false;
}

/* ---- open ---- */

/* Special tokens, EOS and the tags of reasoning are no text of an answer. */
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

static const char *name_of(cn_structure_kind kind)
{
    static const char *const names[] = {
        [CN_STRUCTURE_NONE] = "none",     [CN_STRUCTURE_JSON] = "json_object",
        [CN_STRUCTURE_SCHEMA] = "json",   [CN_STRUCTURE_REGEX] = "regex",
        [CN_STRUCTURE_CHOICE] = "choice", [CN_STRUCTURE_CALLS] = "tool_choice",
    };
    return names[kind];
}

/* Refuses rules that leave no first token. */
static cn_status check_rules(cn_engine *e, cn_engine_request *r)
{
    const uint32_t vocab = e->model_config.vocab, *form;
    uint32_t *mask = cn_calloc(cn_mask_words(vocab), sizeof *mask);
    if (!mask) return cn_fail(CN_ERR_MEMORY, "out of memory for a token mask");
    cn_mask_fill(mask, vocab);
    if (r->grammar && cn_grammars_mask(e->grammars, &r->samples[0].matcher, &form) == CN_OK)
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

static cn_status open_grammar(cn_engine *e, const cn_request_params *p, cn_engine_request *r)
{
    const cn_structure *s = &p->structure;
    if (s->kind == CN_STRUCTURE_NONE) return CN_OK;
    if (!e->tokenizer) return cn_fail(CN_ERR_ARG, "structured output: the model has no tokenizer");
    if (p->sampling.min_tokens > 0)
        return cn_fail_param("min_tokens",
                             "structured output: expected min_tokens 0, got %u: the text ends "
                             "where its form does",
                             p->sampling.min_tokens);
    if (p->n_forced > 0)
        return cn_fail(CN_ERR_ARG, "structured output: expected no forced tokens, got %zu",
                       p->n_forced);
    if (!e->grammars) CN_TRY(make_grammars(e));
    const cn_status status = cn_grammars_open(e->grammars, s, &r->grammar);
    if (status != CN_OK) return cn_fail_within(status, "structured output (%s)", name_of(s->kind));
    for (uint32_t i = 0; i < r->n_samples; i++)
        cn_grammar_match(r->grammar, &r->samples[i].matcher);
    return CN_OK;
}

cn_status cn_structure_open(cn_engine *e, const cn_request_params *p, cn_engine_request *r)
{
    CN_TRY(cn_for_param(open_grammar(e, p, r), "structured_outputs"));
    CN_TRY(cn_for_param(
        cn_token_rules_make(&r->rules, &p->sampling, e->tokenizer, e->model_config.vocab),
        "bad_words"));
    const bool has_rules = cn_token_rules_apply_ever(&r->rules);
    r->has_mask = r->grammar || has_rules;
    return has_rules ? check_rules(e, r) : CN_OK;
}

void cn_structure_close(cn_engine_request *r)
{
    cn_token_rules_free(&r->rules);
    for (uint32_t i = 0; i < r->n_samples; i++) cn_matcher_end(&r->samples[i].matcher);
    cn_grammars_close(r->grammar);
    r->grammar = NULL;
}

/* ---- masks ---- */

static void allow(uint32_t *mask, uint32_t token) { mask[token / 32] |= 1u << token % 32; }

/* The tokens that continue the text. False when the grammar exceeds its memory. */
static bool try_write_form(cn_engine *e, cn_sample *s, uint32_t *mask)
{
    const uint32_t vocab = e->model_config.vocab;
    const uint32_t *words;
    if (!s->output || cn_output_reasons(s->output)) {
        cn_mask_fill(mask, vocab);
        for (uint32_t i = 0; i < e->n_eos; i++) cn_mask_ban(mask, e->eos[i]);
        return true;
    }
    if (cn_grammars_mask(e->grammars, &s->matcher, &words) != CN_OK) return false;
    memcpy(mask, words, cn_mask_words(vocab) * sizeof *mask);
    if (cn_output_may_reason(s->output) && s->seq->n_tokens == s->seq->n_prompt)
        allow(mask, (uint32_t)e->reasoning.open_id);
    return true;
}

static void write_mask(cn_engine *e, cn_sample *s, uint32_t *mask)
{
    const cn_engine_request *r = s->request;
    const uint32_t vocab = e->model_config.vocab;
    bool bans_apply = false;
    cn_sample_row row;
    if (!r->grammar) {
        cn_mask_fill(mask, vocab);
    } else if (!try_write_form(e, s, mask)) {
        s->mask_error = "structured output: the form of the text needs too many states; expected "
                        "fewer alternatives or smaller bounds";
        return;
    }
    cn_token_rules_apply(&r->rules, s->seq->tokens + s->seq->n_prompt,
                         s->seq->n_tokens - s->seq->n_prompt, vocab, mask);
    if (s->output) cn_output_row(s->output, 0, &row, &bans_apply);
    for (uint32_t i = 0; bans_apply && i < r->n_bans; i++) cn_mask_ban(mask, r->bans[i]);
    if (cn_mask_is_empty(mask, vocab))
        s->mask_error = r->grammar ? "structured output: no token of the vocabulary that the other "
                                     "parameters allow continues the text"
                                   : "allowed_token_ids, bad_words and min_tokens exclude every "
                                     "token";
}

void cn_structure_write_masks(cn_engine *e, const cn_flight *f)
{
    const uint32_t n = cn_mask_words(e->model_config.vocab);
    uint32_t *mask = e->masks;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        cn_sample *s = f->seqs[i]->user;
        if (!s->request->has_mask) continue;
        if (!s->done) write_mask(e, s, mask);
        mask += n;
    }
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
            return cn_fail(CN_ERR_ARG, "structured output: token %u is no text", token);
        const cn_status status = cn_matcher_push(&s->matcher, bytes, n);
        if (status != CN_OK) return cn_fail_within(status, "structured output: token %u", token);
        complete = cn_matcher_is_complete(&s->matcher);
    }
    if (complete) *finish = CN_FINISH_STOP;
    return CN_OK;
}
