/* text_dfa.c - see text_dfa.h. States are found from the start on: the set of nodes of a network,
 * or the pair of states of two machines, which an index makes unique. Then states from which no
 * text ends are removed. */
#include "engine/grammar/text_dfa.h"

#include <stdlib.h>

#include "engine/grammar/key_index.h"
#include "engine/grammar/regex.h"

enum { NO_STATE = UINT32_MAX, BYTES = 256, MAX_PASSES = 64, MAX_DEPTH = 4096 };

void cn_dfa_free(cn_dfa *d)
{
    cn_free(d->first);
    cn_free(d->accepts);
    cn_free(d->edges);
    *d = (cn_dfa){0};
}

static cn_status no_dfa_memory(void)
{
    return cn_fail(CN_ERR_MEMORY, "out of memory for a pattern");
}

static cn_status dfa_too_large(void)
{
    return cn_fail(CN_ERR_ARG, "these conditions on one string need more than %d states together",
                   CN_DFA_MAX_STATES);
}

/* Fails when the work on one machine exceeds its part of the budget, or all work the whole. */
static cn_status spend(cn_net *net, uint64_t begun, uint64_t steps)
{
    if (!cn_net_spend(net, steps)) return net->status;
    return net->steps - begun <= CN_DFA_MAX_STEPS ? CN_OK : dfa_too_large();
}

/* The states are complete when the next one begins. */
static cn_status begin_state(cn_dfa *d, bool accepts)
{
    if (d->n_states == CN_DFA_MAX_STATES) return dfa_too_large();
    CN_TRY(CN_ROOM(&d->accepts, d->n_states, "a pattern"));
    if (d->n_states == 0) CN_TRY(CN_ROOM(&d->first, 0, "a pattern"));
    CN_TRY(CN_ROOM(&d->first, d->n_states + 1, "a pattern"));
    d->first[d->n_states] = d->n_edges;
    d->accepts[d->n_states++] = accepts;
    d->first[d->n_states] = d->n_edges;
    return CN_OK;
}

/* Adds an edge of the last state; edges come in the order of their bytes. */
static cn_status add_dfa_edge(cn_dfa *d, uint8_t lo, uint8_t hi, uint32_t to)
{
    cn_dfa_edge *last = d->n_edges > d->first[d->n_states - 1] ? &d->edges[d->n_edges - 1] : NULL;
    if (last && last->to == to && last->hi + 1 == lo) {
        last->hi = hi;
        d->first[d->n_states] = d->n_edges;
        return CN_OK;
    }
    CN_TRY(CN_ROOM(&d->edges, d->n_edges, "a pattern"));
    d->edges[d->n_edges++] = (cn_dfa_edge){to, lo, hi};
    d->first[d->n_states] = d->n_edges;
    return CN_OK;
}

/* ---- states that matter ---- */

/* Sets alive[i] if a text ends from state i on. */
static cn_status find_alive(const cn_dfa *d, bool *alive, cn_net *net)
{
    memcpy(alive, d->accepts, d->n_states * sizeof *alive);
    for (bool changed = true; changed;) {
        changed = false;
        if (!cn_net_spend(net, d->n_edges)) return net->status;
        for (uint32_t i = d->n_states; i-- > 0;)
            for (uint32_t e = d->first[i]; e < d->first[i + 1] && !alive[i]; e++)
                if (alive[d->edges[e].to]) alive[i] = changed = true;
    }
    return CN_OK;
}

/* Removes edges into states from which no text ends, and then those states. */
static cn_status trim_dfa(cn_dfa *d, cn_net *net)
{
    bool *alive = cn_calloc(d->n_states, sizeof *alive);
    uint32_t *moved = cn_calloc(d->n_states, sizeof *moved);
    cn_status status = alive && moved ? find_alive(d, alive, net) : no_dfa_memory();
    uint32_t n = 0, n_edges = 0;
    for (uint32_t i = 0; i < d->n_states && status == CN_OK; i++)
        if (alive[i] || i == 0) moved[i] = n++;
    for (uint32_t i = 0, k = 0; i < d->n_states && status == CN_OK; i++) {
        const uint32_t begin = d->first[i], end = d->first[i + 1];
        if (!alive[i] && i > 0) continue;
        d->first[k] = n_edges;
        d->accepts[k++] = d->accepts[i];
        for (uint32_t e = begin; e < end; e++) {
            if (!alive[d->edges[e].to]) continue;
            d->edges[n_edges] = d->edges[e];
            d->edges[n_edges++].to = moved[d->edges[e].to];
        }
    }
    if (status == CN_OK) {
        d->n_states = n;
        d->n_edges = n_edges;
        d->first[n] = n_edges;
    }
    cn_free(alive);
    cn_free(moved);
    return status;
}

/* ---- from a network ---- */

typedef struct subsets {
    const cn_net *nfa;
    cn_net *net;
    uint64_t begun; /* steps */
    cn_key_index index;
    cn_dfa *out;
    uint32_t *set, n_set; /* [n_nodes] the closure being made */
    uint32_t *seen, mark; /* [n_nodes] the mark of the closure that has the node */
    uint32_t *targets, n_targets, cap_targets;
} subsets;

static int compare_numbers(const void *pa, const void *pb)
{
    const uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return a < b ? -1 : a > b;
}

static void add_node(subsets *s, uint32_t node)
{
    if (s->seen[node] == s->mark) return;
    s->seen[node] = s->mark;
    s->set[s->n_set++] = node;
}

/* The number of the closure of nodes[n]: what empty edges reach. */
static cn_status close_set(subsets *s, const uint32_t *nodes, uint32_t n, uint32_t *out)
{
    s->n_set = 0;
    s->mark++;
    for (uint32_t i = 0; i < n; i++) add_node(s, nodes[i]);
    for (uint32_t i = 0; i < s->n_set; i++) {
        CN_TRY(spend(s->net, s->begun, 1));
        for (uint32_t e = s->nfa->nodes[s->set[i]].edges; e; e = s->nfa->edges[e].next)
            if (s->nfa->edges[e].kind == CN_EDGE_EMPTY) add_node(s, s->nfa->edges[e].to);
    }
    qsort(s->set, s->n_set, sizeof *s->set, compare_numbers);
    CN_TRY(spend(s->net, s->begun, 4 * (uint64_t)s->n_set));
    return cn_key_index_number(&s->index, s->set, s->n_set, out);
}

/* Marks where ranges of the set's edges begin; returns the number of byte edges. */
static uint32_t find_cuts(const subsets *s, const uint32_t *set, uint32_t n, bool *cut)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t e = s->nfa->nodes[set[i]].edges; e; e = s->nfa->edges[e].next) {
            const cn_net_edge *edge = &s->nfa->edges[e];
            if (edge->kind != CN_EDGE_BYTE) continue;
            cut[edge->lo] = cut[edge->hi + 1] = true;
            count++;
        }
    return count;
}

static cn_status step_set(subsets *s, const uint32_t *set, uint32_t n, uint8_t byte, uint32_t *to)
{
    s->n_targets = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t e = s->nfa->nodes[set[i]].edges; e; e = s->nfa->edges[e].next) {
            const cn_net_edge *edge = &s->nfa->edges[e];
            if (edge->kind != CN_EDGE_BYTE || byte < edge->lo || byte > edge->hi) continue;
            if (s->n_targets == s->cap_targets) {
                s->cap_targets = 2 * s->cap_targets + 64;
                uint32_t *grown = cn_realloc(s->targets, s->cap_targets, sizeof *grown);
                if (!grown) return no_dfa_memory();
                s->targets = grown;
            }
            s->targets[s->n_targets++] = edge->to;
        }
    *to = NO_STATE;
    return s->n_targets > 0 ? close_set(s, s->targets, s->n_targets, to) : CN_OK;
}

static cn_status expand_set(subsets *s, uint32_t state)
{
    const uint32_t n = s->index.at[state + 1] - s->index.at[state];
    bool cut[BYTES + 1] = {true}, accepts = false;
    uint32_t *set = cn_calloc(n + 1, sizeof *set);
    if (!set) return no_dfa_memory();
    memcpy(set, s->index.data + s->index.at[state], n * sizeof *set);
    for (uint32_t i = 0; i < n; i++) accepts |= s->nfa->nodes[set[i]].end;
    const uint32_t n_edges = find_cuts(s, set, n, cut);
    cn_status status = begin_state(s->out, accepts);
    for (int lo = 0; lo < BYTES && status == CN_OK && n_edges > 0;) {
        int next = lo + 1;
        uint32_t to;
        while (next < BYTES && !cut[next]) next++;
        status = spend(s->net, s->begun, n + n_edges);
        if (status == CN_OK) status = step_set(s, set, n, (uint8_t)lo, &to);
        if (status == CN_OK && to != NO_STATE)
            status = add_dfa_edge(s->out, (uint8_t)lo, (uint8_t)(next - 1), to);
        lo = next;
    }
    cn_free(set);
    return status;
}

cn_status cn_dfa_from_net(cn_dfa *out, const cn_net *nfa, cn_net *net)
{
    uint32_t start;
    *out = (cn_dfa){0};
    subsets s = {.nfa = nfa, .net = net, .begun = net->steps, .out = out};
    s.set = cn_calloc(nfa->n_nodes, sizeof *s.set);
    s.seen = cn_calloc(nfa->n_nodes, sizeof *s.seen);
    cn_status status =
        s.set && s.seen ? close_set(&s, &nfa->rules[0].start, 1, &start) : no_dfa_memory();
    for (uint32_t i = 0; i < s.index.n && status == CN_OK; i++) status = expand_set(&s, i);
    if (status == CN_OK) status = trim_dfa(out, net);
    if (status != CN_OK) cn_dfa_free(out);
    cn_key_index_free(&s.index);
    cn_free(s.set);
    cn_free(s.seen);
    cn_free(s.targets);
    return status;
}

/* A network of its own, whose steps continue those of net. */
static cn_status begin_scratch(cn_net *scratch, const cn_net *net)
{
    *scratch = (cn_net){.steps = net->steps};
    cn_net_rule_new(scratch);
    return scratch->status;
}

static cn_status end_scratch(cn_status status, cn_dfa *out, cn_net *scratch, cn_net *net)
{
    net->steps = scratch->steps;
    if (status == CN_OK) status = scratch->status;
    if (status == CN_OK) status = cn_dfa_from_net(out, scratch, net);
    cn_net_free(scratch);
    return status;
}

cn_status cn_dfa_from_words(cn_dfa *out, cn_net_word *words, size_t n, cn_net *net)
{
    cn_net scratch;
    *out = (cn_dfa){0};
    cn_status status = begin_scratch(&scratch, net);
    if (status == CN_OK)
        cn_net_words(&scratch, scratch.rules[0].start, scratch.rules[0].end, words, n);
    return end_scratch(status, out, &scratch, net);
}

cn_status cn_dfa_from_length(cn_dfa *out, uint32_t least, uint32_t most, cn_net *net)
{
    cn_charset all = {.n = 0};
    cn_charset_try_add(&all, 0, CN_LAST_CHAR);
    const uint32_t n = most == UINT32_MAX ? least : most;
    cn_net scratch;
    *out = (cn_dfa){0};
    if (n > CN_DFA_MAX_STATES / 4) return dfa_too_large(); /* a character has up to 4 bytes */
    cn_status status = begin_scratch(&scratch, net);
    uint32_t at = status == CN_OK ? scratch.rules[0].start : 0;
    for (uint32_t i = 0; i < n && status == CN_OK; i++) {
        const uint32_t next = cn_net_node_new(&scratch);
        if (scratch.status != CN_OK) break;
        if (i >= least) cn_net_empty(&scratch, at, scratch.rules[0].end);
        cn_charset_emit(&all, CN_TEXT_PLAIN, &scratch, at, next);
        at = next;
    }
    if (status == CN_OK && scratch.status == CN_OK) {
        if (most == UINT32_MAX) cn_charset_emit(&all, CN_TEXT_PLAIN, &scratch, at, at);
        cn_net_empty(&scratch, at, scratch.rules[0].end);
    }
    return end_scratch(status, out, &scratch, net);
}

/* ---- two machines ---- */

typedef struct pairs {
    const cn_dfa *a, *b;
    bool minus;
    cn_net *net;
    uint64_t begun;
    cn_key_index index;
    cn_dfa *out;
} pairs;

static const cn_dfa_edge *edge_of(const cn_dfa *d, uint32_t state, int byte)
{
    if (state == NO_STATE) return NULL;
    for (uint32_t e = d->first[state]; e < d->first[state + 1]; e++)
        if (d->edges[e].hi >= byte) return d->edges[e].lo <= byte ? &d->edges[e] : NULL;
    return NULL;
}

/* The last byte from `byte` on, at most `hi`, that leads where `byte` does. */
static int end_of_range(const cn_dfa *d, uint32_t state, int byte, int hi)
{
    if (state == NO_STATE) return hi;
    for (uint32_t e = d->first[state]; e < d->first[state + 1]; e++) {
        if (d->edges[e].hi < byte) continue;
        const int last = d->edges[e].lo <= byte ? d->edges[e].hi : d->edges[e].lo - 1;
        return last < hi ? last : hi;
    }
    return hi;
}

static cn_status expand_pair(pairs *p, uint32_t i)
{
    const uint32_t *key = p->index.data + p->index.at[i];
    const uint32_t a = key[0], b = key[1];
    const bool in_b = b != NO_STATE && p->b->accepts[b];
    CN_TRY(begin_state(p->out, p->a->accepts[a] && in_b != p->minus));
    for (uint32_t e = p->a->first[a]; e < p->a->first[a + 1]; e++)
        for (int lo = p->a->edges[e].lo, hi = p->a->edges[e].hi; lo <= hi;) {
            const cn_dfa_edge *other = edge_of(p->b, b, lo);
            const int last = end_of_range(p->b, b, lo, hi);
            const uint32_t next[2] = {p->a->edges[e].to, other ? other->to : NO_STATE};
            const uint32_t edges_of_b = b == NO_STATE ? 0 : p->b->first[b + 1] - p->b->first[b];
            uint32_t to;
            CN_TRY(spend(p->net, p->begun, 8 + edges_of_b));
            if (other || p->minus) {
                CN_TRY(cn_key_index_number(&p->index, next, 2, &to));
                CN_TRY(add_dfa_edge(p->out, (uint8_t)lo, (uint8_t)last, to));
            }
            lo = last + 1;
        }
    return CN_OK;
}

static cn_status combine_dfas(cn_dfa *out, const cn_dfa *a, const cn_dfa *b, bool minus,
                              cn_net *net)
{
    uint32_t number;
    const uint32_t start[2] = {0, 0};
    *out = (cn_dfa){0};
    pairs p = {.a = a, .b = b, .minus = minus, .net = net, .begun = net->steps, .out = out};
    cn_status status = cn_key_index_number(&p.index, start, 2, &number);
    for (uint32_t i = 0; i < p.index.n && status == CN_OK; i++) status = expand_pair(&p, i);
    if (status == CN_OK) status = trim_dfa(out, net);
    if (status != CN_OK) cn_dfa_free(out);
    cn_key_index_free(&p.index);
    return status;
}

cn_status cn_dfa_narrow(cn_dfa *a, const cn_dfa *b, bool minus, cn_net *net)
{
    cn_dfa out;
    CN_TRY(combine_dfas(&out, a, b, minus, net));
    cn_dfa_free(a);
    *a = out;
    return CN_OK;
}

/* ---- expressions ---- */

/* The texts of an expression without look-ahead. wide: what any dialect matches, anywhere. */
static cn_status from_plain(cn_dfa *out, const char *pattern, size_t len, bool anywhere, bool wide,
                            cn_net *net)
{
    cn_net scratch;
    *out = (cn_dfa){0};
    cn_status status = begin_scratch(&scratch, net);
    if (status == CN_OK) {
        const cn_net_rule r = scratch.rules[0];
        status =
            wide ? cn_regex_emit_widely(pattern, len, &scratch, r.start, r.end)
                 : cn_regex_emit(pattern, len, anywhere, CN_TEXT_BYTES, &scratch, r.start, r.end);
    }
    return end_scratch(status, out, &scratch, net);
}

/* What (?=text) or, with `minus`, (?!text) looks for. */
typedef struct look {
    const char *text;
    size_t len;
    bool minus;
} look;

/* Where the byte is outside groups and classes of an expression; n: nowhere. */
static size_t find_outside(const char *text, size_t n, char wanted)
{
    uint32_t depth = 0;
    bool in_class = false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (c == '\\') {
            i++;
        } else if (in_class) {
            in_class = c != ']';
        } else {
            if (depth == 0 && c == wanted) return i;
            in_class = c == '[';
            depth += c == '(';
            depth -= c == ')' && depth > 0;
        }
    }
    return n;
}

/* Reads the look-ahead that begins the text. */
static bool try_look(const char *text, size_t n, look *out)
{
    if (n < 4 || memcmp(text, "(?", 2) != 0 || (text[2] != '=' && text[2] != '!')) return false;
    *out = (look){text + 3, find_outside(text + 3, n - 3, ')'), text[2] == '!'};
    return out->len < n - 3;
}

bool cn_dfa_looks_ahead(const char *pattern, size_t len, bool anywhere)
{
    const bool begins = len > 0 && *pattern == '^';
    look l;
    return (begins || !anywhere) && try_look(pattern + begins, len - begins, &l) &&
           find_outside(pattern, len, '|') == len;
}

static cn_status from_regex(cn_dfa *out, const char *pattern, size_t len, bool anywhere, bool wide,
                            cn_net *net);

/* Each alternative of what is looked for begins where the text does. */
static cn_status put_anchored(const look *l, cn_buf *out)
{
    const char *text = l->text;
    for (size_t left = l->len, n;; text += n + 1, left -= n + 1) {
        n = find_outside(text, left, '|');
        const bool begins = n > 0 && *text == '^';
        CN_TRY(cn_buf_addf(out, "^"));
        CN_TRY(cn_buf_add(out, text + begins, n - begins));
        if (n == left) return CN_OK;
        CN_TRY(cn_buf_addf(out, "|"));
    }
}

static cn_status narrow_by_look(cn_dfa *io, const look *l, bool wide, cn_net *net)
{
    cn_buf text = {0};
    cn_dfa one = {0};
    cn_status status = put_anchored(l, &text);
    if (status == CN_OK)
        status = from_regex(&one, text.data, text.len, true, wide != l->minus, net);
    if (status == CN_OK)
        status = cn_dfa_narrow(io, &one, l->minus, net);
    else
        status = cn_fail_within(status, "look-ahead");
    cn_buf_free(&text);
    cn_dfa_free(&one);
    return status;
}

/* The texts of what follows the look-aheads, as far as each of them allows. */
static cn_status from_looks(cn_dfa *out, const char *pattern, size_t len, bool anywhere, bool wide,
                            cn_net *net)
{
    const bool begins = *pattern == '^';
    size_t at = begins;
    cn_buf rest = {0};
    look l;
    while (try_look(pattern + at, len - at, &l)) at += l.len + 4;
    cn_status status = cn_buf_addf(&rest, begins ? "^" : "");
    if (status == CN_OK) status = cn_buf_add(&rest, pattern + at, len - at);
    if (status == CN_OK)
        status = from_plain(out, rest.data ? rest.data : "", rest.len, anywhere, wide, net);
    for (at = begins; status == CN_OK && try_look(pattern + at, len - at, &l); at += l.len + 4)
        status = narrow_by_look(out, &l, wide, net);
    cn_buf_free(&rest);
    if (status != CN_OK) cn_dfa_free(out);
    return status;
}

static cn_status from_regex(cn_dfa *out, const char *pattern, size_t len, bool anywhere, bool wide,
                            cn_net *net)
{
    *out = (cn_dfa){0};
    return len <= CN_REGEX_MAX_BYTES && cn_dfa_looks_ahead(pattern, len, anywhere)
               ? from_looks(out, pattern, len, anywhere, wide, net)
               : from_plain(out, pattern, len, anywhere, wide, net);
}

cn_status cn_dfa_from_regex(cn_dfa *out, const char *pattern, size_t len, bool anywhere,
                            cn_net *net)
{
    return from_regex(out, pattern, len, anywhere, false, net);
}

/* ---- questions ---- */

static bool begins_character(uint8_t byte) { return byte < 0x80 || byte >= 0xc0; }

/* The longest text from a state on. path: 0 not met, 1 on the way, 2 known. */
static uint32_t longest_from(const cn_dfa *d, uint32_t state, uint8_t *path, uint32_t *known)
{
    if (path[state] == 1) return UINT32_MAX;
    if (path[state] == 2) return known[state];
    path[state] = 1;
    uint32_t most = 0;
    for (uint32_t e = d->first[state]; e < d->first[state + 1] && most != UINT32_MAX; e++) {
        const uint32_t after = longest_from(d, d->edges[e].to, path, known);
        const uint32_t n = after == UINT32_MAX ? after : after + begins_character(d->edges[e].lo);
        if (n > most) most = n;
    }
    path[state] = 2;
    return known[state] = most;
}

/* 0 when that is not found soon. */
static uint32_t shortest(const cn_dfa *d, uint32_t *known)
{
    for (uint32_t i = 0; i < d->n_states; i++) known[i] = d->accepts[i] ? 0 : UINT32_MAX;
    bool changed = true;
    for (int pass = 0; changed; pass++) {
        if (pass == MAX_PASSES) return 0;
        changed = false;
        for (uint32_t i = d->n_states; i-- > 0;)
            for (uint32_t e = d->first[i]; e < d->first[i + 1]; e++) {
                const uint32_t after = known[d->edges[e].to];
                if (after == UINT32_MAX) continue;
                const uint32_t n = after + begins_character(d->edges[e].lo);
                if (n < known[i]) known[i] = n, changed = true;
            }
    }
    return known[0];
}

bool cn_dfa_lengths(const cn_dfa *d, uint32_t *least, uint32_t *most)
{
    uint8_t *path = cn_calloc(d->n_states + 1, sizeof *path);
    uint32_t *known = cn_calloc(d->n_states + 1, sizeof *known);
    *least = 0;
    *most = UINT32_MAX;
    bool found = true;
    if (path && known && d->n_states > 0) {
        *least = shortest(d, known);
        found = *least != UINT32_MAX;
        if (d->n_states <= MAX_DEPTH) *most = longest_from(d, 0, path, known);
    }
    cn_free(path);
    cn_free(known);
    return found;
}

bool cn_dfa_matches(const cn_dfa *d, const char *text, size_t n)
{
    uint32_t state = 0;
    for (size_t i = 0; i < n; i++) {
        const cn_dfa_edge *e = edge_of(d, state, (uint8_t)text[i]);
        if (!e) return false;
        state = e->to;
    }
    return d->accepts[state];
}

/* ---- emission ---- */

/* Reads an ASCII character in a JSON string. All that must be escaped share a rule. */
static void emit_json_range(cn_net *net, uint32_t *escaped, uint8_t lo, uint8_t hi, uint32_t from,
                            uint32_t to)
{
    cn_charset set = {.n = 0};
    cn_charset_try_add(&set, lo, hi < 0x80 ? hi : 0x7f);
    if (lo > 0 || hi < '\\') {
        cn_charset_emit(&set, CN_TEXT_JSON, net, from, to);
        return;
    }
    if (*escaped == 0) {
        cn_charset all = {.n = 0};
        cn_charset_try_add(&all, 0, 0x1f);
        cn_charset_try_add(&all, '"', '"');
        cn_charset_try_add(&all, '\\', '\\');
        *escaped = cn_net_rule_new(net);
        if (net->status != CN_OK) return;
        cn_charset_emit(&all, CN_TEXT_JSON, net, net->rules[*escaped].start,
                        net->rules[*escaped].end);
    }
    cn_net_call(net, from, to, *escaped);
    cn_net_byte(net, from, to, 0x20, '"' - 1);
    cn_net_byte(net, from, to, '"' + 1, '\\' - 1);
    if (hi > '\\') cn_net_byte(net, from, to, '\\' + 1, hi < 0x80 ? hi : 0x7f);
}

void cn_dfa_emit(const cn_dfa *d, cn_text_form form, cn_net *net, uint32_t from, uint32_t to)
{
    uint32_t *nodes = cn_calloc(d->n_states + 1, sizeof *nodes), escaped = 0;
    if (!nodes) {
        if (net->status == CN_OK) net->status = no_dfa_memory();
        return;
    }
    for (uint32_t i = 0; i < d->n_states; i++) nodes[i] = cn_net_node_new(net);
    if (d->n_states > 0) cn_net_empty(net, from, nodes[0]);
    for (uint32_t i = 0; i < d->n_states && net->status == CN_OK; i++) {
        if (d->accepts[i]) cn_net_empty(net, nodes[i], to);
        for (uint32_t e = d->first[i]; e < d->first[i + 1]; e++) {
            const cn_dfa_edge *edge = &d->edges[e];
            const uint32_t next = nodes[edge->to];
            const bool json = form == CN_TEXT_JSON && edge->lo < 0x80;
            if (json) emit_json_range(net, &escaped, edge->lo, edge->hi, nodes[i], next);
            const uint8_t lo = json ? 0x80 : edge->lo;
            if (lo <= edge->hi) cn_net_byte(net, nodes[i], next, lo, edge->hi);
        }
    }
    cn_free(nodes);
}
