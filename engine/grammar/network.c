/* network.c - see network.h. */
#include "engine/grammar/network.h"

#include <string.h>

enum { FIRST_CAPACITY = 64, EDGES_PER_NODE = 4, MAX_SWEEPS = 200 };

void cn_net_free(cn_net *n)
{
    cn_free(n->nodes);
    cn_free(n->edges);
    cn_free(n->rules);
    *n = (cn_net){0};
}

size_t cn_net_bytes(const cn_net *n)
{
    return n->cap_nodes * sizeof *n->nodes + n->cap_edges * sizeof *n->edges +
           n->cap_rules * sizeof *n->rules;
}

/* ---- building ---- */

/* Makes room for one more element. False after a failure, which is kept. */
static bool try_grow(cn_net *net, void **array, uint32_t n, uint32_t *cap, size_t size,
                     uint32_t most)
{
    if (net->status != CN_OK) return false;
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

uint32_t cn_net_text(cn_net *n, uint32_t from, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len && n->status == CN_OK; i++) {
        const uint32_t to = cn_net_node_new(n);
        cn_net_byte(n, from, to, (uint8_t)bytes[i], (uint8_t)bytes[i]);
        from = to;
    }
    return from;
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

static bool lower_node(cn_net *n, uint32_t i)
{
    cn_net_node *node = &n->nodes[i];
    uint32_t least = node->end ? 0 : node->height;
    for (uint32_t e = node->edges; e; e = n->edges[e].next)
        least = cn_min_u32(least, edge_height(n, &n->edges[e]));
    if (least > CN_NET_MAX_DEPTH) least = CN_NET_NO_END;
    const bool lower = least < node->height;
    node->height = (uint8_t)least;
    return lower;
}

/* Sweeps until nothing changes. Heights only fall, so stopping early gives heights that are too
 * large: fewer walks are allowed, and every allowed one still reaches the end. */
static void compute_heights(cn_net *n)
{
    bool changed = true;
    for (uint32_t sweep = 0; changed && sweep < MAX_SWEEPS; sweep++) {
        changed = false;
        for (uint32_t i = 0; i < n->n_nodes; i++)
            changed |= lower_node(n, sweep % 2 ? i : n->n_nodes - 1 - i);
    }
}

cn_status cn_net_finish(cn_net *n)
{
    CN_TRY(n->status);
    compute_heights(n);
    if (n->nodes[n->rules[0].start].height != CN_NET_NO_END) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "no text matches the grammar with at most %d values inside one "
                   "another",
                   CN_NET_MAX_DEPTH);
}
