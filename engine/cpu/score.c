/* score.c - the table of scores. See score.h. */
#include "engine/cpu/score.h"

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
    {"attention", always, cn_cpu_score_attention},
    {"global", uses_global, cn_cpu_score_global},
    {"pooling", uses_pooling, cn_cpu_score_pooling},
    {"lightning", uses_lightning, cn_cpu_score_lightning},
    {"flash", uses_flash, cn_cpu_score_flash},
    {"combine", uses_redundancy, cn_cpu_score_combine},
};

const cn_score *cn_score_table(size_t *n_rows)
{
    *n_rows = sizeof table / sizeof *table;
    return table;
}
