/* id_set.h - which requests of a batch are done, and which were seen: a hash set of 126-bit ids
 * with two marks each, and a hash of what an answered line asked. This is the only thing of a run
 * that grows with the file: 32 to 64 bytes per line, whatever the line holds. Two texts with one
 * id: 10^9 lines have odds of 10^-20.
 *
 * Owner: cn_batch_run. Thread: one. Stage: 1. */
#ifndef CN_ID_SET_H
#define CN_ID_SET_H

#include "engine/base.h"

typedef struct cn_id {
    uint64_t hi, lo; /* the two lowest bits of lo are 0 */
} cn_id;

/* The id of text[n] of one kind: ids of different kinds differ. */
cn_id cn_id_of(const char *kind, const void *text, size_t n);

enum { CN_ID_TEXT_BYTES = 33 };
void cn_id_format(cn_id id, char text[CN_ID_TEXT_BYTES]); /* 32 lower-case hex digits */
bool cn_id_parse(const char *text, cn_id *out);           /* false: not such a text */

typedef enum cn_id_mark {
    CN_ID_DONE = 1, /* the output has its line */
    CN_ID_SEEN = 2  /* the input had it in this run */
} cn_id_mark;

typedef struct cn_id_slot {
    cn_id id;
    uint64_t asked;
} cn_id_slot;

typedef struct cn_id_set {
    cn_id_slot *slots;
    size_t cap, len;
} cn_id_set; /* zero-initialise */

/* The marks of an id: 0 when it is not in the set. */
unsigned cn_id_set_marks(const cn_id_set *s, cn_id id);
cn_status cn_id_set_add(cn_id_set *s, cn_id id, cn_id_mark mark);
/* The hash of the request that the output line of an id answers (cn_batch_item.asked); 0 when
 * unknown. An id must be in the set to be given one. */
void cn_id_set_put_asked(cn_id_set *s, cn_id id, uint64_t asked);
uint64_t cn_id_set_asked(const cn_id_set *s, cn_id id);
void cn_id_set_free(cn_id_set *s);

#endif
