/* select_probe.c - see select_probe.h.
 *
 * The lists of two steps are kept. A row finds its own list of the previous step by the place of
 * its previous token in the pool, which no other sequence can write. */
#include "engine/select/select_probe.h"

#include <math.h>

#include "engine/cpu/cpu_rows.h"

/* The lists of the rows of a step, without sinks. */
typedef struct step_lists {
    uint32_t n_rows;
    uint32_t *position; /* [max_rows] */
    uint32_t *slot;     /* [max_rows] where the row's K lies: block * block_tokens + slot */
    uint32_t *n;        /* [max_rows] tokens of each list; 0: the row attends to all tokens */
    uint32_t *tokens;   /* [max_rows, n_layers, hk, stride], in ascending order */
} step_lists;

struct cn_select_probe {
    uint32_t every, max_rows, n_layers, first_layer, n_kv_heads, stride;
    step_lists steps[2];
    step_lists *now, *before; /* the two of steps */
    uint32_t *previous;       /* [max_rows] the row in `before`, or CN_NO_SLOT */
    uint32_t *oracle;         /* [hk, stride] */
    cn_select_figures sums;
};

static uint32_t *list_at(const cn_select_probe *p, const step_lists *s, uint32_t row,
                         uint32_t layer, uint32_t head)
{
    const size_t unit =
        ((size_t)row * p->n_layers + layer - p->first_layer) * p->n_kv_heads + head;
    return s->tokens + unit * p->stride;
}

/* ---- the lists of neighbouring steps ---- */

static uint32_t slot_of(const cn_batch_view *b, uint32_t block_tokens, uint32_t row,
                        uint32_t position)
{
    const uint32_t *table = b->tables + (size_t)row * b->table_stride;
    return table[position / block_tokens] * block_tokens + position % block_tokens;
}

static uint32_t find_previous(const step_lists *s, uint32_t position, uint32_t slot)
{
    for (uint32_t r = 0; r < s->n_rows; r++)
        if (s->n[r] > 0 && s->position[r] == position && s->slot[r] == slot) return r;
    return CN_NO_SLOT;
}

static void begin_probe_step(cn_select_probe *p, const cn_attend_selected_args *a,
                             const uint32_t *n_forced)
{
    const cn_batch_view *b = a->attn.batch;
    const uint32_t block_tokens = a->attn.layout.block_tokens;
    step_lists *s = p->before;
    p->before = p->now;
    p->now = s;
    CN_ASSERT(b->n_decode <= p->max_rows);
    s->n_rows = b->n_decode;
    for (uint32_t r = 0; r < b->n_decode; r++) {
        p->previous[r] = CN_NO_SLOT;
        s->n[r] = 0;
        if (a->rows.list_len[r] == 0) continue;
        const uint32_t position = b->kv_len[r] - 1;
        s->position[r] = position;
        s->slot[r] = slot_of(b, block_tokens, r, position);
        s->n[r] = a->rows.list_len[r] - n_forced[r];
        p->previous[r] = find_previous(p->before, position - 1,
                                       slot_of(b, block_tokens, r, position - 1));
    }
}

static void keep_lists(cn_select_probe *p, const cn_attend_selected_args *a, uint32_t row)
{
    const uint32_t n = p->now->n[row];
    for (uint32_t h = 0; h < p->n_kv_heads; h++) {
        const uint32_t *list =
            a->scratch.list + ((size_t)row * p->n_kv_heads + h) * a->scratch.list_stride;
        memcpy(list_at(p, p->now, row, a->attn.layer, h), list + a->rows.list_len[row] - n,
               n * sizeof *list);
    }
}

/* ---- the figures ---- */

/* The share of list[n] that is in other[n_other]; both are in ascending order. */
static double share_in(const uint32_t *list, uint32_t n, const uint32_t *other, uint32_t n_other)
{
    uint32_t common = 0;
    for (uint32_t i = 0, j = 0; i < n && j < n_other;) {
        common += list[i] == other[j];
        const bool next = list[i] <= other[j];
        j += list[i] >= other[j];
        i += next;
    }
    return (double)common / n;
}

/* What `oracle` would select for a row in a layer, for each kv head. */
static cn_status select_oracle(cn_select_probe *p, const cn_select_step *step,
                               const cn_attend_selected_args *a, uint32_t row)
{
    const cn_sel_stage stage = {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MAX};
    const uint32_t base = a->rows.n_forced[row], first = 0, n_forced = 0;
    const uint32_t n = a->rows.tail[row] - base, k = p->now->n[row];
    const cn_batch_view *b = step->batch;
    const size_t q_row = (size_t)a->attn.n_heads * a->attn.layout.head_dim;
    const cn_score_args score = {
        .q = {[CN_SEL_TRUE] = (const float *)a->attn.q + row * q_row},
        .q_stride = {[CN_SEL_TRUE] = q_row},
        .stage = &stage,
        .pools = *step->pools,
        .tables = b->tables + (size_t)row * b->table_stride,
        .table_stride = b->table_stride,
        .first = &first,
        .n = &n,
        .base = &base,
        .seed = a->rows.seed + row,
        .n_seqs = 1,
        .first_layer = a->attn.layer,
        .n_layers = 1,
        .logits = a->scratch.logits,
        .out = a->scratch.score,
    };
    CN_TRY(step->be->score(step->stream, &score));
    const cn_select_args select = {
        .score = score.out,
        .stage = &stage,
        .first = &first,
        .n = &n,
        .base = &base,
        .k = &k,
        .n_forced = &n_forced,
        .n_seqs = 1,
        .n_layers = 1,
        .n_kv_heads = p->n_kv_heads,
        .tokens = true,
        .list = p->oracle,
        .list_stride = p->stride,
    };
    return step->be->select(step->stream, &select);
}

/* exp(logit - the largest logit) of the first n tokens for one query head; returns their sum. */
static double weigh_probe(const cn_attn_args *a, uint32_t row, uint32_t head, uint32_t n,
                          float *weight)
{
    const cn_kv_layout *l = &a->layout;
    const uint32_t *table = a->batch->tables + (size_t)row * a->batch->table_stride;
    const uint32_t d = l->head_dim, b = l->block_tokens;
    const uint32_t kv_head = head / (a->n_heads / l->n_kv_heads);
    const float *q = (const float *)a->q + ((size_t)row * a->n_heads + head) * d;
    float largest = -INFINITY, room[CN_CPU_MAX_ROW];
    for (uint32_t i = 0; i < n; i++) {
        const cn_cpu_place at = {a->layer, table[i / b], kv_head, i % b};
        const float *k = cn_cpu_rows(l, a->kv, at, CN_KV_K, 1, room);
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (uint32_t c = 0; c < d; c++) dot += q[c] * k[c];
        weight[i] = dot * a->scale;
        largest = fmaxf(largest, weight[i]);
    }
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        weight[i] = expf(weight[i] - largest);
        sum += (double)weight[i];
    }
    return sum;
}

/* The mean over a kv head's query heads of the mass of the tokens that the row attended to. */
static double mass_of(const cn_attend_selected_args *a, uint32_t row, uint32_t kv_head,
                      float *weight)
{
    const uint32_t group = a->attn.n_heads / a->attn.layout.n_kv_heads;
    const uint32_t n = a->attn.batch->kv_len[row];
    const uint32_t *list =
        a->scratch.list +
        ((size_t)row * a->attn.layout.n_kv_heads + kv_head) * a->scratch.list_stride;
    double mass = 0;
    for (uint32_t g = 0; g < group; g++) {
        const double all = weigh_probe(&a->attn, row, kv_head * group + g, n, weight);
        double read = 0;
        for (uint32_t i = 0; i < a->rows.list_len[row]; i++) read += (double)weight[list[i]];
        for (uint32_t i = a->rows.tail[row]; i < n; i++) read += (double)weight[i];
        mass += read / all;
    }
    return mass / group;
}

static cn_status measure_probe(cn_select_probe *p, const cn_select_step *step,
                               const cn_attend_selected_args *a, uint32_t row)
{
    const uint32_t layer = a->attn.layer, n = p->now->n[row], previous = p->previous[row];
    cn_select_figures *f = &p->sums;
    f->steps += layer == p->first_layer;
    CN_TRY(select_oracle(p, step, a, row));
    for (uint32_t h = 0; h < p->n_kv_heads; h++) {
        const uint32_t *list = list_at(p, p->now, row, layer, h);
        f->units++;
        f->mass += mass_of(a, row, h, a->scratch.logits);
        f->overlap += share_in(list, n, p->oracle + (size_t)h * p->stride, n);
        if (previous == CN_NO_SLOT) continue;
        f->n_churn++;
        f->churn += 1 - share_in(list, n, list_at(p, p->before, previous, layer, h),
                                 p->before->n[previous]);
    }
    return CN_OK;
}

cn_status cn_select_probe_observe(cn_select_probe *p, const cn_select_step *step,
                                  const cn_attend_selected_args *a)
{
    if (a->attn.layer == p->first_layer) begin_probe_step(p, a, a->rows.n_forced);
    for (uint32_t r = 0; r < p->now->n_rows; r++) {
        if (p->now->n[r] == 0) continue;
        keep_lists(p, a, r);
        if (p->now->position[r] % p->every == 0) CN_TRY(measure_probe(p, step, a, r));
    }
    return CN_OK;
}

cn_select_figures cn_select_probe_take(cn_select_probe *p)
{
    const cn_select_figures sums = p->sums;
    p->sums = (cn_select_figures){0};
    p->now->n_rows = 0;
    return sums;
}

static bool try_make_lists(const cn_select_probe *p, step_lists *s)
{
    const size_t rows = p->max_rows;
    s->position = cn_calloc(rows, sizeof *s->position);
    s->slot = cn_calloc(rows, sizeof *s->slot);
    s->n = cn_calloc(rows, sizeof *s->n);
    s->tokens = cn_calloc(rows * p->n_layers * p->n_kv_heads * p->stride, sizeof *s->tokens);
    return s->position && s->slot && s->n && s->tokens;
}

cn_status cn_select_probe_create(cn_select_probe **out, const cn_select_probe_opts *o)
{
    const cn_kv_layout *l = &o->pools->layout;
    CN_ASSERT(o->every > 0 && o->first_layer < l->n_layers && o->scratch->list_stride > 0);
    CN_ASSERT(o->pools->act_dtype == CN_F32);
    cn_select_probe *p = cn_calloc(1, sizeof *p);
    *out = NULL;
    if (!p) return cn_fail(CN_ERR_MEMORY, "out of memory for the figures of selectors");
    *p = (cn_select_probe){.every = o->every,
                           .max_rows = o->max_rows,
                           .n_layers = l->n_layers - o->first_layer,
                           .first_layer = o->first_layer,
                           .n_kv_heads = l->n_kv_heads,
                           .stride = o->scratch->list_stride,
                           .now = &p->steps[0],
                           .before = &p->steps[1]};
    p->previous = cn_calloc(o->max_rows, sizeof *p->previous);
    p->oracle = cn_calloc((size_t)p->n_kv_heads * p->stride, sizeof *p->oracle);
    const bool made = try_make_lists(p, p->now) && try_make_lists(p, p->before);
    if (made && p->previous && p->oracle) {
        *out = p;
        return CN_OK;
    }
    cn_select_probe_free(p);
    return cn_fail(CN_ERR_MEMORY, "out of memory for the lists of %u requests", o->max_rows);
}

void cn_select_probe_free(cn_select_probe *p)
{
    if (!p) return;
    for (uint32_t i = 0; i < 2; i++) {
        cn_free(p->steps[i].position);
        cn_free(p->steps[i].slot);
        cn_free(p->steps[i].n);
        cn_free(p->steps[i].tokens);
    }
    cn_free(p->previous);
    cn_free(p->oracle);
    cn_free(p);
}
