/* start_plan.h - one list of all memory that an engine takes at start: the planner sums it,
 * `cinch plan` prints it, and the engine allocates it. Therefore planned and allocated memory
 * cannot differ.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start, after the backend is open and before
 * weights are read, so that a plan that does not fit is refused at once.
 *
 * On a CPU the options alone give the KV memory. A GPU has one memory for all parts: KV gets what
 * weights, workspace and step arrays leave of --gpu-memory-utilization. With
 * --kv-cache-memory-bytes the size of KV is given, and the engine takes only as much of the GPU as
 * all parts need. */
#ifndef CN_START_PLAN_H
#define CN_START_PLAN_H

#include "engine/batch.h"
#include "engine/planner.h"

/* What an item is for. All parts but the last are memory of the device. */
typedef enum cn_memory_part {
    CN_PART_WEIGHTS,
    CN_PART_WORKSPACE, /* of the forward pass */
    CN_PART_STEPS,     /* batches, sampling, compression */
    CN_PART_KV,
    CN_PART_HOST, /* host memory that the device reads and writes directly */
    CN_N_PARTS
} cn_memory_part;

typedef struct cn_memory_item {
    const char *name;
    cn_memory_part part;
    uint64_t bytes;   /* a multiple of the backend's alignment */
    size_t engine_at; /* offset of the pointer to it in cn_engine */
} cn_memory_item;

enum { CN_MAX_MEMORY_ITEMS = 48 };

typedef struct cn_start_plan {
    cn_memory_plan kv;
    cn_memory_item items[CN_MAX_MEMORY_ITEMS];
    uint32_t n_items;
} cn_start_plan;

/* Rows and tokens of the largest step including padding, the length of the longest request, and
 * the batch arrays for such steps. */
uint32_t cn_start_max_rows(const cn_config *c);
uint32_t cn_start_max_tokens(const cn_config *c);
uint32_t cn_start_max_model_len(const cn_config *c, const cn_model_config *m);
/* CN_ERR_ARG when --max-model-len exceeds the positions of the model. */
cn_status cn_start_check_model_len(const cn_config *c, const cn_model_config *m);
cn_batch_opts cn_start_batch_opts(const cn_config *c, const cn_model_config *m,
                                  uint32_t block_tokens, uint32_t window_tokens);

/* CN_ERR_MEMORY when the parts do not fit, or when the KV memory is too small for one request. The
 * text has the numbers and the option to change. */
cn_status cn_start_plan_make(cn_start_plan *out, const cn_config *c, const cn_model_config *m,
                             cn_backend *be);

/* The device memory that these options need: the sum of all parts if --kv-cache-memory-bytes is
 * set, else 0, which means as much as allowed. Works before the backend has allocated memory.
 * CN_ERR_MEMORY as above. */
cn_status cn_start_wanted_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                                cn_backend *be);

/* Bytes of one part, and of all parts of the device. */
uint64_t cn_start_part_bytes(const cn_start_plan *p, cn_memory_part part);
uint64_t cn_start_plan_bytes(const cn_start_plan *p);

/* Bytes of the item whose pointer is at this offset of cn_engine; 0: there is none. */
uint64_t cn_start_item_bytes(const cn_start_plan *p, size_t engine_at);

/* Allocates every item of the backend and sets the engine's pointers; frees them. */
struct cn_engine;
cn_status cn_start_plan_allocate(const cn_start_plan *p, cn_backend *be, struct cn_engine *e);
void cn_start_plan_free(const cn_start_plan *p, cn_backend *be, struct cn_engine *e);

#endif
