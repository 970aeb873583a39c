/* merge.h - joins the outputs of several runs over one input into one file: each line of the input
 * once, as one run would have answered it.
 *
 *   outputs --scan--> table of places, sorted by id
 *   input --line by line--> id --find--> the best of its lines --pread--> file beside --> renamed
 *
 * Invariants:
 *   1. The output has one line for each line of the input that has an answer or an error.
 *   2. A process killed at any time leaves the old output, or the new one.
 *   3. Memory: the table, and one line.
 *
 * Of several lines for one request an answer is better than an error line, then one whose request
 * hash is that of the input, then that of the earlier file.
 *
 * Owner: cmd_merge.c. Thread: one, which lets others scan outputs and parse lines of the input. */
#pragma once

#include "engine/options/options.h"

enum { CN_MERGE_IDS_SHOWN = 3, CN_MERGE_ID_BYTES = 80 };

typedef struct cn_merge_report {
    uint64_t n_lines;               /* of the input */
    uint64_t n_answered, n_errors;  /* lines of the output */
    uint64_t n_missing;
    char missing[CN_MERGE_IDS_SHOWN][CN_MERGE_ID_BYTES]; /* the first ids */
    uint64_t n_duplicates;          /* further lines for a request */
    uint64_t n_different;           /* of these, answers with another text */
    uint64_t n_compared;            /* answers whose request was compared with the input's */
    uint64_t n_changed;             /* of these, answers to another request */
    uint64_t n_foreign;             /* lines for no request of the input */
    uint64_t n_flawed;              /* incomplete and damaged lines */
    uint64_t graded, matched;
    uint32_t shard_of;              /* 0: no output is that of a shard */
    bool same_of;                   /* all shards are of that many */
    cn_buf missing_shards;          /* "3,17-19", as Slurm writes an array */
    bool written;
} cn_merge_report;

/* Merges the files as the options of `cinch merge` say. CN_ERR_ARG: a file is no output of
 * run-batch, or of a run whose results differ. Unless --allow-missing is set, nothing is written
 * when lines are missing. */
cn_status cn_merge(const cn_config *c, char *const *files, uint32_t n_files, cn_merge_report *out);
void cn_merge_report_free(cn_merge_report *r);
