/* network.h - a grammar as rules. A rule is a network of nodes joined by edges; an edge reads one
 * byte, reads nothing, or calls a rule. A text matches if a walk from the start of the root rule to
 * its end reads it.
 *
 * Owner: the compiler while it builds, then cn_automaton, which only reads it. Thread: one.
 *
 * A failure while building (memory, more than CN_NET_MAX_NODES nodes or CN_NET_MAX_STEPS steps) is
 * kept in `status`, and later calls do nothing, so that builders need to test it only at the end.
 */
#pragma once

#include "engine/base/base.h"

enum {
    CN_NET_MAX_NODES = 1 << 17,  /* and the same number of edges, times 4 */
    CN_NET_MAX_STEPS = 30000000, /* of the loops that build it, below 1 s; see cn_net_spend */
    CN_NET_MAX_DEPTH = 100,      /* calls inside one another */
    CN_NET_MAX_WARNINGS = 16,
    CN_NET_NO_END = 255 /* height of a node from which the end cannot be reached */
};

typedef enum cn_edge_kind { CN_EDGE_BYTE, CN_EDGE_EMPTY, CN_EDGE_CALL } cn_edge_kind;

typedef struct cn_net_edge {
    uint32_t to, next;    /* next edge of the same node; 0: none */
    uint32_t rule;        /* of a call; `to` is where it returns to */
    uint8_t kind, lo, hi; /* a byte edge reads lo to hi */
} cn_net_edge;

typedef struct cn_net_node {
    uint32_t edges;   /* first edge; 0: none */
    uint8_t height;   /* calls inside one another that a walk to the end of the rule needs */
    bool end;         /* the end of a rule; it has no edges */
    bool unique;      /* an array begins here whose items differ: after its '[' */
    bool ends_unique; /* before its ']' */
} cn_net_node;

typedef struct cn_net_rule {
    uint32_t start, end;
} cn_net_rule;

typedef struct cn_net {
    cn_net_node *nodes;
    cn_net_edge *edges; /* edge 0 is unused */
    cn_net_rule *rules; /* rule 0 is the root */
    uint32_t n_nodes, n_edges, n_rules;
    uint32_t cap_nodes, cap_edges, cap_rules;
    uint32_t n_unique; /* nodes with `unique` */
    cn_buf places;     /* of these arrays, in the order of their nodes, each with a 0 */
    uint64_t steps;
    cn_buf warnings; /* lines; see cn_net_warn */
    uint32_t n_warnings;
    const char *about; /* what the next warnings are about, or NULL; borrowed */
    bool explains;     /* the text of no rule matches: the builder says why, as CN_ERR_ARG */
    cn_status status;
} cn_net;

void cn_net_free(cn_net *n); /* leaves *n empty */
size_t cn_net_bytes(const cn_net *n);

/* Counts steps of the innermost loops of builders, so that compiling the same text always ends in
 * the same way. A new node or edge is one step. False after a failure; more than CN_NET_MAX_STEPS
 * are one, CN_ERR_ARG. */
bool cn_net_spend(cn_net *n, uint64_t steps);

/* Return the number of a new rule with its start and end, or of a new node; 0 after a failure. */
uint32_t cn_net_rule_new(cn_net *n);
uint32_t cn_net_node_new(cn_net *n);
/* Add an edge between two nodes of a rule: it reads one byte from lo to hi, reads nothing, or calls
 * a rule. */
void cn_net_byte(cn_net *n, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi);
void cn_net_empty(cn_net *n, uint32_t from, uint32_t to);
void cn_net_call(cn_net *n, uint32_t from, uint32_t to, uint32_t rule);
/* Calls a rule of strings, numbers and literals that are the items of an array, between its
 * brackets: they differ. `to` has no other edge to it. place: of the array, for messages. Call it
 * in the order of `from`. */
void cn_net_unique(cn_net *n, uint32_t from, uint32_t to, uint32_t rule, const char *place);
/* Reads the bytes one after the other; returns the node after them. */
uint32_t cn_net_text(cn_net *n, uint32_t from, const char *bytes, size_t len);

/* Notes what the network reads although it should not, after `about`. A text that was noted is not
 * noted again. CN_ERR_MEMORY. */
cn_status cn_net_warn(cn_net *n, const char *text);

/* Reads texts of a rule one after the other, least to most of them; most UINT32_MAX: no limit.
 * Returns the node after them, which has no edges yet. */
uint32_t cn_net_repeat(cn_net *n, uint32_t from, uint32_t rule, uint32_t least, uint32_t most);

typedef struct cn_net_word {
    const char *bytes;
    size_t len;
} cn_net_word;

void cn_net_sort_words(cn_net_word *words, size_t n); /* by their bytes */
/* Reads one of the words, which it sorts. Words with the same first bytes share nodes. */
void cn_net_words(cn_net *n, uint32_t from, uint32_t to, cn_net_word *words, size_t n_words);

/* Computes the heights of what there is. CN_ERR_MEMORY. */
cn_status cn_net_find_heights(cn_net *n);
/* The rule matches no text, as far as heights are known. */
bool cn_net_is_never(const cn_net *n, uint32_t rule);
/* Computes heights. CN_ERR_ARG when the root matches no text. */
cn_status cn_net_finish(cn_net *n);
