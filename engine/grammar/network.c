/* network.c - see network.h. */
#include "engine/grammar/network.h"

#include <stdlib.h>

enum { FIRST_CAPACITY = 64, EDGES_PER_NODE = 4 };

void cn_net_free(cn_net *n)
{
    cn_free(n->nodes);
    cn_free(n->edges);
    cn_free(n->rules);
    cn_buf_free(&n->warnings);
    cn_buf_free(&n->places);
    *n = (cn_net){0};
}

size_t cn_net_bytes(const cn_net *n)
{
    return n->cap_nodes * sizeof *n->nodes + n->cap_edges * sizeof *n->edges +
           n->cap_rules * sizeof *n->rules + n->places.cap;
}

/* ---- building ---- */

bool cn_net_spend(cn_net *n, uint64_t steps)
{
    if (n->status != CN_OK) return false;
    n->steps += steps;
    if (n->steps <= CN_NET_MAX_STEPS) return true;
    n->status = cn_fail(CN_ERR_ARG,
                        "compiling it takes more than %d steps: expected fewer alternatives, "
                        "shorter lists of values or smaller bounds",
                        CN_NET_MAX_STEPS);
    return false;
}

/* Makes room for one more element. False after a failure, which is kept. */
static bool try_grow(cn_net *net, void **array, uint32_t n, uint32_t *cap, size_t size,
                     uint32_t most)
{
    if (!cn_net_spend(net, 1)) return false;
    if (n < *cap) return true;
    if (n >= most) {
        net->status = cn_fail(CN_ERR_ARG,
                              "the grammar needs more than %u nodes: expected a smaller schema, "
                              "fewer alternatives or smaller bounds",
                              (unsigned)CN_NET_MAX_NODES);
        return false;
    }
    const uint32_t grown = *cap ? 2 * *cap : FIRST_CAPACITY;
    void *p = cn_realloc(*array, grown, size);
    if (!p) {
        net->status = cn_fail(CN_ERR_MEMORY, "out of memory for a grammar");
        return false;
    }
    *array = p;
    *cap = grown;
    return true;
}

uint32_t cn_net_node_new(cn_net *n)
{
    if (!try_grow(n, (void **)&n->nodes, n->n_nodes, &n->cap_nodes, sizeof *n->nodes,
                  CN_NET_MAX_NODES))
        return 0;
    n->nodes[n->n_nodes] = (cn_net_node){.height = CN_NET_NO_END};
    return n->n_nodes++;
}

uint32_t cn_net_rule_new(cn_net *n)
{
    const uint32_t start = cn_net_node_new(n), end = cn_net_node_new(n);
    if (!try_grow(n, (void **)&n->rules, n->n_rules, &n->cap_rules, sizeof *n->rules,
                  CN_NET_MAX_NODES))
        return 0;
    n->nodes[end].end = true;
    n->rules[n->n_rules] = (cn_net_rule){start, end};
    return n->n_rules++;
}

static void add_edge(cn_net *n, uint32_t from, cn_net_edge edge)
{
    if (n->n_edges == 0) n->n_edges = 1;
    if (!try_grow(n, (void **)&n->edges, n->n_edges, &n->cap_edges, sizeof *n->edges,
                  EDGES_PER_NODE * CN_NET_MAX_NODES))
        return;
    CN_ASSERT(!n->nodes[from].end);
    edge.next = n->nodes[from].edges;
    n->edges[n->n_edges] = edge;
    n->nodes[from].edges = n->n_edges++;
}

void cn_net_byte(cn_net *n, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi)
{
    add_edge(n, from, (cn_net_edge){.to = to, .kind = CN_EDGE_BYTE, .lo = lo, .hi = hi});
}

void cn_net_empty(cn_net *n, uint32_t from, uint32_t to)
{
    add_edge(n, from, (cn_net_edge){.to = to, .kind = CN_EDGE_EMPTY});
}

void cn_net_call(cn_net *n, uint32_t from, uint32_t to, uint32_t rule)
{
    add_edge(n, from, (cn_net_edge){.to = to, .kind = CN_EDGE_CALL, .rule = rule});
}

void cn_net_unique(cn_net *n, uint32_t from, uint32_t to, uint32_t rule, const char *place)
{
    cn_net_call(n, from, to, rule);
    if (n->status != CN_OK) return;
    n->nodes[from].unique = true;
    n->nodes[to].ends_unique = true;
    n->n_unique++;
    n->status = cn_buf_add(&n->places, place, strlen(place) + 1);
}

uint32_t cn_net_text(cn_net *n, uint32_t from, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len && n->status == CN_OK; i++) {
        const uint32_t to = cn_net_node_new(n);
        cn_net_byte(n, from, to, (uint8_t)bytes[i], (uint8_t)bytes[i]);
        from = to;
    }
    return from;
}

cn_status cn_net_warn(cn_net *n, const char *text)
{
    cn_buf line = {0};
    cn_status status =
        cn_buf_addf(&line, "%s%s%s\n", n->about ? n->about : "", n->about ? ": " : "", text);
    const bool found = status == CN_OK && n->warnings.data && strstr(n->warnings.data, line.data);
    if (status == CN_OK && !found && n->n_warnings < CN_NET_MAX_WARNINGS) {
        n->n_warnings++;
        status = cn_buf_add(&n->warnings, line.data, line.len);
    }
    cn_buf_free(&line);
    return status;
}

/* ---- repetition ---- */

enum { LONGEST_CHAIN = 4096, POWERS = 32 };

/* Rules that read a rule 2^k times, and 0 to 2^k times; 0: not made. Few nodes stand for a large
 * count, at the price of more places in a state. */
typedef struct powers {
    cn_net *net;
    uint32_t exact[POWERS], up_to[POWERS];
} powers;

static uint32_t exact_rule(powers *p, uint32_t k)
{
    if (p->exact[k]) return p->exact[k];
    const uint32_t half = exact_rule(p, k - 1), middle = cn_net_node_new(p->net);
    const uint32_t rule = cn_net_rule_new(p->net);
    if (p->net->status != CN_OK) return 0;
    cn_net_call(p->net, p->net->rules[rule].start, middle, half);
    cn_net_call(p->net, middle, p->net->rules[rule].end, half);
    return p->exact[k] = rule;
}

/* Either at most half, or exactly half and then at most half: a text is read in few ways. */
static uint32_t up_to_rule(powers *p, uint32_t k)
{
    if (p->up_to[k]) return p->up_to[k];
    const uint32_t half = k > 0 ? up_to_rule(p, k - 1) : 0, middle = cn_net_node_new(p->net);
    const uint32_t exact = exact_rule(p, k > 0 ? k - 1 : 0), rule = cn_net_rule_new(p->net);
    if (p->net->status != CN_OK) return 0;
    const cn_net_rule r = p->net->rules[rule];
    if (k == 0) {
        cn_net_empty(p->net, r.start, r.end);
        cn_net_call(p->net, r.start, r.end, exact);
    } else {
        cn_net_call(p->net, r.start, r.end, half);
        cn_net_call(p->net, r.start, middle, exact);
        cn_net_call(p->net, middle, r.end, half);
    }
    return p->up_to[k] = rule;
}

static uint32_t repeat_exactly(powers *p, uint32_t from, uint32_t count)
{
    for (uint32_t k = POWERS; k-- > 0 && p->net->status == CN_OK;) {
        if (!(count >> k & 1)) continue;
        const uint32_t next = cn_net_node_new(p->net);
        cn_net_call(p->net, from, next, exact_rule(p, k));
        from = next;
    }
    return from;
}

/* Leads to `end` after at most `count`. */
static void repeat_up_to(powers *p, uint32_t from, uint32_t end, uint32_t count)
{
    for (uint32_t k = POWERS; k-- > 0 && p->net->status == CN_OK;) {
        if (!(count >> k & 1)) continue;
        cn_net_call(p->net, from, end, up_to_rule(p, k));
        from = repeat_exactly(p, from, 1U << k);
    }
    cn_net_empty(p->net, from, end);
}

uint32_t cn_net_repeat(cn_net *n, uint32_t from, uint32_t rule, uint32_t least, uint32_t most)
{
    const bool limited = most != UINT32_MAX;
    powers p = {.net = n, .exact = {rule}};
    const uint32_t end = cn_net_node_new(n);
    if (least <= LONGEST_CHAIN) {
        for (uint32_t i = 0; i < least && n->status == CN_OK; i++) {
            const uint32_t next = cn_net_node_new(n);
            cn_net_call(n, from, next, rule);
            from = next;
        }
    } else {
        from = repeat_exactly(&p, from, least);
    }
    if (limited && most - least > LONGEST_CHAIN) {
        repeat_up_to(&p, from, end, most - least);
        return end;
    }
    for (uint32_t i = least; limited && i < most && n->status == CN_OK; i++) {
        const uint32_t next = cn_net_node_new(n);
        cn_net_empty(n, from, end);
        cn_net_call(n, from, next, rule);
        from = next;
    }
    if (!limited) {
        const uint32_t loop = cn_net_node_new(n);
        cn_net_empty(n, from, loop);
        cn_net_call(n, loop, loop, rule);
        from = loop;
    }
    cn_net_empty(n, from, end);
    return end;
}

/* ---- words ---- */

static int compare_words(const void *pa, const void *pb)
{
    const cn_net_word *a = pa, *b = pb;
    const size_t n = a->len < b->len ? a->len : b->len;
    const int order = n > 0 ? memcmp(a->bytes, b->bytes, n) : 0;
    if (order != 0) return order;
    return a->len < b->len ? -1 : a->len > b->len;
}

void cn_net_sort_words(cn_net_word *words, size_t n)
{
    qsort(words, n, sizeof *words, compare_words);
}

static size_t common_bytes(const cn_net_word *a, const cn_net_word *b)
{
    size_t n = 0;
    while (n < a->len && n < b->len && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

void cn_net_words(cn_net *n, uint32_t from, uint32_t to, cn_net_word *words, size_t n_words)
{
    size_t longest = 0;
    for (size_t i = 0; i < n_words; i++)
        if (words[i].len > longest) longest = words[i].len;
    uint32_t *at = cn_calloc(longest + 1, sizeof *at); /* the node after each byte of a word */
    if (!at) {
        n->status = cn_fail(CN_ERR_MEMORY, "out of memory for a grammar");
        return;
    }
    cn_net_sort_words(words, n_words);
    at[0] = from;
    for (size_t i = 0; i < n_words && n->status == CN_OK; i++) {
        const size_t shared = i > 0 ? common_bytes(&words[i - 1], &words[i]) : 0;
        if (i > 0 && shared == words[i].len && words[i - 1].len == shared) continue; /* the same */
        cn_net_spend(n, shared);
        for (size_t k = shared; k < words[i].len; k++)
            at[k + 1] = cn_net_text(n, at[k], words[i].bytes + k, 1);
        cn_net_empty(n, at[words[i].len], to);
    }
    cn_free(at);
}

/* ---- heights ---- */

static uint32_t edge_height(const cn_net *n, const cn_net_edge *e)
{
    const uint32_t after = n->nodes[e->to].height;
    if (e->kind != CN_EDGE_CALL) return after;
    /* A call whose return is the end of the caller needs no frame (automaton.c). */
    const uint32_t inside = n->nodes[n->rules[e->rule].start].height + !n->nodes[e->to].end;
    return cn_max_u32(inside, after);
}

/* The edges whose height depends on a node: those that lead to it, and the calls of the rule that
 * starts at it. */
typedef struct dependents {
    uint32_t *from;  /* [n_edges] the node that an edge begins at */
    uint32_t *first; /* [n_nodes + 1] where the edges of a node begin in `edges` */
    uint32_t *edges;
    uint32_t *stack; /* [n_nodes] */
} dependents;

static void free_dependents(dependents *d)
{
    cn_free(d->from);
    cn_free(d->first);
    cn_free(d->edges);
    cn_free(d->stack);
}

static bool try_make_dependents(const cn_net *n, dependents *d)
{
    d->from = cn_calloc(n->n_edges + 1, sizeof *d->from);
    d->first = cn_calloc(n->n_nodes + 1, sizeof *d->first);
    d->edges = cn_calloc(2 * n->n_edges + 1, sizeof *d->edges);
    d->stack = cn_calloc(n->n_nodes, sizeof *d->stack);
    if (!d->from || !d->first || !d->edges || !d->stack) return false;
    for (uint32_t i = 0; i < n->n_nodes; i++)
        for (uint32_t e = n->nodes[i].edges; e; e = n->edges[e].next) d->from[e] = i;
    for (uint32_t e = 1; e < n->n_edges; e++) {
        const cn_net_edge *edge = &n->edges[e];
        d->first[edge->to]++;
        if (edge->kind == CN_EDGE_CALL) d->first[n->rules[edge->rule].start]++;
    }
    for (uint32_t i = 1; i <= n->n_nodes; i++) d->first[i] += d->first[i - 1];
    for (uint32_t e = 1; e < n->n_edges; e++) { /* now first[i] is where those of i end */
        const cn_net_edge *edge = &n->edges[e];
        d->edges[--d->first[edge->to]] = e;
        if (edge->kind == CN_EDGE_CALL) d->edges[--d->first[n->rules[edge->rule].start]] = e;
    }
    return true;
}

/* Finds all nodes of this height, when those of smaller ones are known. */
static void find_height(cn_net *n, const dependents *d, uint32_t height)
{
    uint32_t n_stack = 0;
    for (uint32_t i = 0; i < n->n_nodes; i++)
        if (n->nodes[i].height == height) d->stack[n_stack++] = i;
    while (n_stack > 0) {
        const uint32_t i = d->stack[--n_stack];
        for (uint32_t k = d->first[i]; k < d->first[i + 1]; k++) {
            const uint32_t e = d->edges[k];
            const uint32_t found = edge_height(n, &n->edges[e]);
            cn_net_node *node = &n->nodes[d->from[e]];
            if (found >= node->height || found > CN_NET_MAX_DEPTH) continue;
            node->height = (uint8_t)found;
            if (found == height) d->stack[n_stack++] = d->from[e];
        }
    }
}

/* An edge is never lower than what it depends on, so heights are found from the lowest on, each
 * node once (Knuth, A generalization of Dijkstra's algorithm, 1977). */
cn_status cn_net_find_heights(cn_net *n)
{
    dependents d = {0};
    const bool made = try_make_dependents(n, &d);
    for (uint32_t i = 0; i < n->n_nodes; i++)
        if (n->nodes[i].end) n->nodes[i].height = 0;
    for (uint32_t height = 0; made && height <= CN_NET_MAX_DEPTH; height++)
        find_height(n, &d, height);
    free_dependents(&d);
    return made ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a grammar");
}

bool cn_net_is_never(const cn_net *n, uint32_t rule)
{
    return n->nodes[n->rules[rule].start].height == CN_NET_NO_END;
}

cn_status cn_net_finish(cn_net *n)
{
    CN_TRY(n->status);
    CN_TRY(cn_net_find_heights(n));
    if (!cn_net_is_never(n, 0)) return CN_OK;
    return cn_fail(CN_ERR_ARG, "no text matches (values of JSON may be %d deep inside one another)",
                   CN_NET_MAX_DEPTH);
}
