/* gemm_tune.h - shared by the two parts of the timing at start: each product alone (gemm_tune.c)
 * and the products of a layer together (gemm_tune_layer.c). */
#pragma once

#include "cuda/gemm/gemm.h"

CN_BEGIN_C

enum {
    CN_GEMM_MODEL_SHAPES = 6, /* the layer's products, the head and the router */
    CN_GEMM_SHORT_LIST = 5    /* plans of a product that are timed in a layer */
};

/* The products of a layer, in order. */
typedef enum cn_gemm_product {
    CN_GEMM_QKV,
    CN_GEMM_O,
    CN_GEMM_GATE_UP,
    CN_GEMM_DOWN,
    CN_GEMM_LAYER_SHAPES
} cn_gemm_product;

/* A product of the model, and the most rows that it can have. */
typedef struct cn_gemm_model_shape {
    cn_gemm_shape shape;
    uint32_t most_tokens;
} cn_gemm_model_shape;

/* The fastest plans of a product, the best first. */
typedef struct cn_gemm_short_list {
    cn_gemm_plan plans[CN_GEMM_SHORT_LIST];
    uint32_t n;
} cn_gemm_short_list;

typedef struct cn_gemm_tuner {
    cn_cuda *c;
    cn_stream *s;
    cudaEvent_t start, end;
    char *memory; /* weights, x and out, one after the other */
    bool apart;   /* memory is not part of the backend's one allocation */
    size_t weight_bytes, x_bytes, out_bytes; /* after them the arrays of a link */
    size_t next_weight; /* offset of the weights of the next run */
    cn_gemm_model_shape shapes[CN_GEMM_MODEL_SHAPES];
    cn_gemm_short_list lists[CN_GEMM_MODEL_SHAPES][CN_GEMM_BUCKETS];
} cn_gemm_tuner;

static inline size_t cn_gemm_weight_bytes(cn_gemm_shape shape)
{
    return (size_t)shape.n * shape.k * 2;
}

/* Runs a product once, with the weights after those of the last run. adds, norms: as in
 * cn_gemm_args. */
cn_status cn_gemm_tune_run(cn_gemm_tuner *t, cn_gemm_shape shape, uint32_t n_tokens,
                           const cn_gemm_plan *plan, const cn_norm_link *adds,
                           const cn_norm_link *norms);

enum { CN_GEMM_PLAN_TEXT = 48 };
/* Writes a plan for the log. */
void cn_gemm_plan_text(const cn_gemm_plan *plan, char text[CN_GEMM_PLAN_TEXT]);

/* Chooses among the short lists of all buckets with own kernels. If that fails, the plans stay as
 * they are, and a warning is logged. */
void cn_gemm_tune_layers(cn_gemm_tuner *t);

/* A stand-in for attention: holds all shared memory of the GPU for some microseconds. */
cn_status cn_gemm_pause(cn_stream *s);

CN_END_C
