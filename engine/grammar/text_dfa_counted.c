/* text_dfa_counted.c - texts of a machine with a number of characters: the machine on characters
 * instead of bytes, with a node for each state and count. See text_dfa.h. */
#include "engine/grammar/key_index.h"
#include "engine/grammar/text_dfa.h"

enum { NO_STATE = UINT32_MAX, MAX_NODES = 60000 };

static cn_status no_counted_memory(void)
{
    return cn_fail(CN_ERR_MEMORY, "out of memory for a pattern");
}

static cn_status counted_too_large(void)
{
    return cn_fail(CN_ERR_ARG, "these conditions on one string need more than %d nodes together",
                   MAX_NODES);
}

/* Fails when this work exceeds its part of the budget, or all work the whole. */
static cn_status spend_counted(cn_net *net, uint64_t begun, uint64_t steps)
{
    if (!cn_net_spend(net, steps)) return net->status;
    return net->steps - begun <= CN_DFA_MAX_STEPS ? CN_OK : counted_too_large();
}

typedef struct char_range {
    uint32_t lo, hi;
} char_range;

/* Characters that lead from one state to another. */
typedef struct char_edge {
    uint32_t from, to, rule;
} char_edge;

/* The machine on characters instead of bytes: its states are those between characters. */
typedef struct char_machine {
    const cn_dfa *d;
    cn_net *net;
    uint64_t begun;
    char_edge *edges; /* sorted by `from` */
    uint32_t n_edges;
    uint32_t *first;    /* [n_states + 1] edges of a state */
    uint32_t *to_end;   /* [n_states] characters of the shortest text from it; NO_STATE: none */
    char_range *ranges; /* found for one pair of states */
    uint32_t *targets;  /* where each of them leads */
    uint32_t n_ranges, cap_ranges;
    cn_key_index sets; /* sets of characters that have a rule */
    uint32_t *rules;
} char_machine;

static cn_status add_counted_range(char_machine *m, uint32_t lo, uint32_t hi, uint32_t to)
{
    const uint32_t n = m->n_ranges;
    CN_TRY(spend_counted(m->net, m->begun, 1));
    if (n > 0 && m->targets[n - 1] == to && m->ranges[n - 1].hi + 1 == lo) {
        m->ranges[n - 1].hi = hi;
        return CN_OK;
    }
    if (n == m->cap_ranges) {
        const uint32_t cap = 2 * n + 64;
        char_range *ranges = cn_realloc(m->ranges, cap, sizeof *ranges);
        if (ranges) m->ranges = ranges;
        uint32_t *targets = cn_realloc(m->targets, cap, sizeof *targets);
        if (targets) m->targets = targets;
        if (!ranges || !targets) return no_counted_memory();
        m->cap_ranges = cap;
    }
    m->ranges[n] = (char_range){lo, hi};
    m->targets[m->n_ranges++] = to;
    return CN_OK;
}

/* The characters with these first bits whose last `left` bytes are read from a state. */
static cn_status read_counted_rest(char_machine *m, uint32_t state, uint32_t bits, uint32_t left)
{
    for (uint32_t e = m->d->first[state]; e < m->d->first[state + 1]; e++) {
        const cn_dfa_edge *edge = &m->d->edges[e];
        if (edge->hi < 0x80 || edge->lo > 0xbf) continue;
        const uint32_t lo = edge->lo < 0x80 ? 0 : edge->lo - 0x80u;
        const uint32_t hi = edge->hi > 0xbf ? 0x3f : edge->hi - 0x80u;
        if (left == 1) {
            CN_TRY(add_counted_range(m, bits << 6 | lo, bits << 6 | hi, edge->to));
            continue;
        }
        for (uint32_t b = lo; b <= hi; b++)
            CN_TRY(read_counted_rest(m, edge->to, bits << 6 | b, left - 1));
    }
    return CN_OK;
}

/* Finds all ranges of characters from a state, sorted, with what they lead to. */
static cn_status find_ranges(char_machine *m, uint32_t state)
{
    m->n_ranges = 0;
    for (uint32_t e = m->d->first[state]; e < m->d->first[state + 1]; e++) {
        const cn_dfa_edge *edge = &m->d->edges[e];
        for (uint32_t b = edge->lo; b <= edge->hi; b++) {
            if (b < 0x80)
                CN_TRY(add_counted_range(m, b, b, edge->to));
            else if (b >= 0xf0)
                CN_TRY(read_counted_rest(m, edge->to, b & 7, 3));
            else if (b >= 0xe0)
                CN_TRY(read_counted_rest(m, edge->to, b & 15, 2));
            else if (b >= 0xc0)
                CN_TRY(read_counted_rest(m, edge->to, b & 31, 1));
        }
    }
    return CN_OK;
}

static void emit_ranges(cn_net *net, const uint32_t *key, uint32_t n, uint32_t rule)
{
    for (uint32_t i = 0; i < n && net->status == CN_OK;) {
        cn_charset set = {.n = 0};
        for (; i < n && cn_charset_try_add(&set, key[i], key[i + 1]);) i += 2;
        cn_charset_emit(&set, CN_TEXT_JSON, net, net->rules[rule].start, net->rules[rule].end);
    }
}

/* The rule of the ranges that lead to a state. */
static cn_status set_rule(char_machine *m, uint32_t to, uint32_t *out)
{
    uint32_t *key = cn_calloc(2 * (size_t)m->n_ranges, sizeof *key), n = 0, number = 0;
    const uint32_t known = m->sets.n;
    if (!key) return no_counted_memory();
    for (uint32_t i = 0; i < m->n_ranges; i++) {
        if (m->targets[i] != to) continue;
        key[n++] = m->ranges[i].lo;
        key[n++] = m->ranges[i].hi;
    }
    cn_status status = cn_key_index_number(&m->sets, key, n, &number);
    const bool is_new = m->sets.n > known;
    if (status == CN_OK && is_new) status = CN_ROOM(&m->rules, known, "a pattern");
    if (status == CN_OK && is_new) {
        m->rules[number] = cn_net_rule_new(m->net);
        if (m->net->status == CN_OK) emit_ranges(m->net, key, n, m->rules[number]);
        status = m->net->status;
    }
    if (status == CN_OK) *out = m->rules[number];
    cn_free(key);
    return status;
}

static cn_status add_char_edges(char_machine *m, uint32_t state)
{
    CN_TRY(find_ranges(m, state));
    m->first[state] = m->n_edges;
    for (uint32_t i = 0; i < m->n_ranges; i++) {
        uint32_t k = m->first[state], rule = 0;
        while (k < m->n_edges && m->edges[k].to != m->targets[i]) k++;
        if (k < m->n_edges) continue;
        CN_TRY(set_rule(m, m->targets[i], &rule));
        CN_TRY(spend_counted(m->net, m->begun, m->n_ranges + m->n_edges - m->first[state]));
        CN_TRY(CN_ROOM(&m->edges, m->n_edges, "a pattern"));
        m->edges[m->n_edges++] = (char_edge){state, m->targets[i], rule};
    }
    m->first[state + 1] = m->n_edges;
    return CN_OK;
}

/* Characters to the end, from the last states on. */
static cn_status find_ends(char_machine *m)
{
    for (uint32_t i = 0; i < m->d->n_states; i++) m->to_end[i] = m->d->accepts[i] ? 0 : NO_STATE;
    for (bool changed = true; changed;) {
        changed = false;
        CN_TRY(spend_counted(m->net, m->begun, m->n_edges));
        for (uint32_t e = m->n_edges; e-- > 0;) {
            const uint32_t after = m->to_end[m->edges[e].to];
            if (after == NO_STATE || after + 1 >= m->to_end[m->edges[e].from]) continue;
            m->to_end[m->edges[e].from] = after + 1;
            changed = true;
        }
    }
    return CN_OK;
}

/* The nodes of the states that a number of characters reaches. */
typedef struct counted {
    const char_machine *m;
    uint32_t least, most, to, n;
    uint32_t *now, *next; /* [n_states] nodes; NO_STATE: not reached */
    bool counts_only;     /* how many nodes are needed */
} counted;

static uint32_t node_for(counted *c)
{
    c->n++;
    return c->counts_only ? 0 : cn_net_node_new(c->m->net);
}

/* From the nodes of `now`, after `count` characters, to those of `next`, which may be the same. */
static cn_status step_count(counted *c, uint32_t count, uint32_t *next)
{
    const char_machine *m = c->m;
    for (uint32_t i = 0; i < m->d->n_states; i++) {
        if (c->now[i] == NO_STATE) continue;
        CN_TRY(spend_counted(m->net, m->begun, 1 + m->first[i + 1] - m->first[i]));
        if (count >= c->least && m->d->accepts[i] && !c->counts_only)
            cn_net_empty(m->net, c->now[i], c->to);
        for (uint32_t e = m->first[i]; next && e < m->first[i + 1]; e++) {
            const uint32_t to = m->edges[e].to;
            if (m->to_end[to] == NO_STATE ||
                (c->most != UINT32_MAX && (uint64_t)count + 1 + m->to_end[to] > c->most))
                continue;
            if (next[to] == NO_STATE) next[to] = node_for(c);
            if (!c->counts_only) cn_net_call(m->net, c->now[i], next[to], m->edges[e].rule);
        }
    }
    return c->n <= MAX_NODES ? m->net->status : counted_too_large();
}

/* The texts of `least` characters at least have no count. */
static cn_status step_uncounted(counted *c)
{
    for (uint32_t i = 0; i < c->m->d->n_states; i++)
        if (c->now[i] == NO_STATE && c->m->to_end[i] != NO_STATE) c->now[i] = node_for(c);
    return step_count(c, c->least, c->now);
}

static cn_status count_all(counted *c, uint32_t from)
{
    const uint32_t n_states = c->m->d->n_states;
    const bool limited = c->most != UINT32_MAX;
    const uint32_t last = limited ? c->most : c->least;
    for (uint32_t i = 0; i < n_states; i++) c->now[i] = NO_STATE;
    c->n = 0;
    c->now[0] = from;
    for (uint32_t count = 0; count < last; count++) {
        for (uint32_t i = 0; i < n_states; i++) c->next[i] = NO_STATE;
        CN_TRY(spend_counted(c->m->net, c->m->begun, n_states / 4));
        CN_TRY(step_count(c, count, c->next));
        uint32_t *swapped = c->now;
        c->now = c->next;
        c->next = swapped;
    }
    return limited ? step_count(c, last, NULL) : step_uncounted(c);
}

static cn_status emit_counted(char_machine *m, uint32_t least, uint32_t most, uint32_t from,
                              uint32_t to)
{
    const uint32_t n = m->d->n_states;
    counted c = {.m = m, .least = least, .most = most, .to = to, .counts_only = true};
    m->first = cn_calloc(n + 1, sizeof *m->first);
    m->to_end = cn_calloc(n + 1, sizeof *m->to_end);
    c.now = cn_calloc(n + 1, sizeof *c.now);
    c.next = cn_calloc(n + 1, sizeof *c.next);
    cn_status status = m->first && m->to_end && c.now && c.next ? CN_OK : no_counted_memory();
    for (uint32_t i = 0; i < n && status == CN_OK; i++) status = add_char_edges(m, i);
    if (status == CN_OK) status = find_ends(m);
    if (status == CN_OK) status = count_all(&c, 0);
    c.counts_only = false;
    m->begun = m->net->steps;
    if (status == CN_OK) status = count_all(&c, from);
    cn_free(c.now);
    cn_free(c.next);
    return status;
}

cn_status cn_dfa_emit_counted(const cn_dfa *d, uint32_t least, uint32_t most, cn_net *net,
                              uint32_t from, uint32_t to)
{
    char_machine m = {.d = d, .net = net, .begun = net->steps};
    const uint32_t start = cn_net_node_new(net);
    CN_TRY(net->status);
    const cn_status status = emit_counted(&m, least, most, start, to);
    if (status == CN_OK) cn_net_empty(net, from, start);
    cn_free(m.edges);
    cn_free(m.first);
    cn_free(m.to_end);
    cn_free(m.ranges);
    cn_free(m.targets);
    cn_free(m.rules);
    cn_key_index_free(&m.sets);
    return status;
}
