/* model_rig.h - a checkpoint on a backend, by default the CPU's, with a pool and hand-built block
 * tables, so that a test can run forward passes without an engine. A failure prints a message and
 * aborts. Thread: the test's. */
#pragma once

#include "engine/model/model.h"

typedef struct model_rig_opts {
    cn_backend *backend; /* borrowed; NULL: a CPU backend, which the rig opens */
    const char *dir;     /* checkpoint directory */
    uint32_t n_threads;  /* of that CPU backend; 0 = cores */
    uint32_t max_tokens; /* in a pass */
    uint32_t max_seqs;
    uint32_t max_kv_tokens; /* in a sequence */
    uint32_t block_tokens;
    uint32_t eager_positions; /* of cn_model_opts; each pass covers its own */
    bool links_norm;          /* with linked_products.h */
    bool plain_inputs;        /* of products with FP8 weights: they are not rounded */
    bool makes_blocks;        /* FP8 weights of a plain checkpoint */
} model_rig_opts;

typedef struct model_rig {
    cn_backend *be;
    bool owns_be;
    cn_backend linked; /* with links_norm: used by the model instead of *be */
    cn_stream *stream;
    cn_graph *recorded; /* runs instead of a pass; NULL: none */
    cn_model_config cfg;
    void *memory[3]; /* for the weights, the model and the arrays of a pass */
    cn_weights *weights;
    cn_model *model;
    cn_pools pools;
    uint32_t max_tokens, max_seqs, blocks_per_seq;
    uint32_t *tables; /* [max_seqs, blocks_per_seq], scattered over the pool */
    uint32_t *kv_len; /* [max_seqs] tokens stored so far */
    /* The arrays of a pass on the host, one after the other from `arrays` on. `batch` and
     * batch_rows have their copies in the backend's memory. */
    uint32_t *arrays, *tokens, *positions, *kv_slots, *q_rows, *q_start, *batch_kv_len,
        *batch_tables, *rows;
    size_t arrays_bytes;
    cn_batch_view batch;
    const uint32_t *batch_rows;
    uint32_t n_rows; /* of the last pass */
    float *logits;   /* [max_tokens, V], on the host */
} model_rig;

model_rig *model_rig_open(const model_rig_opts *o);
void model_rig_close(model_rig *r);

/* One chunk of a pass: appends tokens[n] to a sequence. */
typedef struct model_rig_chunk {
    uint32_t seq, n;
    const uint32_t *tokens;
} model_rig_chunk;

/* Runs one forward pass over the chunks. The first n_decode chunks have one token each and run as
 * decodes. Returns logits [rows, V] of every token (`all`) or of each chunk's last token, valid
 * until the next pass. */
const float *model_rig_pass(model_rig *r, const model_rig_chunk *chunks, uint32_t n_chunks,
                            uint32_t n_decode, bool all);

/* Records the last pass, on a backend with graphs. From then on model_rig_pass launches the
 * recording; its chunks must have the sizes of those of the recorded pass. */
void model_rig_record(model_rig *r);
/* Ends that. Does nothing when no pass is recorded. */
void model_rig_forget(model_rig *r);

/* Starts `seq` again with the first n_shared tokens (whole blocks) of `from`. */
void model_rig_share(model_rig *r, uint32_t seq, uint32_t from, uint32_t n_shared);
void model_rig_reset(model_rig *r, uint32_t seq);
