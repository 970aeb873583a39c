/* unique_masks.h - takes the tokens out of a mask after which the items of an array would not
 * differ (uniqueItems).
 *
 * The automaton is shared by all texts, and its states do not know which items a text has. So its
 * masks also have tokens that end an item which equals an earlier one, or after which every way to
 * end the item does. These tokens are found by a walk over the trie, which passes over those that
 * cannot end an item. What it costs depends on the text alone.
 *
 * Owner: cn_automaton. Thread: that of the automaton. */
#pragma once

#include "engine/grammar/automaton.h"

/* Automaton steps: for one mask, about 20 ms; for cn_automaton_check_unique. */
enum { CN_UNIQUE_MAX_STEPS = 1 << 22, CN_UNIQUE_MAX_CHECK_STEPS = 1 << 26 };

/* Takes them out of *mask, which cn_matcher_mask has given. Adds the automaton steps to *steps.
 * CN_ERR_ARG: they are more than CN_UNIQUE_MAX_STEPS, or a bound is exceeded. */
cn_status cn_matcher_exclude(cn_matcher *m, uint32_t *mask, uint64_t *steps);

/* CN_ERR_ARG with the place if an array that the form may have needs more items than there are
 * different ones, or more steps than CN_UNIQUE_MAX_CHECK_STEPS in sum. */
cn_status cn_automaton_check_unique(cn_automaton *a);
