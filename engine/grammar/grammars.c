/* grammars.c - see grammars.h. */
#include "engine/grammar/grammars.h"

#include <string.h>

#include "engine/grammar/calls.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema.h"
#include "engine/json.h"

struct cn_grammar {
    cn_list_node node; /* in the owner's list, the latest opened last */
    cn_grammars *owner;
    cn_automaton *automaton;
    cn_structure_kind kind;
    char *text, *whitespace;
    uint32_t n_users;
};

struct cn_grammars {
    cn_vocabulary vocabulary;
    cn_list list;
    uint32_t n_unused;
    uint64_t bytes, most;
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
    g->most = o->bytes ? o->bytes : CN_GRAMMARS_BYTES;
    *out = g;
    return CN_OK;
}

static void drop(cn_grammar *grammar)
{
    CN_ASSERT(grammar->n_users == 0);
    grammar->owner->n_unused--;
    cn_list_remove(&grammar->owner->list, &grammar->node);
    cn_automaton_free(grammar->automaton);
    cn_free(grammar->text);
    cn_free(grammar->whitespace);
    cn_free(grammar);
}

void cn_grammars_free(cn_grammars *g)
{
    if (!g) return;
    while (g->list.head) drop(CN_CONTAINER_OF(g->list.head, cn_grammar, node));
    cn_token_trie_free(&g->vocabulary.trie);
    cn_free(g);
}

/* ---- memory ---- */

/* The unused grammar that was opened longest ago, or the largest one in use. */
static cn_grammar *find_victim(const cn_grammars *g)
{
    cn_grammar *largest = NULL;
    for (cn_list_node *at = g->list.head; at; at = at->next) {
        cn_grammar *grammar = CN_CONTAINER_OF(at, cn_grammar, node);
        if (grammar->n_users == 0) return grammar;
        if (!largest ||
            cn_automaton_bytes(grammar->automaton) > cn_automaton_bytes(largest->automaton))
            largest = grammar;
    }
    return largest;
}

static void make_room(cn_grammars *g)
{
    for (uint32_t n = g->list.n; n > 0 && g->bytes > g->most; n--) {
        cn_grammar *grammar = find_victim(g);
        if (grammar->n_users == 0)
            drop(grammar);
        else if (cn_automaton_shrink(grammar->automaton) != CN_OK)
            return;
    }
}

/* ---- open ---- */

static cn_status emit_choice(const json_t *list, cn_net *net)
{
    size_t i;
    json_t *v;
    const cn_net_rule root = net->rules[0];
    const size_t n = json_array_size(list);
    if (n == 0 || n > CN_GRAMMAR_MAX_CHOICES)
        return cn_fail(CN_ERR_ARG, "expected an array of 1 to %d strings", CN_GRAMMAR_MAX_CHOICES);
    json_array_foreach(list, i, v)
    {
        if (json_string_length(v) == 0) return cn_fail(CN_ERR_ARG, "expected non-empty strings");
        const uint32_t end =
            cn_net_text(net, root.start, json_string_value(v), json_string_length(v));
        cn_net_empty(net, end, root.end);
    }
    return net->status;
}

static cn_status emit_schema(json_t *schema, const char *whitespace, cn_net *net)
{
    cn_json_rules rules;
    CN_TRY(cn_json_rules_add(net, whitespace, &rules));
    if (schema) return cn_schema_emit(schema, net, &rules, 0);
    cn_net_call(net, net->rules[0].start, net->rules[0].end, rules.any_object);
    return net->status;
}

/* Reads the text, which is JSON: a schema, a list of choices or a form of calls. */
static cn_status emit_json(const cn_structure *s, cn_net *net)
{
    json_t *value;
    const bool calls = s->kind == CN_STRUCTURE_CALLS, choice = s->kind == CN_STRUCTURE_CHOICE;
    CN_TRY(cn_json_parse(&value, s->text, strlen(s->text),
                         calls ? "tools" : choice ? "choice" : "schema",
                         calls ? CN_CALLS_MAX_BYTES : CN_SCHEMA_MAX_BYTES, CN_SCHEMA_MAX_DEPTH,
                         CN_ERR_ARG));
    const cn_status status = calls    ? cn_calls_emit(value, s->whitespace, net)
                             : choice ? emit_choice(value, net)
                                      : emit_schema(value, s->whitespace, net);
    json_decref(value);
    return status;
}

static cn_status emit_root(const cn_structure *s, cn_net *net)
{
    cn_net_rule_new(net);
    CN_TRY(net->status);
    switch (s->kind) {
    case CN_STRUCTURE_JSON: return emit_schema(NULL, s->whitespace, net);
    case CN_STRUCTURE_SCHEMA:
    case CN_STRUCTURE_CALLS:
    case CN_STRUCTURE_CHOICE: return emit_json(s, net);
    case CN_STRUCTURE_REGEX:
        return cn_regex_emit(s->text, strlen(s->text), false, CN_TEXT_PLAIN, net,
                             net->rules[0].start, net->rules[0].end);
    case CN_STRUCTURE_NONE: break;
    }
    CN_ASSERT(!"a structure");
    return CN_OK;
}

static cn_status compile(cn_grammars *g, const cn_structure *s, cn_automaton **out)
{
    cn_net net = {.status = CN_OK};
    cn_status status = emit_root(s, &net);
    if (status == CN_OK) status = cn_net_finish(&net);
    if (status == CN_OK) return cn_automaton_create(out, &net, &g->vocabulary, &g->bytes);
    cn_net_free(&net);
    return status;
}

static cn_grammar *find(const cn_grammars *g, const cn_structure *s, const char *text)
{
    for (cn_list_node *at = g->list.head; at; at = at->next) {
        cn_grammar *grammar = CN_CONTAINER_OF(at, cn_grammar, node);
        const char *a = grammar->whitespace, *b = s->whitespace;
        const bool spaced_alike = a && b ? strcmp(a, b) == 0 : a == b;
        if (grammar->kind == s->kind && spaced_alike && strcmp(grammar->text, text) == 0)
            return grammar;
    }
    return NULL;
}

static cn_status add(cn_grammars *g, const cn_structure *s, const char *text, cn_grammar **out)
{
    make_room(g);
    if (g->bytes > CN_GRAMMARS_MAX_BYTES)
        return cn_fail(CN_ERR_BUSY, "the grammars of other requests fill the memory: try again "
                                    "later");
    cn_grammar *grammar = cn_calloc(1, sizeof *grammar);
    char *copy = cn_strdup(text), *space = s->whitespace ? cn_strdup(s->whitespace) : NULL;
    const bool copied = grammar && copy && (space || !s->whitespace);
    cn_status status = copied ? compile(g, s, &grammar->automaton)
                              : cn_fail(CN_ERR_MEMORY, "out of memory for a grammar");
    if (status != CN_OK) {
        cn_free(grammar);
        cn_free(copy);
        cn_free(space);
        return status;
    }
    grammar->owner = g;
    grammar->kind = s->kind;
    grammar->text = copy;
    grammar->whitespace = space;
    cn_list_append(&g->list, &grammar->node);
    g->n_unused++;
    *out = grammar;
    return CN_OK;
}

cn_status cn_grammars_open(cn_grammars *g, const cn_structure *s, cn_grammar **out)
{
    const char *text = s->text ? s->text : "";
    cn_grammar *grammar = find(g, s, text);
    if (!grammar) CN_TRY(add(g, s, text, &grammar));
    cn_list_remove(&g->list, &grammar->node);
    cn_list_append(&g->list, &grammar->node);
    if (grammar->n_users++ == 0) g->n_unused--;
    *out = grammar;
    return CN_OK;
}

void cn_grammars_close(cn_grammar *grammar)
{
    if (!grammar || --grammar->n_users > 0) return;
    cn_grammars *g = grammar->owner;
    g->n_unused++;
    while (g->n_unused > CN_GRAMMARS_UNUSED) drop(find_victim(g));
}

void cn_grammar_match(cn_grammar *grammar, cn_matcher *m)
{
    cn_matcher_start(m, grammar->automaton);
}

cn_status cn_grammars_mask(cn_grammars *g, cn_matcher *m, const uint32_t **mask)
{
    make_room(g);
    return cn_matcher_mask(m, mask);
}
