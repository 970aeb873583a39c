/* fp8_pool.c - see fp8_pool.h. */
#include "tests/lib/fp8_pool.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/base.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_rows.h"
#include "tests/lib/bf16.h"

/* Calls visit for each row of K and V. */
static void each_row(const cn_kv_layout *l, void *ctx,
                     void (*visit)(void *ctx, cn_cpu_place at, cn_kv_part part))
{
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t block = 0; block < l->n_blocks; block++)
            for (uint32_t head = 0; head < l->n_kv_heads; head++)
                for (uint32_t slot = 0; slot < l->block_tokens; slot++) {
                    visit(ctx, (cn_cpu_place){layer, block, head, slot}, CN_KV_K);
                    visit(ctx, (cn_cpu_place){layer, block, head, slot}, CN_KV_V);
                }
}

typedef struct two_pools {
    const fp8_pool *fp8;
    const cn_kv_layout *layout;
    float *kv;
} two_pools;

static float *plain_row(const two_pools *p, cn_cpu_place at, cn_kv_part part)
{
    return p->kv + cn_kv_row(p->layout, at.layer, at.block, at.head, at.slot, part);
}

static void store(void *ctx, cn_cpu_place at, cn_kv_part part)
{
    const two_pools *p = ctx;
    float *row = plain_row(p, at, part);
    cn_cpu_store_row(&p->fp8->layout, p->fp8->kv, at, part, row);
    cn_cpu_read_rows(&p->fp8->layout, p->fp8->kv, at, part, 1, row);
}

fp8_pool fp8_pool_make(const cn_kv_layout *l, float *kv)
{
    fp8_pool p = {.layout = cn_kv_layout_form(l->n_layers, l->n_blocks, l->n_kv_heads,
                                              l->block_tokens, l->head_dim, l->act_dtype,
                                              CN_KV_FP8)};
    p.kv = cn_calloc_aligned(cn_kv_pool_bytes(&p.layout), 1);
    assert_non_null(p.kv);
    each_row(l, &(two_pools){&p, l, kv}, store);
    return p;
}

void fp8_pool_free(fp8_pool *p) { cn_free(p->kv); }

static void compare(void *ctx, cn_cpu_place at, cn_kv_part part)
{
    const two_pools *p = ctx;
    float room[CN_CPU_MAX_HEAD_DIM];
    const float *want = plain_row(p, at, part);
    cn_cpu_read_rows(&p->fp8->layout, p->fp8->kv, at, part, 1, room);
    for (uint32_t i = 0; i < p->layout->head_dim; i++)
        if (!(room[i] == want[i] || (isnan(room[i]) && isnan(want[i]))))
            fail_msg("block %u, slot %u, part %d, element %u: %g is not %g", at.block, at.slot,
                     part, i, (double)room[i], (double)want[i]);
}

void fp8_pool_assert_equal(const fp8_pool *p, const cn_kv_layout *l, const float *kv)
{
    two_pools both = {p, l, (float *)(uintptr_t)kv};
    each_row(l, &both, compare);
}

typedef struct bf16_rows {
    const fp8_pool *fp8;
    const cn_kv_layout *layout;
    uint16_t *kv;
} bf16_rows;

static void round_row(void *ctx, cn_cpu_place at, cn_kv_part part)
{
    const bf16_rows *p = ctx;
    float room[CN_CPU_MAX_HEAD_DIM];
    uint16_t *to = p->kv + cn_kv_row(p->layout, at.layer, at.block, at.head, at.slot, part);
    cn_cpu_read_rows(&p->fp8->layout, p->fp8->kv, at, part, 1, room);
    for (uint32_t i = 0; i < p->layout->head_dim; i++) to[i] = to_bf16(room[i]);
}

uint16_t *fp8_pool_take_bf16(const fp8_pool *p, const cn_kv_layout *l)
{
    bf16_rows rows = {p, l, cn_calloc(cn_kv_pool_elems(l), sizeof(uint16_t))};
    assert_non_null(rows.kv);
    each_row(l, &rows, round_row);
    return rows.kv;
}
