/* score.h - the table of scores that decide which tokens a `zip` event keeps.
 *
 * A score is one row: its name, the requests that use it, and its CPU function, which is the
 * specification for other backends. An event runs the rows that apply, in table order, separately
 * for each (layer, kv head). Every row reads and writes one cn_score_job.
 * A row changes job->score in place, because later rows read only S and R. The row `global` stores
 * S as F, so a row before it changes F and a row after it does not. A row before `pooling` is
 * pooled. docs/HACKING.md lists the steps of adding a score, on the GPU too.
 *
 * Thread: the rows run on the event stream. The table is constant.
 * DESIGN.md §2, paper (Zipage) appendix C. */
#pragma once

#include "engine/ops.h"

/* One (layer, kv head) of one request's event. n resident slots, d = head_dim. Slots are in token
 * order, except those that an earlier event filled as holes (move `fill`). Rules about newer tokens
 * and neighbours then use the order of slots. The window is always in token order. */
typedef struct cn_score_job {
    const cn_pools *pools;
    const cn_compress_req *req;
    uint32_t layer, kv_head, n;
    const float *keys_t; /* [d, n] the head's keys, transposed */
    float *score;        /* [n] S after each row; the final score after the last row */
    float *redundancy;   /* [n] R */
    float *work;         /* [cn_score_work_floats(pools, n)] */
} cn_score_job;

typedef struct cn_score {
    const char *name;
    bool (*applies)(const cn_compress_req *req);
    void (*cpu)(const cn_score_job *job);
} cn_score;

/* Returns the rows, in the order in which they apply. */
const cn_score *cn_score_table(size_t *n_rows);

/* Returns the floats of job->work that any row needs for n slots. */
size_t cn_score_work_floats(const cn_pools *pools, uint32_t n);
