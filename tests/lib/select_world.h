/* select_world.h - random steps of selection: pools with digests, stages, and the results of the
 * CPU's ops for them. */
#pragma once

#include "engine/start/device_choice.h"
#include "tests/lib/paged_batch.h"

enum {
    SELECT_MAX_GROUP = 11,
    SELECT_MAX_D = 576,
    SELECT_MAX_CHANNELS = 128,
    SELECT_LAYERS = 3,
    SELECT_FIRST_LAYER = 1,
    SELECT_POISON = 0xa5
};

typedef struct select_world {
    paged_batch *b;
    cn_pools pools;
    uint32_t n_seqs, group, n_layers;
    cn_sel_stage stage[2][PAGED_MAX_SEQS];
    uint32_t n[2][PAGED_MAX_SEQS], base[2][PAGED_MAX_SEQS], k[2][PAGED_MAX_SEQS];
    uint32_t first[2][PAGED_MAX_SEQS + 1];
    uint32_t n_forced[PAGED_MAX_SEQS], seed[PAGED_MAX_SEQS];
    float *q[CN_N_SEL_QUERIES];
    size_t q_row, q_stride; /* q_row: elements of a query, all layers */
} select_world;

/* The results of the ops for a world. */
typedef struct select_results {
    uint16_t *score[2];
    uint32_t *list[2];
    uint32_t stride[2];
} select_results;

typedef struct select_unit {
    uint32_t stage, seq, layer, head; /* layer: index of the call */
    size_t index, first;              /* first: of its scores */
} select_unit;

size_t select_units(const select_world *w);
/* The stages over tokens that worlds draw. */
const cn_sel_stage *select_world_stages(uint32_t *n);
/* Allocates every plane of the digest that the shape can have. */
void select_open_digest(select_world *w, test_rng *r);
void select_run_digest(cn_backend *be, const select_world *w);
void select_draw_queries(select_world *w, test_rng *r);
select_world select_world_draw(uint64_t seed);
/* The same with rows of latent attention: one kv head, V in K, another scale. */
select_world select_world_draw_latent(uint64_t seed);
void select_world_free(select_world *w);
select_results select_run_stages(cn_backend *be, const select_world *w);
void select_results_free(select_results *x);
const float *select_key_of(const select_world *w, uint32_t layer, uint32_t s, uint32_t head,
                           uint32_t p);
size_t select_side_of(const select_world *w, uint32_t layer, uint32_t s, uint32_t head, uint32_t p);
void select_channels_of(const select_world *w, uint32_t layer, uint32_t head, uint16_t *channels);
/* By which products are multiplied. */
double select_scale_of(const select_world *w);
/* Channel c of the label of slot `side`. */
int select_label_at(const cn_digest *g, size_t side, uint32_t c);
select_unit select_unit_at(const select_world *w, uint32_t stage, size_t index);
uint32_t select_position_of(const select_world *w, const select_results *x, const select_unit *u,
                            uint32_t c);
