/* queue.h - the waiting queue of a class, and the scheduler's linked lists of sequences.
 * Owner: cn_scheduler. Thread: engine only. Only cn_queue_reserve allocates. */
#pragma once

#include "scheduler/request.h"

/* Returns true when a goes before b: by class, then by priority if by_priority, then by arrival.
 * All queues use this order. A preempted request keeps its id, so it returns to its old place,
 * ahead of later arrivals. */
bool cn_seq_before(const cn_seq *a, const cn_seq *b, bool by_priority);

/* Waiting sequences of one class as a binary heap. The foremost is at the root. */
typedef struct cn_queue {
    cn_seq **heap; /* [cap] */
    uint32_t n, cap;
    bool by_priority;
} cn_queue;

/* Makes room for at least cap sequences. CN_ERR_MEMORY. */
cn_status cn_queue_reserve(cn_queue *q, uint32_t cap);
void cn_queue_free(cn_queue *q);
void cn_queue_push(cn_queue *q, cn_seq *seq); /* O(log n); room must be reserved */
void cn_queue_remove(cn_queue *q, cn_seq *seq);
cn_seq *cn_queue_peek(const cn_queue *q); /* the foremost, or NULL */

/* The doubly linked lists. Each sequence carries one link for each value. */
typedef enum cn_link {
    CN_LINK_ALL,     /* every sequence not yet released */
    CN_LINK_RUNNING, /* admitted, in order of admission */
    CN_LINK_HOLD,    /* admitted; one list for each cn_hold */
    CN_LINK_AGED,    /* preempted CN_AGED_PREEMPTIONS times; until it ends, none behind it enters */
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

/* Each takes constant time. `next` returns the sequence after seq; NULL after the last. */
void cn_seq_list_append(cn_seq_list *l, cn_seq *seq);
void cn_seq_list_remove(cn_seq_list *l, cn_seq *seq);
cn_seq *cn_seq_list_next(const cn_seq_list *l, const cn_seq *seq);
