/* automaton.h - runs a network on bytes and finds the tokens that may follow.
 *
 * A place is a node of the network and the calls that contain it. A state is the set of all places
 * that can be reached by reading the text so far. A state is created when it is first reached; its
 * transitions and its token mask are kept with it, so that requests with equal texts share the
 * work. A place from which the end cannot be reached within CN_NET_MAX_DEPTH calls is left out.
 * Every state can therefore be completed.
 *
 * Owner: cn_grammars. Thread: one at a time. Memory is bounded by cn_automaton_shrink, which keeps
 * the states of live matchers only, and by CN_AUTOMATON_MAX_*. Work is counted in automaton steps:
 * edges that are read, places that are met and nodes of the trie that are visited, about 5 ns
 * each. */
#pragma once

#include "engine/base/list.h"
#include "engine/grammar/network.h"
#include "engine/grammar/token_trie.h"
#include "engine/grammar/unique_items.h"

typedef struct cn_automaton cn_automaton;

enum {
    CN_AUTOMATON_MAX_PLACES = 8192,     /* of a state */
    CN_AUTOMATON_MAX_BYTES = 256 << 20, /* of one automaton, beyond its network */
    CN_STATE_NONE = 0                   /* the state without places: no text goes on */
};

typedef struct cn_vocabulary {
    cn_token_trie trie;
    uint32_t mask_words; /* of a mask: one bit for each token of the model */
    const uint32_t *eos; /* [n_eos] may follow a complete text */
    uint32_t n_eos;
} cn_vocabulary;

/* Takes the network, also on failure, where *net is freed. `bytes` is added to and subtracted from
 * as memory for states and masks is taken and given back. CN_ERR_ARG: a bound is exceeded. */
cn_status cn_automaton_create(cn_automaton **out, cn_net *net, const cn_vocabulary *vocabulary,
                              uint64_t *bytes);
void cn_automaton_free(cn_automaton *a); /* it has no matchers; NULL is fine */
/* From now on the memory is counted in another sum. */
void cn_automaton_adopt(cn_automaton *a, uint64_t *bytes);

/* The text of one sample. */
typedef struct cn_matcher {
    cn_list_node node; /* in the automaton */
    cn_automaton *automaton;
    uint32_t state;
    cn_unique_items items; /* of the array in progress whose items must differ */
} cn_matcher;

/* Starts with the empty text. The automaton keeps a link to the matcher until cn_matcher_end. */
void cn_matcher_start(cn_matcher *m, cn_automaton *a);
void cn_matcher_end(cn_matcher *m); /* a matcher that was not started is fine */

/* Adds bytes to the text. CN_ERR_ARG when they do not fit, when an item is equal to an earlier one,
 * or when a bound is exceeded. The state is then CN_STATE_NONE. */
cn_status cn_matcher_push(cn_matcher *m, const char *bytes, size_t n);
/* The text matches. */
bool cn_matcher_accepts(const cn_matcher *m);
/* No byte can be added to the text. */
bool cn_matcher_is_complete(const cn_matcher *m);
/* The tokens that may follow: bit i % 32 of word i / 32 is token i. Valid until the automaton is
 * shrunk or freed. Does about *work automaton steps at most and subtracts those that it has done;
 * *mask is NULL when they are too few: the next call goes on. CN_ERR_ARG when a bound is
 * exceeded. */
cn_status cn_matcher_mask(cn_matcher *m, uint64_t *work, const uint32_t **mask);
/* The automaton steps that the mask of this text takes an automaton that has made no state yet; so
 * far, if the mask is not complete. */
uint64_t cn_matcher_mask_cost(const cn_matcher *m);

/* ---- for unique_masks.c ---- */

/* Whether the network has arrays whose items differ; whether one has just begun. */
bool cn_automaton_has_unique(const cn_automaton *a);
bool cn_automaton_opens(const cn_automaton *a, uint32_t state);
/* The state in which one begins: that of the first such node from *node on, which is set to it.
 * CN_STATE_NONE: there is none. *i counts the nodes; the place of node i is for messages. */
cn_status cn_automaton_next_unique(cn_automaton *a, uint32_t *node, uint32_t *i, uint32_t *state);
const char *cn_automaton_unique_place(const cn_automaton *a, uint32_t i);
/* The state after a byte. Adds to *steps what the transition costs an automaton without any. */
cn_status cn_automaton_step(cn_automaton *a, uint32_t from, uint8_t byte, uint32_t *to,
                            uint64_t *steps);
/* The same for a byte that ends an item which equals an earlier one: what goes on is not in an
 * array whose items differ. */
cn_status cn_automaton_step_outside(cn_automaton *a, uint32_t from, uint8_t byte, uint32_t *to,
                                    uint64_t *steps);
const cn_vocabulary *cn_automaton_vocabulary(const cn_automaton *a);

/* What the network reads although it should not: lines of text, or NULL. Valid as long as a. */
const char *cn_automaton_warnings(const cn_automaton *a);

/* Bytes of host memory: of states and masks, and of the network. */
uint64_t cn_automaton_bytes(const cn_automaton *a);
uint64_t cn_automaton_net_bytes(const cn_automaton *a);
/* Forgets all states but those of its matchers and the first one, and their masks. On failure
 * nothing changes. */
cn_status cn_automaton_shrink(cn_automaton *a);
