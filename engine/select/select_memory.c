/* select_memory.c - see select_memory.h. */
#include "engine/select/select_memory.h"

#include "compress/selector.h"
#include "engine/checkpoint/select_file.h"
#include "engine/select/select.h"

cn_select_scratch cn_select_scratch_of(const cn_config *c, const cn_model_config *m,
                                       uint32_t block_tokens)
{
    const cn_select_limits l = {
        .selectors = cn_config_local_selectors(c),
        .max_tokens = c->kv.select_tokens,
        .max_tiles = c->kv.select_tiles,
        .max_sinks = c->kv.sink_tokens,
        .block_tokens = block_tokens,
        .max_rows = cn_start_max_rows(c),
        .max_model_len = cn_start_max_model_len(c, m),
    };
    return cn_select_scratch_sizes(&l);
}

uint64_t cn_select_logit_bytes(const cn_start_plan *p)
{
    const cn_model_config *m = p->model;
    const uint32_t heads = cn_max_u32(m->n_heads, m->draft.n_heads);
    return (uint64_t)m->n_kv_heads * cn_logit_row(heads / m->n_kv_heads) *
           p->backend->logit_bytes;
}

void cn_select_declare_channels(cn_start_plan *p, cn_memory_part part, const char *channels,
                                const char *offsets, cn_digest *d)
{
    const uint64_t n = cn_select_channels_n(p->model);
    if (cn_select_channels_are_wide(p->model))
        cn_start_add(p, channels, part, n * sizeof *d->wide_channels, &d->wide_channels);
    else
        cn_start_add(p, channels, part, n * sizeof *d->channels, &d->channels);
    cn_start_add(p, offsets, part, n * sizeof *d->offsets, &d->offsets);
}

void cn_select_declare(cn_start_plan *p, cn_select_scratch *s, cn_digest *d)
{
    const cn_config *c = p->config;
    const cn_model_config *m = p->model;
    const cn_selector_needs needs = cn_selectors_need(cn_config_local_selectors(c));
    const cn_select_scratch z = cn_select_scratch_of(c, m, p->kv.block_tokens);
    const uint64_t rows = cn_start_max_rows(c), q_elems = (uint64_t)m->n_heads * m->head_dim;
    const uint32_t n_selecting = m->n_layers - cn_min_u32(c->select_dense_layers, m->n_layers);
    cn_start_add(p, "selection scores", CN_PART_STEPS,
                 (uint64_t)z.room * m->n_kv_heads * sizeof *s->score, &s->score);
    cn_start_add(p, "selection logits", CN_PART_STEPS, z.room * cn_select_logit_bytes(p),
                 &s->logits);
    cn_start_add(p, "selected tokens", CN_PART_STEPS,
                 rows * m->n_kv_heads * z.list_stride * sizeof *s->list, &s->list);
    cn_start_add(p, "selected tiles", CN_PART_STEPS,
                 rows * m->n_kv_heads * z.tile_stride * sizeof *s->tiles, &s->tiles);
    if (needs.slots)
        cn_start_add(p, "predicted queries", CN_PART_STEPS,
                     rows * n_selecting * q_elems * cn_dtype_bytes(p->backend->act_dtype),
                     &s->predicted);
    if (needs.slots && m->latent.rank > 0)
        cn_start_add(p, "predicted queries of the ring", CN_PART_STEPS,
                     rows * m->n_heads * (m->latent.nope + m->latent.rope) *
                         cn_dtype_bytes(p->backend->act_dtype),
                     &s->raw_predicted);
    if (needs.labels)
        cn_select_declare_channels(p, CN_PART_STEPS, "label channels", "label offsets", d);
}
