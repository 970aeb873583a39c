/* unique_items.h - the items that the array in progress has so far, for arrays of strings, numbers
 * and literals whose items must differ (uniqueItems).
 *
 * Two items are equal as JSON: strings by their characters, however they are escaped, integers by
 * their digits, other numbers by their value in f64. An array with other items is not followed.
 *
 * A set has a hash of each beginning of each string and of each whole item, so that reading a byte
 * takes a constant time, however many items there are. What was added last is taken back first.
 *
 * Owner: cn_matcher, one for each text. Thread: that of the automaton. */
#pragma once

#include "engine/base/base.h"

enum { CN_ITEM_ESCAPE_BYTES = 12 }; /* two halves of a character: \uD83D\uDE00 */

typedef enum cn_items_place {
    CN_ITEMS_NONE, /* no array whose items differ is open */
    CN_ITEMS_BEFORE,
    CN_ITEMS_STRING,
    CN_ITEMS_WORD, /* in a number or literal */
    CN_ITEMS_AFTER
} cn_items_place;

/* What changes while a text is read: earlier bytes of `text` and elements of `known` do not. */
typedef struct cn_items_mark {
    cn_items_place place;
    uint32_t n, base; /* items, and the first one of the array */
    uint32_t begin;   /* of the item in progress */
    uint32_t len;     /* of `text` */
    uint32_t n_known;
    uint64_t hash; /* of the item in progress, a string */
    uint8_t n_escape;
    char escape[CN_ITEM_ESCAPE_BYTES]; /* an unfinished escape sequence */
    bool is_new; /* the item in progress is a string and begins like no item of the array */
} cn_items_mark;

/* Zero: no array is open. */
typedef struct cn_unique_items {
    cn_items_mark at;
    cn_buf text;
    uint64_t *known; /* [cap_known] the hashes of the set, in the order in which they were added */
    uint64_t *slots; /* [n_slots] the set; 0: free */
    uint32_t cap_known, n_slots; /* n_slots: a power of two, or 0 */
    uint64_t steps;              /* searches in the set */
} cn_unique_items;

void cn_unique_items_free(cn_unique_items *u);

/* Takes a byte of the text. opens: an array whose items differ begins with it, if it is a '['.
 * *same: it ends an item that equals an earlier one of the array. CN_ERR_MEMORY. */
cn_status cn_unique_items_read(cn_unique_items *u, uint8_t byte, bool opens, bool *same);

/* Goes back to what u->at was before some bytes were read. */
void cn_unique_items_back(cn_unique_items *u, const cn_items_mark *mark);

/* The bytes so far will not be taken back: forgets what is not needed. */
void cn_unique_items_keep(cn_unique_items *u);
