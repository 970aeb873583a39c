/* select.h - what a step needs to select tokens: the arrays of its decode rows and the scratch of
 * the ops. The numbers come from the spans of plan rows (scheduler/scheduler.h). SELECTION.md.
 *
 * Owner: cn_batch for the arrays, cn_engine for the scratch. Thread: engine only. Stage: 5 and 6 of
 * the path of a request. */
#pragma once

#include "compress/selector.h"
#include "scheduler/scheduler.h"

/* Decode rows [start, end) whose candidates fit the scratch together. */
typedef struct cn_row_range {
    uint32_t start, end;
} cn_row_range;

/* The number of rows and the route of a recorded step (engine/step_graph.c). rows 0: the step runs
 * op by op, with the rows of its plan. */
typedef struct cn_step_shape {
    uint32_t rows;
    uint32_t route; /* cn_backend.select_route; 0: all rows attend to all tokens */
} cn_step_shape;

/* Returns the backend's route for rows of these forms, or 1 if it has no routes. */
uint32_t cn_select_route_of(const cn_backend *be, const cn_sel_forms *need,
                            const cn_sel_forms *declared);

/* Writes the routes that steps of requests with these selectors can need to `routes`, each once.
 * Returns their number. The first is 0. */
enum { CN_MAX_ROUTES = 16 };
uint32_t cn_select_routes(const cn_backend *be, uint32_t selectors,
                          uint32_t routes[CN_MAX_ROUTES]);

/* The decode rows of a step. Arrays are [n_decode] on the device; flags and ranges are the host's.
 * A step of a given shape launches what its route can need, whatever its rows need: what a row
 * does is a number on the device. */
typedef struct cn_select_view {
    bool runs_predict; /* some row predicts its query */
    bool ranks_ahead;  /* some row ranks before layer 0 */
    cn_select_rows rows;
    const uint32_t *ring_slots, *newest, *modulus, *n_window; /* as in cn_predict_args */
    const uint8_t *weights, *rotate;
    const cn_sel_stage *ahead; /* of the rows that rank before layer 0; their stage 1 is inactive */
    uint32_t route;
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
    uint32_t max_rows;
    uint32_t room;      /* cn_select_scratch.room */
    uint32_t seed;      /* of selector `random` */
    uint32_t selectors; /* that requests may have: bit i is cn_kv_select i */
    const cn_backend *be; /* borrowed: its routes */
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

/* What the decode rows of a plan need. */
typedef struct cn_select_need {
    bool listed; /* some row attends to a list */
    bool fits;   /* the candidates of all rows fit the room together */
    cn_sel_forms forms;
} cn_select_need;
cn_select_need cn_select_need_of(const cn_plan *plan, uint32_t room);

/* Writes the arrays of the plan's decode rows to `host` (cn_select_bytes) and sets the view. With
 * shape.rows, the rows behind them are padding that attends to nothing, and all candidates must fit
 * the room. Returns false for a plain step; host is then untouched. */
bool cn_select_build(cn_select_builder *b, const cn_plan *plan, cn_step_shape shape, char *host);

/* Writes the tiles of 64 tokens that the rows of a plan complete to `tiles`, which has room for
 * max_batched_tokens / 64 + max_seqs. Returns their number. Rows of compressed sequences have
 * none: their slots are not positions. */
uint32_t cn_select_completed_tiles(const cn_plan *plan, uint32_t block_tokens,
                                   cn_digest_tile *tiles);
