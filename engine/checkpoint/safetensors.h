/* safetensors.h - a checkpoint's tensors as checked views of memory-mapped shards.
 *
 * Owner: cn_checkpoint (checkpoint.h). Thread: one for opening and closing; any for reading.
 * Stage: loading. Opening reads only the headers; views point into the mappings.
 *
 * A shard is the u64 length of the header (little-endian), the header (JSON), and the data. Opening
 * checks these invariants; a violation is an error with the file, the tensor and the numbers:
 *   1. the header fits the file, is one JSON object, and names every tensor once;
 *   2. a tensor's dtype is known, its shape does not overflow, and its data_offsets span exactly
 *      shape * dtype bytes;
 *   3. the spans cover the data without an overlap, a gap or a remainder;
 *   4. a name occurs in one shard only, and every tensor is in the shard that the index names.
 *
 * If another process truncates a mapped file, an access still faults. Replace the files of a
 * checkpoint by renaming, never in place. */
#pragma once

#include "engine/base/base.h"

/* The dtypes of the format. Weights can be CN_ST_F32, _BF16 or _F16. A file may contain tensors of
 * other dtypes if the model does not use them. */
typedef enum cn_st_dtype {
    CN_ST_BOOL,
    CN_ST_U8,
    CN_ST_I8,
    CN_ST_F8_E5M2,
    CN_ST_F8_E4M3,
    CN_ST_F8_E8M0,
    CN_ST_I16,
    CN_ST_U16,
    CN_ST_F16,
    CN_ST_BF16,
    CN_ST_I32,
    CN_ST_U32,
    CN_ST_F32,
    CN_ST_F64,
    CN_ST_I64,
    CN_ST_U64,
    CN_ST_C64
} cn_st_dtype;
const char *cn_st_dtype_name(cn_st_dtype t); /* as in files: "BF16" */

enum { CN_ST_MAX_DIMS = 8 };

typedef struct cn_st_tensor {
    const char *name; /* printable ASCII or UTF-8 without control characters */
    const char *file; /* path of its shard */
    cn_st_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[CN_ST_MAX_DIMS];
    const void *data; /* little-endian, row-major; of any alignment: read it with memcpy */
    uint64_t n_bytes;
} cn_st_tensor;

typedef struct cn_safetensors cn_safetensors;

/* Opens dir/model.safetensors, or the shards that dir/model.safetensors.index.json names. */
cn_status cn_safetensors_open(cn_safetensors **out, const char *dir);

/* Opens the file dir/name alone. */
cn_status cn_safetensors_open_file(cn_safetensors **out, const char *dir, const char *name);

/* Opens one shard that is already in memory. image[n] is borrowed until the close; `what` names it
 * in errors. For tests: a read past the end of a mapped file may hit the rest of the last page and
 * go unnoticed, while a sanitizer detects a read past an image. */
cn_status cn_safetensors_open_image(cn_safetensors **out, const void *image, size_t n,
                                    const char *what);

void cn_safetensors_close(cn_safetensors *s); /* NULL is fine */

/* The text of a key of the metadata, of the first shard that has some; NULL: there is none. */
const char *cn_safetensors_metadata(const cn_safetensors *s, const char *key);

/* The tensor of that name, or NULL. */
const cn_st_tensor *cn_safetensors_find(const cn_safetensors *s, const char *name);

/* All tensors, sorted by name. */
size_t cn_safetensors_count(const cn_safetensors *s);
const cn_st_tensor *cn_safetensors_at(const cn_safetensors *s, size_t i);

/* "[300, 64]" for messages. Returns buf. */
const char *cn_st_shape_text(const cn_st_tensor *t, char *buf, size_t size);
