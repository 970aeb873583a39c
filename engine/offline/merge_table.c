/* merge_table.c - see merge_table.h. Ids are hashes, so their first bits part the table into
 * buckets of about equal size. Each is sorted alone, and searched alone. Heap sort, because qsort
 * of the C library takes more memory for large arrays. */
#include "engine/offline/merge_table.h"

enum { ERROR_BIT = 1, BUCKET_BITS = 16, N_BUCKETS = 1 << BUCKET_BITS };

bool cn_merge_entry_is_error(const cn_merge_entry *e) { return e->id.lo & ERROR_BIT; }

cn_status cn_merge_table_add(cn_merge_table *t, const cn_merge_entry *e)
{
    CN_TRY(CN_ROOM(&t->at, t->len, "the places of the lines"));
    t->at[t->len++] = *e;
    t->n_errors += cn_merge_entry_is_error(e);
    return CN_OK;
}

void cn_merge_table_free(cn_merge_table *t)
{
    cn_free(t->at);
    cn_free(t->bucket_at);
    *t = (cn_merge_table){0};
}

/* ---- order ---- */

static int order_of(uint64_t a, uint64_t b) { return (a > b) - (a < b); }

static int compare_ids(cn_id a, cn_id b)
{
    const int order = order_of(a.hi, b.hi);
    return order ? order : order_of(a.lo | ERROR_BIT, b.lo | ERROR_BIT);
}

static int by_place(const cn_merge_entry *a, const cn_merge_entry *b)
{
    const int order = order_of(a->file, b->file);
    return order ? order : order_of(a->offset, b->offset);
}

static int by_id(const cn_merge_entry *a, const cn_merge_entry *b)
{
    const int order = compare_ids(a->id, b->id);
    return order ? order : by_place(a, b);
}

typedef int (*order_fn)(const cn_merge_entry *a, const cn_merge_entry *b);

/* Moves at[i] down to its place in the heap at[0 .. n). */
static void sift(cn_merge_entry *at, size_t i, size_t n, order_fn order)
{
    const cn_merge_entry moved = at[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && order(&at[child], &at[child + 1]) < 0) child++;
        if (order(&moved, &at[child]) >= 0) break;
        at[i] = at[child];
    }
    at[i] = moved;
}

static void heap_sort(cn_merge_entry *at, size_t n, order_fn order)
{
    for (size_t i = n / 2; i-- > 0;) sift(at, i, n, order);
    while (n-- > 1) {
        const cn_merge_entry last = at[n];
        at[n] = at[0];
        at[0] = last;
        sift(at, 0, n, order);
    }
}

static size_t id_bucket(cn_id id) { return (size_t)(id.hi >> (64 - BUCKET_BITS)); }

/* Moves every entry to its bucket. free_at[b], the first place of bucket b without its own entry,
 * begins as bucket_at[b]. */
static void fill_buckets(cn_merge_table *t, size_t *free_at)
{
    for (size_t b = 0; b < N_BUCKETS; b++)
        while (free_at[b] < t->bucket_at[b + 1]) {
            cn_merge_entry moved = t->at[free_at[b]];
            for (size_t own; (own = id_bucket(moved.id)) != b;) {
                cn_merge_entry *place = &t->at[free_at[own]++];
                const cn_merge_entry other = *place;
                *place = moved;
                moved = other;
            }
            t->at[free_at[b]++] = moved;
        }
}

cn_status cn_merge_table_sort(cn_merge_table *t)
{
    size_t *free_at = cn_calloc(N_BUCKETS, sizeof *free_at);
    t->bucket_at = cn_calloc(N_BUCKETS + 1, sizeof *t->bucket_at);
    if (!free_at || !t->bucket_at) {
        cn_free(free_at);
        return cn_fail(CN_ERR_MEMORY, "out of memory for the places of the lines");
    }
    for (size_t i = 0; i < t->len; i++) t->bucket_at[id_bucket(t->at[i].id) + 1]++;
    for (size_t b = 0; b < N_BUCKETS; b++) t->bucket_at[b + 1] += t->bucket_at[b];
    memcpy(free_at, t->bucket_at, N_BUCKETS * sizeof *free_at);
    fill_buckets(t, free_at);
    cn_free(free_at);
    for (size_t b = 0; b < N_BUCKETS; b++)
        heap_sort(t->at + t->bucket_at[b], t->bucket_at[b + 1] - t->bucket_at[b], by_id);
    return CN_OK;
}

void cn_merge_table_sort_by_place(cn_merge_table *t) { heap_sort(t->at, t->len, by_place); }

cn_merge_entry *cn_merge_table_find(const cn_merge_table *t, cn_id id, size_t *n)
{
    size_t from = t->bucket_at[id_bucket(id)], to = t->bucket_at[id_bucket(id) + 1];
    const size_t end = to;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if (compare_ids(t->at[middle].id, id) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    for (*n = 0; from + *n < end && compare_ids(t->at[from + *n].id, id) == 0;) ++*n;
    return *n ? &t->at[from] : NULL;
}
