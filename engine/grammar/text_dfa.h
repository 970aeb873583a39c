/* text_dfa.h - deterministic automata on the bytes of UTF-8 texts, made while a schema is compiled:
 * where several conditions on a string hold at once, such as a pattern and a length, or where a
 * name must not match a pattern.
 *
 * Owner: the caller; cn_dfa_free. Thread: any; no state.
 *
 * Work is counted as steps of `net`, which is being built. A machine that would take more than
 * CN_DFA_MAX_STATES states or CN_DFA_MAX_STEPS steps is not made: CN_ERR_ARG, and net->status stays
 * CN_OK. Then the caller does without it. */
#pragma once

#include "engine/grammar/charset.h"

enum { CN_DFA_MAX_STATES = 20000, CN_DFA_MAX_STEPS = 4000000 };

typedef struct cn_dfa_edge {
    uint32_t to;
    uint8_t lo, hi;
} cn_dfa_edge;

/* State 0 is the start. A byte without an edge ends in no match. */
typedef struct cn_dfa {
    uint32_t n_states, n_edges;
    uint32_t *first;    /* [n_states + 1] where the edges of a state begin */
    bool *accepts;      /* [n_states] */
    cn_dfa_edge *edges; /* of one state: sorted, without overlap */
} cn_dfa;

void cn_dfa_free(cn_dfa *d); /* leaves *d empty; an empty one is fine */

/* The texts of a network of bytes and empty edges, without calls; its root is rule 0. */
cn_status cn_dfa_from_net(cn_dfa *out, const cn_net *nfa, cn_net *net);
/* The texts that match pattern[len]; see cn_regex_emit, whose errors are returned too. The pattern
 * may begin with look-aheads: what follows them narrows the texts, and so does each of them. */
cn_status cn_dfa_from_regex(cn_dfa *out, const char *pattern, size_t len, bool anywhere,
                            cn_net *net);
/* Whether it begins with a look-ahead, (?=...) or (?!...), of all its texts. */
bool cn_dfa_looks_ahead(const char *pattern, size_t len, bool anywhere);
/* The words. Sorts them. */
cn_status cn_dfa_from_words(cn_dfa *out, cn_net_word *words, size_t n, cn_net *net);
/* All texts of least to most characters; most UINT32_MAX: no limit. */
cn_status cn_dfa_from_length(cn_dfa *out, uint32_t least, uint32_t most, cn_net *net);

/* Leaves *a the texts of both, or with `minus` those of a that are not texts of b. On failure *a
 * stays as it is. */
cn_status cn_dfa_narrow(cn_dfa *a, const cn_dfa *b, bool minus, cn_net *net);

/* Bounds of the number of characters of a text; *most UINT32_MAX: no limit, or not found. False:
 * there is no text. */
bool cn_dfa_lengths(const cn_dfa *d, uint32_t *least, uint32_t *most);
bool cn_dfa_matches(const cn_dfa *d, const char *text, size_t n);

/* Reads a text of the machine of least to most characters in a JSON string. CN_ERR_ARG, and nothing
 * is added, if that takes too many nodes. */
cn_status cn_dfa_emit_counted(const cn_dfa *d, uint32_t least, uint32_t most, cn_net *net,
                              uint32_t from, uint32_t to);
/* Reads a text of the machine in this form, CN_TEXT_PLAIN or CN_TEXT_JSON. */
void cn_dfa_emit(const cn_dfa *d, cn_text_form form, cn_net *net, uint32_t from, uint32_t to);
