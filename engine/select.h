/* select.h - what a step needs to select tokens: the arrays of its decode rows and the scratch of
 * the ops. The numbers come from cn_select_span_at (compress/selector.h). DESIGN.md §6.
 *
 * Owner: cn_batch for the arrays, cn_engine for the scratch. Thread: engine only. Stage: 5 and 6 of
 * the path of a request. */
#ifndef CN_SELECT_H
#define CN_SELECT_H

#include "compress/selector.h"
#include "scheduler/scheduler.h"

/* Device memory, one item of the start list each. Rows: of the largest step. */
typedef struct cn_select_scratch {
    void *score;     /* u16 [room, hk] */
    void *logits;    /* [room, hk, cn_logit_row] of backend->logit_bytes */
    void *list;      /* u32 [rows, hk, list_stride] */
    void *tiles;     /* u32 [rows, hk, tile_stride]; NULL without `tls` */
    void *done;      /* u32 [rows, hk]: as in cn_select_args, of `list` */
    void *predicted; /* act [rows, layers that select, hq, d]; NULL if no selector predicts */
    uint32_t room;   /* candidates of one launch of `score`, all its sequences */
    uint32_t list_stride, tile_stride;
} cn_select_scratch;

/* The arrays of one stage, [S] each on the device; as in cn_score_args. */
typedef struct cn_select_stage_view {
    const cn_sel_stage *stage;
    const uint32_t *first, *n, *base, *k;
    bool runs;     /* known to the host */
    bool runs_max; /* some row has group rule max */
    uint32_t keys; /* that rows may have, as in cn_score_args */
} cn_select_stage_view;

/* Decode rows [start, end) whose candidates fit the scratch together. */
typedef struct cn_row_range {
    uint32_t start, end;
} cn_row_range;

/* The ops that a step launches to select. MAX: some row ranks tokens by group rule max, which takes
 * a kernel more. */
typedef enum cn_select_flavour {
    CN_SELECT_PLAIN, /* none: all rows attend to all tokens */
    CN_SELECT_ONE_STAGE,
    CN_SELECT_ONE_STAGE_MAX,
    CN_SELECT_TWO_STAGES, /* tiles are ranked first */
    CN_SELECT_TWO_STAGES_MAX,
    CN_SELECT_FLAVOURS
} cn_select_flavour;

static inline bool cn_select_has_tiles(cn_select_flavour f) { return f >= CN_SELECT_TWO_STAGES; }

static inline bool cn_select_has_max(cn_select_flavour f)
{
    return f == CN_SELECT_ONE_STAGE_MAX || f == CN_SELECT_TWO_STAGES_MAX;
}

/* The number of rows and the flavour of a recorded step (engine/step_graph.h). rows 0: the step
 * runs op by op, with the rows of its plan and the flavour that they need. */
typedef struct cn_step_shape {
    uint32_t rows;
    cn_select_flavour flavour;
} cn_step_shape;

/* The decode rows of a step. Arrays are [n_decode] on the device; flags and ranges are the host's.
 * A step of a given shape launches what its flavour can need, whatever its rows need: what a row
 * does is a number on the device. */
typedef struct cn_select_view {
    bool runs_predict; /* some row predicts its query */
    /* As attn_sparse takes them. A row that attends to all tokens has no list, and tail 0. */
    const uint32_t *list_len, *tail, *lengths;
    const uint32_t *n_forced, *seed;
    const uint32_t *ring_slots, *newest, *modulus, *n_window; /* as in cn_predict_args */
    const uint8_t *weights, *rotate;
    cn_select_stage_view stage[CN_SELECT_STAGES];
    bool only_tiles; /* each row that ranks tokens ranks those of tiles, after stage 0 */
    const cn_row_range *ranges;
    uint32_t n_ranges;
} cn_select_view;

typedef struct cn_select_limits {
    uint32_t selectors;                        /* bit i is cn_kv_select i */
    uint32_t max_tokens, max_tiles, max_sinks; /* of a request */
    uint32_t block_tokens, max_model_len;
    uint32_t max_rows; /* of a step */
} cn_select_limits;

/* Sizes of the scratch, all 0 without selectors. Pointers are left NULL. */
cn_select_scratch cn_select_scratch_sizes(const cn_select_limits *l);

/* Bytes of the arrays of a step of at most max_rows rows. */
size_t cn_select_bytes(uint32_t max_rows);

typedef struct cn_select_builder_opts {
    uint32_t max_rows, block_tokens;
    uint32_t room;      /* cn_select_scratch.room */
    uint32_t seed;      /* of selector `random` */
    uint32_t selectors; /* that requests may have: bit i is cn_kv_select i */
} cn_select_builder_opts;

/* Host memory of a builder. */
typedef struct cn_select_builder {
    cn_select_builder_opts opts;
    cn_row_range *ranges; /* [max_rows] */
    cn_select_view view;  /* device pointers */
} cn_select_builder;

/* `device`: cn_select_bytes of memory, 64-byte aligned, where the caller copies what
 * cn_select_build writes to host memory. CN_ERR_MEMORY. */
cn_status cn_select_builder_init(cn_select_builder *b, const cn_select_builder_opts *o,
                                 char *device);
void cn_select_builder_free(cn_select_builder *b);

/* The flavours that steps of requests with these selectors can need: bit i is cn_select_flavour
 * i. */
uint32_t cn_select_flavours(uint32_t selectors);

/* The flavour that the plan's decode rows need. *fits: their candidates fit `room` together. */
cn_select_flavour cn_select_flavour_of(const cn_plan *plan, uint32_t block_tokens, uint32_t room,
                                       bool *fits);

/* Writes the arrays of the plan's decode rows to `host` (cn_select_bytes) and sets the view. With
 * shape.rows, the rows behind them are padding that attends to nothing, and all candidates must fit
 * the room. Returns false for a plain step; host is then untouched. */
bool cn_select_build(cn_select_builder *b, const cn_plan *plan, cn_step_shape shape, char *host);

/* Writes the tiles of 64 tokens that the rows of a plan complete to `tiles`, which has room for
 * max_batched_tokens / 64 + max_seqs. Returns their number. Rows of compressed sequences have
 * none: their slots are not positions. */
uint32_t cn_select_completed_tiles(const cn_plan *plan, uint32_t block_tokens,
                                   cn_digest_tile *tiles);

#endif
