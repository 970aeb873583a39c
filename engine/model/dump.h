/* dump.h - writes tensors of the forward pass to files: --dump name:layer:step.
 *
 * Owner: engine. Thread: engine. Stage: inside the forward pass, after each op.
 *
 * The names are the same on every backend, so that tests/diff_dumps.c can report the first
 * difference between two runs. Each tensor is a .npy file (f32 [rows, cols]; bf16 is widened). It
 * is read back through the stream, which is slow. A dump is the only part of a step that may
 * allocate. Off by default. */
#pragma once

#include "engine/base/base.h"
#include "engine/ops.h"

/* In the order of the forward pass. */
typedef enum cn_dump_name {
    CN_DUMP_EMBED,
    CN_DUMP_ATTN_NORM,
    CN_DUMP_QKV,
    CN_DUMP_Q,
    CN_DUMP_ATTN,
    CN_DUMP_O,
    CN_DUMP_MLP_NORM,
    CN_DUMP_GATE_UP,
    CN_DUMP_SILU_MUL,
    CN_DUMP_DOWN,
    CN_DUMP_EXPERTS,
    CN_DUMP_FINAL_NORM,
    CN_DUMP_LOGITS,
    CN_DUMP_COUNT
} cn_dump_name;

enum { CN_DUMP_NO_LAYER = -1 }; /* layer of tensors outside the layers; only "*" matches it */

#define CN_DUMP_DIR "cinch-dump" /* the folder of --dump, in the working directory */

typedef struct cn_dump cn_dump;

/* spec: "name:layer:step", each a value or "*" for any. A step is one forward pass, counted from 0.
 * Files are written to `dir`, which is created if missing. CN_ERR_ARG names the invalid part and
 * the valid values. */
cn_status cn_dump_open(cn_dump **out, cn_backend *be, const char *spec, const char *dir);
void cn_dump_close(cn_dump *d); /* NULL is fine */

void cn_dump_begin_step(cn_dump *d, uint64_t step);

/* Writes the tensor [rows, cols] at device address `data` if the spec matches it. */
cn_status cn_dump_tensor(cn_dump *d, cn_stream *s, cn_dump_name name, int32_t layer,
                         const void *data, cn_dtype dtype, uint32_t rows, uint32_t cols);

/* "step-000003.layer-02.attn.npy", or ".outside." instead of ".layer-02." without a layer. */
enum { CN_DUMP_FILE_BYTES = 96 };
void cn_dump_file_name(char out[CN_DUMP_FILE_BYTES], cn_dump_name name, int32_t layer,
                       uint64_t step);
