/* id_set.h - which requests of a batch are done, and which were seen: a hash set of 126-bit ids.
 * Each id has two marks and the hash of the request that was answered. In a run, only this set
 * grows with the file: 32 to 64 bytes per line, independent of the line's length. The probability
 * that two of 10^9 lines have the same id is 10^-20.
 *
 * Owner: cn_batch_run. Thread: one. Stage: 1. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_id {
    uint64_t hi, lo; /* the two lowest bits of lo are 0 */
} cn_id;

/* The id of text[n] of one kind. The same text of another kind has another id. */
cn_id cn_id_of(const char *kind, const void *text, size_t n);

enum { CN_ID_TEXT_BYTES = 33 };
void cn_id_format(cn_id id, char text[CN_ID_TEXT_BYTES]); /* 32 lower-case hex digits */
bool cn_id_parse(const char *text, cn_id *out);           /* false: text is not 32 hex digits */

typedef enum cn_id_mark {
    CN_ID_DONE = 1, /* the output has its line */
    CN_ID_SEEN = 2  /* the input had it in this run */
} cn_id_mark;

typedef struct cn_id_slot {
    cn_id id;
    uint64_t request_hash;
} cn_id_slot;

typedef struct cn_id_set {
    cn_id_slot *slots;
    size_t cap, len;
} cn_id_set; /* zero-initialise */

/* The marks of an id; 0 if it is not in the set. */
unsigned cn_id_set_marks(const cn_id_set *s, cn_id id);
cn_status cn_id_set_add(cn_id_set *s, cn_id id, cn_id_mark mark);
/* Sets and returns the hash of the request that the output line of an id answers
 * (cn_batch_item.request_hash); 0 if unknown. An id must be in the set before its hash is set. */
void cn_id_set_put_hash(cn_id_set *s, cn_id id, uint64_t request_hash);
uint64_t cn_id_set_hash(const cn_id_set *s, cn_id id);
void cn_id_set_free(cn_id_set *s);
