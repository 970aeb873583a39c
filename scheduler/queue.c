/* queue.c - a binary heap of waiting sequences and linked lists of sequences. See queue.h. */
#include "scheduler/queue.h"
#include "scheduler/sched_state.h"

bool cn_seq_before(const cn_seq *a, const cn_seq *b, bool by_priority)
{
    if (a->klass != b->klass) return a->klass < b->klass;
    if (by_priority && a->priority != b->priority) return a->priority < b->priority;
    return a->id < b->id;
}

cn_status cn_queue_reserve(cn_queue *q, uint32_t cap)
{
    if (cap <= q->cap) return CN_OK;
    uint32_t doubled = q->cap > UINT32_MAX / 2 ? UINT32_MAX : 2 * q->cap;
    cap = cn_max_u32(cap, doubled);
    cn_seq **heap = cn_realloc(q->heap, cap, sizeof(cn_seq *));
    if (!heap) return cn_fail(CN_ERR_MEMORY, "out of memory for a queue of %u requests", cap);
    q->heap = heap;
    q->cap = cap;
    return CN_OK;
}

void cn_queue_free(cn_queue *q)
{
    cn_free(q->heap);
    *q = (cn_queue){0};
}

static void place_in_heap(cn_queue *q, uint32_t at, cn_seq *seq)
{
    q->heap[at] = seq;
    seq->sched->heap_at = at;
}

/* Moves seq from the empty place `at` towards the root until its parent goes before it. */
static void sift_up(cn_queue *q, uint32_t at, cn_seq *seq)
{
    while (at > 0 && cn_seq_before(seq, q->heap[(at - 1) / 2], q->by_priority)) {
        place_in_heap(q, at, q->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    place_in_heap(q, at, seq);
}

/* Moves seq from the empty place `at` towards the leaves until it goes before its children. */
static void sift_seq_down(cn_queue *q, uint32_t at, cn_seq *seq)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= q->n) break;
        if (child + 1 < q->n && cn_seq_before(q->heap[child + 1], q->heap[child], q->by_priority))
            child++;
        if (!cn_seq_before(q->heap[child], seq, q->by_priority)) break;
        place_in_heap(q, at, q->heap[child]);
        at = child;
    }
    place_in_heap(q, at, seq);
}

void cn_queue_push(cn_queue *q, cn_seq *seq)
{
    CN_ASSERT(q->n < q->cap);
    sift_up(q, q->n++, seq);
}

void cn_queue_remove(cn_queue *q, cn_seq *seq)
{
    uint32_t at = seq->sched->heap_at;
    CN_ASSERT(at < q->n && q->heap[at] == seq);
    cn_seq *last = q->heap[--q->n];
    if (last == seq) return;
    sift_seq_down(q, at, last);
    sift_up(q, last->sched->heap_at, last);
}

cn_seq *cn_queue_peek(const cn_queue *q) { return q->n ? q->heap[0] : NULL; }

void cn_seq_list_append(cn_seq_list *l, cn_seq *seq)
{
    cn_seq_link *link = &seq->sched->links[l->link];
    *link = (cn_seq_link){l->tail, NULL};
    if (l->tail)
        l->tail->sched->links[l->link].next = seq;
    else
        l->head = seq;
    l->tail = seq;
    l->n++;
}

void cn_seq_list_remove(cn_seq_list *l, cn_seq *seq)
{
    cn_seq_link *link = &seq->sched->links[l->link];
    if (link->prev)
        link->prev->sched->links[l->link].next = link->next;
    else
        l->head = link->next;
    if (link->next)
        link->next->sched->links[l->link].prev = link->prev;
    else
        l->tail = link->prev;
    *link = (cn_seq_link){NULL, NULL};
    l->n--;
}

cn_seq *cn_seq_list_next(const cn_seq_list *l, const cn_seq *seq)
{
    return seq->sched->links[l->link].next;
}
