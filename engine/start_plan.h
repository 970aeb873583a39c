/* start_plan.h - all the memory that a start takes, as one list: the planner sums it before any of
 * it is taken, `cinch plan` prints it, and the engine allocates it. What is planned and what is
 * allocated therefore cannot differ.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start, after the backend is open, before
 * weights are read, so that an impossible plan is refused at once.
 *
 * The options give the KV memory of a host. A device has one memory: KV gets what the other parts
 * leave of --gpu-memory-utilization. With --kv-cache-memory-bytes it is the reverse: KV gets that
 * much, and the start takes no more of the device than all parts need. */
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

/* Rows and tokens of the largest step, padding included, the longest request of these options, and
 * what such steps are described in. */
uint32_t cn_start_max_rows(const cn_config *c);
uint32_t cn_start_max_tokens(const cn_config *c);
uint32_t cn_start_max_model_len(const cn_config *c, const cn_model_config *m);
cn_batch_opts cn_start_batch_opts(const cn_config *c, const cn_model_config *m,
                                  uint32_t block_tokens, uint32_t window_tokens);

/* CN_ERR_MEMORY when the parts do not fit, or not even one request's KV; the text has the numbers
 * and the option to change. */
cn_status cn_start_plan_make(cn_start_plan *out, const cn_config *c, const cn_model_config *m,
                             cn_backend *be);

/* What these options need of a device's memory: all parts when --kv-cache-memory-bytes gives the
 * KV memory; else 0, which means all there is. The backend's memory may not be allocated yet.
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
