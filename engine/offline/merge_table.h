/* merge_table.h - where the answer to each request is: an array of 48 bytes for each line of the
 * outputs, sorted by id. No line is held in memory.
 *
 * Owner: merge.c. Thread: one. */
#pragma once

#include "engine/offline/id_set.h"

typedef struct cn_merge_entry {
    cn_id id; /* the lowest bit of id.lo: the line is an error line */
    uint64_t request_hash;
    uint64_t offset; /* of the line in its file */
    uint64_t input_line; /* number of the line that it answers; 0: none so far */
    uint32_t file;   /* index of the argument */
    uint32_t n;      /* bytes without the newline */
} cn_merge_entry;

typedef struct cn_merge_table {
    cn_merge_entry *at; /* [len] */
    size_t len, n_errors;
    size_t *bucket_at; /* sorted: where the ids begin that have the same first bits */
} cn_merge_table; /* zero-initialise */

bool cn_merge_entry_is_error(const cn_merge_entry *e);

cn_status cn_merge_table_add(cn_merge_table *t, const cn_merge_entry *e);
/* Sorts by id, once; lines of one id in the order of their files and offsets. */
cn_status cn_merge_table_sort(cn_merge_table *t);
/* Sorts by file and offset. Ends the use of _find. */
void cn_merge_table_sort_by_place(cn_merge_table *t);
/* The first entry of an id and, in *n, how many there are; NULL: none. The table must be sorted. */
cn_merge_entry *cn_merge_table_find(const cn_merge_table *t, cn_id id, size_t *n);
void cn_merge_table_free(cn_merge_table *t);
