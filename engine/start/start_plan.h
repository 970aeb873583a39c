/* start_plan.h - one list of all memory that an engine takes at start. The planner sums the list,
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
#include "engine/start/planner.h"

/* What an item is used for. All parts before CN_PART_HOST are memory of the device that runs the
 * model. */
typedef enum cn_memory_part {
    CN_PART_WEIGHTS,
    CN_PART_WORKSPACE, /* the forward pass */
    CN_PART_STEPS,     /* batch arrays, sampling, compression */
    CN_PART_KV,
    CN_PART_HOST, /* host memory that the device reads and writes directly */
    CN_PART_CACHE, /* memory of the cache device */
    CN_N_PARTS
} cn_memory_part;

typedef struct cn_memory_item {
    const char *name;
    cn_memory_part part;
    uint64_t bytes;   /* a multiple of the backend's alignment */
    size_t engine_at; /* offset in cn_engine of the pointer to the memory */
} cn_memory_item;

enum { CN_MAX_MEMORY_ITEMS = 96 };

typedef struct cn_start_plan {
    cn_memory_plan kv;
    cn_memory_item items[CN_MAX_MEMORY_ITEMS];
    uint32_t n_items;
    uint64_t select_bytes; /* of the items of selection, a share of CN_PART_STEPS */
    const char *kv_option; /* the option that sets the size of the KV cache */
} cn_start_plan;

/* Rows and tokens of the largest step including padding, the length of the longest request, and
 * the batch arrays for such steps. */
uint32_t cn_start_max_rows(const cn_config *c);
uint32_t cn_start_max_tokens(const cn_config *c);
uint32_t cn_start_max_model_len(const cn_config *c, const cn_model_config *m);
cn_batch_opts cn_start_batch_opts(const cn_config *c, const cn_model_config *m,
                                  uint32_t block_tokens, uint32_t window_tokens);
/* CN_ERR_ARG when selectors are declared and the block size or the dense layers exclude them. */
cn_status cn_start_check_selectors(const cn_config *c, const cn_model_config *m,
                                   uint32_t block_tokens);
/* Sizes of the scratch of selection; all 0 without selectors. */
cn_select_scratch cn_start_select_scratch(const cn_config *c, const cn_model_config *m,
                                          uint32_t block_tokens);
/* CN_ERR_ARG when --max-model-len exceeds the positions of the model, or --max-tokens leaves no
 * room for a prompt. */
cn_status cn_start_check_model_len(const cn_config *c, const cn_model_config *m);

/* CN_ERR_MEMORY when the parts do not fit, or when the KV memory is too small for one request. The
 * text has the numbers and the option to change. */
cn_status cn_start_plan_make(cn_start_plan *out, const cn_config *c, const cn_model_config *m,
                             cn_backend *be);

/* The device memory that these options need: the sum of all parts if --kv-cache-memory-bytes is
 * set, else 0, which means as much as allowed. Works before the backend has allocated memory.
 * CN_ERR_MEMORY as above. */
cn_status cn_start_wanted_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                                cn_backend *be);

/* The memory of the cache device that these options need: CN_PART_CACHE of the plan. Works before
 * any backend has allocated memory. CN_ERR_ARG when the home space is too small. */
cn_status cn_start_cache_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                               cn_backend *be);

/* Bytes of one part, and of all parts of the device. */
uint64_t cn_start_part_bytes(const cn_start_plan *p, cn_memory_part part);
uint64_t cn_start_plan_bytes(const cn_start_plan *p);

/* Returns the bytes of the item with this engine_at, or 0 if the plan has no such item. */
uint64_t cn_start_item_bytes(const cn_start_plan *p, size_t engine_at);

struct cn_engine;
/* Allocates every item from the backend and sets the engine's pointers. The error names the item
 * and the option to change. After an error the caller must still call cn_start_plan_free. */
cn_status cn_start_plan_allocate(const cn_start_plan *p, cn_backend *be, struct cn_engine *e);
/* Frees every item that was allocated and clears its pointer. */
void cn_start_plan_free(const cn_start_plan *p, cn_backend *be, struct cn_engine *e);

#endif
