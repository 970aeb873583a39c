/* merge_table.c - heap sort, because qsort of the C library takes more memory for large arrays. See
 * merge_table.h. */
#include "engine/offline/merge_table.h"

enum { ERROR_BIT = 1 };

bool cn_merge_entry_is_error(const cn_merge_entry *e) { return e->id.lo & ERROR_BIT; }

cn_status cn_merge_table_add(cn_merge_table *t, const cn_merge_entry *e)
{
    CN_TRY(CN_ROOM(&t->at, t->len, "the places of the lines"));
    t->at[t->len++] = *e;
    return CN_OK;
}

void cn_merge_table_free(cn_merge_table *t)
{
    cn_free(t->at);
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

static void sort_table(cn_merge_table *t, order_fn order)
{
    for (size_t i = t->len / 2; i-- > 0;) sift(t->at, i, t->len, order);
    for (size_t n = t->len; n-- > 1;) {
        const cn_merge_entry last = t->at[n];
        t->at[n] = t->at[0];
        t->at[0] = last;
        sift(t->at, 0, n, order);
    }
}

void cn_merge_table_sort(cn_merge_table *t) { sort_table(t, by_id); }
void cn_merge_table_sort_by_place(cn_merge_table *t) { sort_table(t, by_place); }

cn_merge_entry *cn_merge_table_find(const cn_merge_table *t, cn_id id, size_t *n)
{
    size_t from = 0, to = t->len;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if (compare_ids(t->at[middle].id, id) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    for (*n = 0; from + *n < t->len && compare_ids(t->at[from + *n].id, id) == 0;) ++*n;
    return *n ? &t->at[from] : NULL;
}
