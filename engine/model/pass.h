/* pass.h - the arguments of a forward pass: its rows, where they keep K and V, and what runs around
 * its layers.
 *
 * Owner: the caller. Thread: engine. Stage: 5 and 6 of the path of a request. */
#pragma once

#include "engine/ops.h"
#include "engine/select/select.h"

/* Work beside the layers of a pass. `enter` is called before the ops of a layer are enqueued and
 * `leave` after them. `drafted` is called before layer 0, when the queries of a retrieval head are
 * enqueued: act [n_decode, hq, d] of the head. An error of any ends the pass. */
typedef struct cn_layer_hook {
    cn_status (*enter)(void *ctx, uint32_t layer);
    cn_status (*leave)(void *ctx, uint32_t layer);
    cn_status (*drafted)(void *ctx, const void *queries);
    void *ctx;
} cn_layer_hook;

/* The plane: a second place for K and V of the dense layers, of decode rows whose pool does not
 * have all their tokens. Such a row is stored to the plane as well, and reads it instead of the
 * pool. Arrays are on the device. */
typedef struct cn_plane_view {
    cn_kv_layout layout;
    void *kv;
    const uint32_t *slots;        /* [T] as kv_slots, in the plane; CN_NO_SLOT: not in the plane */
    const uint32_t *tables;       /* [n_decode, table_stride] blocks of the plane */
    const uint32_t *lengths;      /* [n_decode] slots of the plane; 0: the row reads the pool */
    const uint32_t *pool_lengths; /* [n_decode] slots of the pool; 0: the row reads the plane */
    uint32_t table_stride, max_kv;
} cn_plane_view;

typedef struct cn_model_pass {
    const cn_batch_view *batch;
    const cn_pools *pools;
    const cn_select_view *select; /* what decode rows attend to; NULL: to all tokens */
    const cn_plane_view *plane;   /* NULL: no row reads the plane */
    const cn_batch_view *drafts;  /* where a retrieval head keeps its keys; NULL: as batch says */
    const cn_layer_hook *hook;    /* NULL: nothing runs beside the layers */
    const uint32_t *logit_rows;   /* device, [n_rows] tokens of the batch that get logits */
    uint32_t n_rows;
} cn_model_pass;
