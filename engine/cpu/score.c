/* score.c - the table of scores. See score.h. */
#include "engine/cpu/score.h"

#include "compress/rule.h"

static bool uses_attention(const cn_compress_req *req)
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

static bool uses_scale(const cn_compress_req *req) { return cn_rule_scale(&req->params) > 0; }

static bool uses_lightning(const cn_compress_req *req)
{
    return req->params.redundancy == CN_REDUNDANCY_LIGHTNING;
}

static bool uses_flash(const cn_compress_req *req)
{
    return req->params.redundancy == CN_REDUNDANCY_FLASH;
}

static bool uses_combine(const cn_compress_req *req)
{
    return req->params.redundancy != CN_REDUNDANCY_NONE;
}

#define SCORE_ROW(KIND, name) {#name, uses_##name, cn_cpu_score_##name},
static const cn_score table[CN_N_SCORES] = {CN_SCORES(SCORE_ROW)};

const cn_score *cn_score_table(size_t *n_rows)
{
    *n_rows = sizeof table / sizeof *table;
    return table;
}
