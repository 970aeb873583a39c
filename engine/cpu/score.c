/* score.c - the table of scores. See score.h. */
#include "engine/cpu/score.h"

#include <string.h>

static bool always(const cn_compress_req *req)
{
    (void)req;
    return true;
}

static bool uses_global(const cn_compress_req *req) { return req->params.global_score; }

static bool uses_pooling(const cn_compress_req *req)
{
    return req->params.pooling == CN_POOLING_ALWAYS ||
           (req->params.pooling == CN_POOLING_FIRST && req->first_event);
}

static bool uses_lightning(const cn_compress_req *req)
{
    return req->params.redundancy == CN_REDUNDANCY_LIGHTNING;
}

static bool uses_flash(const cn_compress_req *req)
{
    return req->params.redundancy == CN_REDUNDANCY_FLASH;
}

static bool uses_redundancy(const cn_compress_req *req)
{
    return req->params.redundancy != CN_REDUNDANCY_NONE;
}

static const cn_score table[] = {
    {"attention", "C.2", "kv-window", "attention of the observation window's queries", always,
     cn_cpu_score_attention},
    {"global", "C.3", "kv-global-score, kv-alpha", "largest decayed score of all events so far",
     uses_global, cn_cpu_score_global},
    {"pooling", "C.4", "kv-pooling", "neighbours of a high score share it (max, width 5)",
     uses_pooling, cn_cpu_score_pooling},
    {"lightning", "C.7", "kv-redundancy, kv-p, kv-tau", "likeness of keys inside each block",
     uses_lightning, cn_cpu_score_lightning},
    {"flash", "C.5", "kv-redundancy, kv-p, kv-tau", "likeness of all pairs of keys", uses_flash,
     cn_cpu_score_flash},
    {"combine", "C.5, eq. 4", "kv-lambda, kv-combine", "attention weighed against redundancy",
     uses_redundancy, cn_cpu_score_combine},
};
enum { N_SCORES = sizeof table / sizeof *table };

const cn_score *cn_score_table(size_t *n_rows)
{
    *n_rows = N_SCORES;
    return table;
}

const cn_score *cn_score_find(const char *name)
{
    for (size_t i = 0; i < N_SCORES; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}
