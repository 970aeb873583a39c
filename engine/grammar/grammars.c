/* grammars.c - see grammars.h. */
#include "engine/grammar/grammars.h"

#include "engine/grammar/compile.h"
#include "engine/grammar/regex.h"

/* One of three: being made, made (it has an automaton), or refused (it has an error). */
struct cn_grammar {
    cn_list_node node; /* in a list of the owner, the latest opened last */
    cn_grammars *owner;
    cn_form form;
    cn_compile_job job; /* while it is being made */
    cn_automaton *automaton;
    char *error;
    uint32_t n_users;
};

struct cn_grammars {
    cn_vocabulary vocabulary;
    cn_compiler *compiler; /* NULL before the first form */
    cn_list making, made, refused;
    uint32_t n_unused;
    uint64_t unused_bytes, used_bytes; /* of networks */
    uint64_t refused_bytes;
    uint64_t state_bytes, most_state_bytes, most_net_bytes;
};

cn_status cn_grammars_create(cn_grammars **out, const cn_grammars_opts *o)
{
    cn_grammars *g = cn_calloc(1, sizeof *g);
    if (!g) return cn_fail(CN_ERR_MEMORY, "out of memory for grammars");
    const cn_status status = cn_token_trie_make(&g->vocabulary.trie, o->tokens, o->n_tokens);
    if (status != CN_OK) {
        cn_free(g);
        return status;
    }
    g->vocabulary.mask_words = (uint32_t)cn_ceil_div(o->vocab, 32);
    g->vocabulary.eos = o->eos;
    g->vocabulary.n_eos = o->n_eos;
    g->most_state_bytes = o->state_bytes ? o->state_bytes : CN_GRAMMARS_STATE_BYTES;
    g->most_net_bytes = o->net_bytes ? o->net_bytes : CN_GRAMMARS_NET_BYTES;
    *out = g;
    return CN_OK;
}

static void free_grammar(cn_grammar *grammar)
{
    cn_automaton_free(grammar->automaton);
    cn_free(grammar->error);
    cn_form_free(&grammar->form);
    cn_free(grammar);
}

static void drop_made(cn_grammar *grammar)
{
    cn_grammars *g = grammar->owner;
    CN_ASSERT(grammar->n_users == 0);
    g->n_unused--;
    g->unused_bytes -= cn_grammar_bytes(grammar);
    cn_list_remove(&g->made, &grammar->node);
    free_grammar(grammar);
}

static size_t form_bytes(const cn_form *f)
{
    const cn_structure *s = &f->structure;
    return strlen(s->text) + (s->whitespace ? strlen(s->whitespace) : 0);
}

static void drop_refused(cn_grammars *g, cn_grammar *grammar)
{
    g->refused_bytes -= form_bytes(&grammar->form);
    cn_list_remove(&g->refused, &grammar->node);
    free_grammar(grammar);
}

static cn_grammar *first(const cn_list *l) { return CN_CONTAINER_OF(l->head, cn_grammar, node); }

void cn_grammars_free(cn_grammars *g)
{
    if (!g) return;
    cn_compiler_free(g->compiler);
    while (g->made.head) drop_made(first(&g->made));
    while (g->refused.head) drop_refused(g, first(&g->refused));
    for (cn_grammar *at; (at = first(&g->making));) {
        cn_list_remove(&g->making, &at->node);
        cn_automaton_free(at->job.automaton);
        cn_free(at->job.error);
        free_grammar(at);
    }
    cn_token_trie_free(&g->vocabulary.trie);
    cn_free(g);
}

/* ---- forms ---- */

/* Longer texts are refused by the compiler too, but after they are copied. */
static cn_status check_length(const char *what, size_t n, size_t most)
{
    if (n <= most) return CN_OK;
    return cn_fail(CN_ERR_ARG, "%s: expected at most %zu bytes, got %zu", what, most, n);
}

cn_status cn_form_copy(cn_form *out, const cn_structure *s)
{
    const char *text = s->text ? s->text : "";
    CN_TRY(check_length("text", strlen(text), CN_FORM_MAX_BYTES));
    CN_TRY(check_length("whitespace_pattern", s->whitespace ? strlen(s->whitespace) : 0,
                        CN_REGEX_MAX_BYTES));
    char *copy = cn_strdup(text), *space = s->whitespace ? cn_strdup(s->whitespace) : NULL;
    if (!copy || (s->whitespace && !space)) {
        cn_free(copy);
        cn_free(space);
        return cn_fail(CN_ERR_MEMORY, "out of memory for a form of %zu bytes", strlen(text));
    }
    *out = (cn_form){{s->kind, copy, space, s->strict}, cn_hash64(s->kind, copy, strlen(copy))};
    return CN_OK;
}

void cn_form_free(cn_form *f)
{
    cn_free((char *)(uintptr_t)f->structure.text);
    cn_free((char *)(uintptr_t)f->structure.whitespace);
    *f = (cn_form){0};
}

bool cn_form_equal(const cn_form *a, const cn_form *b)
{
    const char *p = a->structure.whitespace, *q = b->structure.whitespace;
    return a->hash == b->hash && a->structure.kind == b->structure.kind &&
           a->structure.strict == b->structure.strict &&
           (p && q ? strcmp(p, q) == 0 : p == q) &&
           strcmp(a->structure.text, b->structure.text) == 0;
}

static cn_grammar *find_grammar(const cn_list *list, const cn_form *f)
{
    CN_LIST_EACH(cn_grammar, grammar, list, node) {
        if (cn_form_equal(&grammar->form, f)) return grammar;
    }
    return NULL;
}

/* ---- memory ---- */

uint64_t cn_grammar_bytes(const cn_grammar *grammar)
{
    return cn_automaton_net_bytes(grammar->automaton);
}

bool cn_grammars_have_room(const cn_grammars *g, uint64_t held_bytes)
{
    return g->used_bytes < g->most_net_bytes && held_bytes < g->most_net_bytes - g->used_bytes;
}

/* The one that was opened longest ago. */
static cn_grammar *find_unused(const cn_grammars *g)
{
    cn_grammar *at = first(&g->made);
    while (at->n_users > 0) at = CN_CONTAINER_OF(at->node.next, cn_grammar, node);
    return at;
}

/* The one with the most states. */
static cn_grammar *find_largest(const cn_grammars *g)
{
    cn_grammar *largest = NULL;
    CN_LIST_EACH(cn_grammar, grammar, &g->made, node) {
        if (!largest ||
            cn_automaton_bytes(grammar->automaton) > cn_automaton_bytes(largest->automaton))
            largest = grammar;
    }
    return largest;
}

void cn_grammars_make_room(cn_grammars *g)
{
    while (g->n_unused > 0 && g->state_bytes > g->most_state_bytes) drop_made(find_unused(g));
    for (uint32_t n = g->made.n; n > 0 && g->state_bytes > g->most_state_bytes; n--)
        if (cn_automaton_shrink(find_largest(g)->automaton) != CN_OK) return;
}

/* ---- make ---- */

cn_status cn_grammars_begin(cn_grammars *g, const cn_form *f)
{
    if (find_grammar(&g->making, f)) return CN_OK;
    if (!g->compiler) CN_TRY(cn_compiler_create(&g->compiler, &g->vocabulary));
    cn_grammar *grammar = cn_calloc(1, sizeof *grammar);
    if (!grammar) return cn_fail(CN_ERR_MEMORY, "out of memory for a grammar");
    const cn_status status = cn_form_copy(&grammar->form, &f->structure);
    if (status != CN_OK) {
        cn_free(grammar);
        return status;
    }
    grammar->owner = g;
    grammar->job.form = grammar->form.structure;
    cn_list_append(&g->making, &grammar->node);
    cn_compiler_post(g->compiler, &grammar->job);
    return CN_OK;
}

void cn_grammars_cancel(cn_grammars *g, const cn_form *f)
{
    cn_grammar *grammar = find_grammar(&g->making, f);
    if (!grammar || !cn_compiler_try_cancel(g->compiler, &grammar->job)) return;
    cn_list_remove(&g->making, &grammar->node);
    free_grammar(grammar);
}

static void keep_made(cn_grammars *g, cn_grammar *grammar)
{
    grammar->automaton = grammar->job.automaton;
    cn_automaton_adopt(grammar->automaton, &g->state_bytes);
    cn_list_append(&g->made, &grammar->node);
    g->n_unused++;
    g->unused_bytes += cn_grammar_bytes(grammar);
}

static void keep_refused(cn_grammars *g, cn_grammar *grammar)
{
    grammar->error = grammar->job.error;
    cn_list_append(&g->refused, &grammar->node);
    g->refused_bytes += form_bytes(&grammar->form);
    while (g->refused.n > CN_GRAMMARS_REFUSED || g->refused_bytes > CN_GRAMMARS_REFUSED_BYTES)
        drop_refused(g, first(&g->refused));
}

bool cn_grammars_poll(cn_grammars *g)
{
    cn_compile_job *job;
    bool any = false;
    while (g->making.n > 0 && (job = cn_compiler_take(g->compiler))) {
        cn_grammar *grammar = CN_CONTAINER_OF(job, cn_grammar, job);
        cn_list_remove(&g->making, &grammar->node);
        any = true;
        if (job->status == CN_OK)
            keep_made(g, grammar);
        else
            keep_refused(g, grammar);
    }
    return any;
}

void cn_grammars_wait(cn_grammars *g, uint32_t timeout_ms)
{
    if (g->making.n > 0) cn_compiler_wait(g->compiler, timeout_ms);
}

/* ---- use ---- */

/* A failure for lack of memory is told once and not remembered. */
static cn_status tell_refusal(cn_grammars *g, cn_grammar *grammar)
{
    const cn_status status = grammar->job.status;
    cn_fail(status, "%s", grammar->error ? grammar->error : "out of memory for a grammar");
    if (status != CN_ERR_ARG) drop_refused(g, grammar);
    return status;
}

cn_status cn_grammars_open(cn_grammars *g, const cn_form *f, cn_grammar **out)
{
    cn_grammar *refused = find_grammar(&g->refused, f), *grammar = find_grammar(&g->made, f);
    *out = NULL;
    if (refused) return tell_refusal(g, refused);
    if (!grammar) return CN_OK;
    cn_list_remove(&g->made, &grammar->node);
    cn_list_append(&g->made, &grammar->node);
    if (grammar->n_users++ == 0) {
        g->n_unused--;
        g->unused_bytes -= cn_grammar_bytes(grammar);
        g->used_bytes += cn_grammar_bytes(grammar);
    }
    *out = grammar;
    return CN_OK;
}

void cn_grammars_close(cn_grammar *grammar)
{
    if (!grammar || --grammar->n_users > 0) return;
    cn_grammars *g = grammar->owner;
    g->n_unused++;
    g->unused_bytes += cn_grammar_bytes(grammar);
    g->used_bytes -= cn_grammar_bytes(grammar);
    while (g->n_unused > CN_GRAMMARS_UNUSED || g->unused_bytes > CN_GRAMMARS_UNUSED_BYTES)
        drop_made(find_unused(g));
}

const char *cn_grammar_warnings(const cn_grammar *grammar)
{
    return cn_automaton_warnings(grammar->automaton);
}

void cn_grammar_match(cn_grammar *grammar, cn_matcher *m)
{
    cn_matcher_start(m, grammar->automaton);
}
