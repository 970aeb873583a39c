/* start_plan.h - one list of all memory that an engine takes at start. The parts of the engine
 * declare their items with cn_start_add. The plan sums the list, `cinch plan` prints it, and the
 * engine allocates it. Therefore planned and allocated memory cannot differ.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start, after the backend is open and before
 * weights are read, so that a plan that does not fit is refused at once.
 *
 * On a CPU the options alone give the KV memory. A GPU has one memory for all parts: KV gets what
 * weights, workspace and step arrays leave of --gpu-memory-utilization. With
 * --kv-cache-memory-bytes the size of KV is given, and the engine takes only as much of the GPU as
 * all parts need. */
#pragma once

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
    uint64_t bytes; /* a multiple of the backend's alignment */
    void *slot;     /* address of the pointer that gets the memory; NULL: nothing is allocated */
} cn_memory_item;

enum { CN_MAX_MEMORY_ITEMS = 160 };

typedef struct cn_start_plan {
    /* What the sizes depend on; borrowed. */
    const cn_config *config;
    const cn_model_config *model;
    cn_backend *backend; /* of the model; in a plan of a cache device alone, of that device */
    cn_memory_plan kv;   /* only block_tokens is set until cn_start_divide */
    cn_memory_item items[CN_MAX_MEMORY_ITEMS];
    uint32_t n_items;
    uint64_t select_bytes; /* of the items of selection, a share of CN_PART_STEPS */
    const char *kv_option; /* the option that sets the size of the KV cache */
} cn_start_plan;

/* Rows and tokens of the largest step including padding, and the length of the longest request.
 * Recorded steps have 1, 2 or 4 rows, or a multiple of CN_GRAPH_ROWS_STEP. */
enum { CN_GRAPH_ROWS_STEP = 8 };
uint32_t cn_start_max_rows(const cn_config *c);
uint32_t cn_start_max_tokens(const cn_config *c);
uint32_t cn_start_max_model_len(const cn_config *c, const cn_model_config *m);
/* As in cn_cuda_backend_opts. */
uint64_t cn_start_plain_bytes(const cn_config *c, const cn_model_config *m);
/* CN_ERR_ARG when selectors are declared and the block size or the dense layers exclude them. */
cn_status cn_start_check_selectors(const cn_config *c, const cn_model_config *m,
                                   uint32_t block_tokens);
/* CN_ERR_ARG when --max-model-len exceeds the positions of the model, or --max-tokens leaves no
 * room for a prompt. */
cn_status cn_start_check_model(const cn_config *c, const cn_model_config *m);

/* ---- the list ---- */

/* An empty list. */
cn_start_plan cn_start_plan_begin(const cn_config *c, const cn_model_config *m, cn_backend *be);

/* Adds an item; none if bytes is 0. The name is a literal. slot is the address of a pointer of any
 * type: cn_start_plan_allocate sets it. */
void cn_start_add(cn_start_plan *p, const char *name, cn_memory_part part, uint64_t bytes,
                  void *slot);

/* Call between the items of all parts but KV and those of KV: computes p->kv from the memory that
 * is left. CN_ERR_MEMORY when the parts do not fit, or when the KV memory is too small for one
 * request. The text has the numbers and the option to change. */
cn_status cn_start_divide(cn_start_plan *p);

/* The device memory that the options need, from a list with the items of all parts but KV: the sum
 * of all parts if --kv-cache-memory-bytes is set, else 0, which means as much as allowed. Works
 * before the backend has allocated memory. CN_ERR_MEMORY as above. */
cn_status cn_start_wanted_bytes(const cn_start_plan *p, uint64_t *bytes);

/* Bytes of one part, and of all parts of the device. */
uint64_t cn_start_part_bytes(const cn_start_plan *p, cn_memory_part part);
uint64_t cn_start_plan_bytes(const cn_start_plan *p);

/* Returns the bytes of the item with this slot, or 0 if the plan has no such item. */
uint64_t cn_start_item_bytes(const cn_start_plan *p, const void *slot);

/* Allocates every item from p->backend, or from `cache` for CN_PART_CACHE, and sets the pointers.
 * The error names the item and the option to change. After an error the caller must still call
 * cn_start_plan_free. */
cn_status cn_start_plan_allocate(const cn_start_plan *p, cn_backend *cache);
/* Frees every item that was allocated and clears its pointer. */
void cn_start_plan_free(const cn_start_plan *p, cn_backend *cache);
