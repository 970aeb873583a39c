/* cpu_compact.c - moves the kept slots of one (layer, kv head) into the target blocks (paper C.6,
 * algorithm 4).
 *
 * Target slot i receives slot kept[i] >= i, with move `order` and with move `fill`. Therefore, when
 * slot s of target block j is written, every slot below j*b + s has been read or dropped. If target
 * block j is also source block i <= j, the overwritten slot is one of these, and moving in place is
 * safe. If i > j the slot may not have been read yet, so source block i is copied to the stage
 * before the first move. */

#include "compress/rule.h"
#include "engine/base/base.h"
#include "engine/cpu/cpu_compress.h"

void cn_cpu_stage_plan(const cn_compress_req *req, uint32_t *index, cn_cpu_stage *stage)
{
    *stage = (cn_cpu_stage){.index = index};
    for (uint32_t i = 0; i < req->n_blocks; i++) {
        index[i] = CN_CPU_NOT_STAGED;
        for (uint32_t j = 0; j < cn_min_u32(i, req->n_target); j++)
            if (req->target[j] == req->table[i]) index[i] = stage->n_staged++;
    }
}

/* A staged block has all parts of K and V in the layout of the pool, then F, then P. */
static size_t staged_floats(const cn_kv_layout *l)
{
    return l->head_bytes / sizeof(float) + 2 * (size_t)l->block_tokens;
}

size_t cn_cpu_stage_floats(const cn_pools *pools, uint32_t n)
{
    return n / pools->layout.block_tokens * staged_floats(&pools->layout);
}

/* The part of one head in a block: contiguous rows and side entries. */
typedef struct head_block {
    char *kv;         /* [b/tile, tile_bytes] */
    float *score;     /* [b] or NULL */
    uint32_t *origin; /* [b] or NULL */
} head_block;

static head_block in_pool(const cn_pools *p, uint32_t layer, uint32_t block, uint32_t head)
{
    size_t side = cn_kv_side(&p->layout, layer, block, head, 0);
    return (head_block){
        .kv = (char *)p->kv + cn_kv_at(&p->layout, layer, block, head, 0, CN_KV_K),
        .score = p->score ? p->score + side : NULL,
        .origin = p->origin ? p->origin + side : NULL,
    };
}

static head_block in_stage(const cn_pools *p, float *stage_mem, uint32_t index)
{
    float *kv = stage_mem + index * staged_floats(&p->layout);
    float *score = kv + p->layout.head_bytes / sizeof *kv;
    return (head_block){
        .kv = (char *)kv,
        .score = p->score ? score : NULL,
        .origin = p->origin ? (uint32_t *)(score + p->layout.block_tokens) : NULL,
    };
}

static void copy_aside(const cn_kv_layout *l, head_block dst, head_block src)
{
    const size_t b = l->block_tokens;
    memcpy(dst.kv, src.kv, l->head_bytes);
    if (src.score) memcpy(dst.score, src.score, b * sizeof *dst.score);
    if (src.origin) memcpy(dst.origin, src.origin, b * sizeof *dst.origin);
}

/* Moves n_rows slots. They are consecutive and in one tile, in src and in dst. Both blocks may be
 * the same. */
static void move_run(const cn_kv_layout *l, head_block dst, uint32_t dst_slot, head_block src,
                     uint32_t src_slot, uint32_t n_rows)
{
    for (uint32_t part = 0; part < l->n_parts; part++)
        memmove(dst.kv + cn_kv_in_head(l, dst_slot, (cn_kv_part)part),
                src.kv + cn_kv_in_head(l, src_slot, (cn_kv_part)part),
                (size_t)n_rows * l->part[part].row_bytes);
    if (dst.score)
        memmove(dst.score + dst_slot, src.score + src_slot, n_rows * sizeof *dst.score);
    if (dst.origin)
        memmove(dst.origin + dst_slot, src.origin + src_slot, n_rows * sizeof *dst.origin);
}

/* Writes P of the target slots whose source slots have none: before its first event a request has
 * no P, later no slot from n_history on has it. */
static void write_positions(const cn_pools *p, const cn_compress_req *req, uint32_t layer,
                            uint32_t kv_head, const uint32_t *kept)
{
    const uint32_t b = p->layout.block_tokens;
    const uint32_t first = req->first_event ? 0 : req->position_end - req->n_blocks * b;
    const uint32_t n_written = cn_rule_old_slots(req);
    for (uint32_t i = 0; i < req->n_target * b; i++)
        if (kept[i] >= n_written)
            p->origin[cn_kv_side(&p->layout, layer, req->target[i / b], kv_head, i % b)] =
                first + kept[i];
}

void cn_cpu_compact(const cn_pools *pools, const cn_compress_req *req, uint32_t layer,
                    uint32_t kv_head, const uint32_t *kept, const cn_cpu_stage *stage,
                    float *stage_mem)
{
    const cn_kv_layout *l = &pools->layout;
    const uint32_t b = l->block_tokens, tile = l->tile_tokens, n_kept = req->n_target * b;
    for (uint32_t i = 0; stage->n_staged > 0 && i < req->n_blocks; i++)
        if (stage->index[i] != CN_CPU_NOT_STAGED)
            copy_aside(l, in_stage(pools, stage_mem, stage->index[i]),
                       in_pool(pools, layer, req->table[i], kv_head));

    for (uint32_t i = 0, n_run; i < n_kept; i += n_run) {
        uint32_t room = tile - cn_max_u32(i % tile, kept[i] % tile);
        for (n_run = 1; n_run < room && kept[i + n_run] == kept[i] + n_run;) n_run++;
        uint32_t src_block = kept[i] / b, src_slot = kept[i] % b;
        uint32_t dst_block = i / b, dst_slot = i % b;
        bool staged = stage->index[src_block] != CN_CPU_NOT_STAGED;
        if (req->table[src_block] == req->target[dst_block] && src_slot == dst_slot) continue;
        head_block src = staged ? in_stage(pools, stage_mem, stage->index[src_block])
                                : in_pool(pools, layer, req->table[src_block], kv_head);
        move_run(l, in_pool(pools, layer, req->target[dst_block], kv_head), dst_slot, src, src_slot,
                 n_run);
    }
    if (pools->origin) write_positions(pools, req, layer, kv_head, kept);
}
