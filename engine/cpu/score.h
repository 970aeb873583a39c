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
#ifndef CN_SCORE_H
#define CN_SCORE_H

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

/* The CPU functions (engine/cpu/cpu_score.c). */

/* C.2. S[v] = mean over the window's queries of the largest softmax(q.k / sqrt(d))[v] among the
 * group's query heads. Causal inside the last w slots. With CN_FORM_PEAK (compress/rule.h) the
 * largest of them instead, each times 2^(cn_rule_decay_log2 * age), where the newest query has age
 * 0. */
void cn_cpu_score_attention(const cn_score_job *job);
/* C.3. S = max(f * F, S) on the slots [0, n_history), except at the first event; F = S. The factor
 * f is cn_rule_history_factor of n - n_history tokens: alpha with CN_FORM_MEAN. */
void cn_cpu_score_global(const cn_score_job *job);
/* C.4. S[v] = max of S[v-2 .. v+2]. */
void cn_cpu_score_pooling(const cn_score_job *job);
/* S = S * (cn_rule_scale / sum of S over the n slots). 0 if the sum is not above 0. */
void cn_cpu_score_scale(const cn_score_job *job);
/* C.7. R = softmax(row sums / (b * tau)) of the keys' cosines inside each block. The diagonal is 0,
 * and in each column the last row above p is set to 0: of similar keys the newest is kept. */
void cn_cpu_score_lightning(const cn_score_job *job);
/* C.5. The same over all pairs of the sequence, row sums divided by n. O(n^2) time, O(n) memory. */
void cn_cpu_score_flash(const cn_score_job *job);
/* C.5, eq. 4. S = lambda * S - (1 - lambda) * R (convex) or S - lambda * R (subtract). Does not
 * apply without a redundancy score: S is then unchanged. */
void cn_cpu_score_combine(const cn_score_job *job);

#endif
