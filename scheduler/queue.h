/* queue.h - where sequences stand: the waiting queue of a class and the lists of admitted ones.
 * Owner: cn_scheduler. Thread: engine only. Nothing here allocates but cn_queue_reserve. */
#ifndef CN_QUEUE_H
#define CN_QUEUE_H

#include "scheduler/request.h"

/* True when a stands before b: class, then priority where it counts, then arrival. The one order
 * of all waiting; a preempted request returns to its own place in it, which is the front. */
bool cn_seq_before(const cn_seq *a, const cn_seq *b, bool by_priority);

/* Waiting sequences of one class as a binary heap, foremost at the root. */
typedef struct cn_queue {
    cn_seq **heap; /* [cap] */
    uint32_t n, cap;
    bool by_priority;
} cn_queue;

cn_status cn_queue_reserve(cn_queue *q, uint32_t cap);
void cn_queue_free(cn_queue *q);
void cn_queue_push(cn_queue *q, cn_seq *seq); /* O(log n); room must be reserved */
void cn_queue_remove(cn_queue *q, cn_seq *seq);
cn_seq *cn_queue_peek(const cn_queue *q); /* the foremost, or NULL */

/* Doubly linked through one of the links that each sequence carries. */
typedef enum cn_link {
    CN_LINK_ALL,     /* every sequence not yet released */
    CN_LINK_RUNNING, /* admitted, in order of admission */
    CN_LINK_HOLD,    /* admitted, by what it holds: none, a slot or reservation, compressed */
    CN_LINK_AGED,    /* preempted often: nothing behind it is admitted before it ends */
    CN_N_LINKS
} cn_link;

typedef struct cn_seq_link {
    cn_seq *prev, *next;
} cn_seq_link;

typedef struct cn_seq_list {
    cn_seq *head, *tail;
    uint32_t n;
    cn_link link;
} cn_seq_list;

void cn_seq_list_append(cn_seq_list *l, cn_seq *seq);
void cn_seq_list_remove(cn_seq_list *l, cn_seq *seq);
cn_seq *cn_seq_list_next(const cn_seq_list *l, const cn_seq *seq);

#endif
