/* op_world.h - steps of random sequences that test_op_select_cuda.c ranks on the CPU and on the
 * GPU. The forms of the stages are declared (cn_backend.select_route) in two worlds of three.
 * Stages without group rule max have no logits. */
#pragma once

#include "tests/lib/op_cases.h"

enum {
    WORLD_LAYERS = 4,
    WORLD_FIRST_LAYER = 1,
    WORLD_TENSORS = 60,
    WORLD_POISON = 0xa5,
    WORLD_STAGES = 2,
    WORLD_STEPS = 3, /* that follow each other; each has queries of its own */
    WORLD_GUARD = 256, /* poisoned bytes after the logits */
    WORLD_N_KINDS = 16,
    WORLD_WITHOUT_TILES = WORLD_N_KINDS - 6
};

/* A step of random sequences. Sequence s has n[i][s] candidates in stage i. */
typedef struct world {
    op_env *env;
    paged_batch *b;
    uint32_t n_seqs, group, n_layers;
    bool forms_known;
    cn_sel_stage stage[WORLD_STAGES][PAGED_MAX_SEQS];
    uint32_t first[WORLD_STAGES][PAGED_MAX_SEQS], n[WORLD_STAGES][PAGED_MAX_SEQS],
        base[WORLD_STAGES][PAGED_MAX_SEQS];
    uint32_t k[WORLD_STAGES][PAGED_MAX_SEQS], n_forced[PAGED_MAX_SEQS], seed[PAGED_MAX_SEQS];
    uint32_t total[WORLD_STAGES], stride[WORLD_STAGES]; /* total: sum of n */
    cn_score_args score[2][WORLD_STAGES];               /* by side: CPU, GPU */
    cn_select_args select[2][WORLD_STAGES];
    op_tensor scores[WORLD_STAGES], lists[WORLD_STAGES];
    op_tensor logits[2][WORLD_STAGES]; /* by side; the other half is unused */
    size_t logit_bytes[2][WORLD_STAGES];
    op_tensor all[WORLD_TENSORS]; /* to be freed */
    uint32_t n_all;
} world;

enum { ON_CPU, ON_CUDA };

/* A pointer for each side. */
typedef struct world_both {
    void *at[2];
} world_both;

/* Kinds of a token stage. The last ones, from WORLD_WITHOUT_TILES on, are in tiles; the last two of
 * these rank an exchange area. */
extern const cn_sel_stage WORLD_KINDS[WORLD_N_KINDS];

/* A world of n_layers layers, without rows. Rows are drawn next; then world_bind completes it. */
world *world_create(op_env *env, const paged_shape *s, uint32_t n_layers);
/* Sets the token stage of a sequence, and the stage before it if it is in tiles. All candidates are
 * complete. */
void world_draw_row(world *w, uint32_t s, uint32_t kind);
/* Draws the kinds and rows of all sequences. */
void world_draw_rows(world *w);
/* Completes a world whose rows are set. largest: of the queries; 0 makes them all equal. */
void world_bind(world *w, float largest);
void world_free(world *w);

/* The forms of the active stages. */
cn_sel_forms world_forms(const world *w);
/* Units of a stage: sequences, layers and kv heads. */
size_t world_units(const world *w);
/* Memory on both sides that is freed with the world: a copy of bytes, or poisoned words. */
world_both world_keep_bytes(world *w, const void *from, size_t bytes);
op_tensor world_poisoned_words(world *w, size_t bytes);
