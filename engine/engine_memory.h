/* engine_memory.h - the memory plan of a whole engine: every part declares its items, and the KV
 * memory is divided between them. The device is opened with what the plan needs.
 *
 * Owner: the caller. Thread: any. Stage: start (engine/start/start_plan.h). */
#pragma once

#include "engine/start/device_choice.h"
#include "engine/start/start_plan.h"

struct cn_engine;
struct cn_rank;

/* The plan of an engine with these options, this model and this backend. e NULL: the plan is only
 * read, and cannot be allocated. Errors are those of cn_start_divide. */
cn_status cn_engine_plan_make(cn_start_plan *out, const cn_config *c, const cn_model_config *m,
                              cn_backend *be, struct cn_engine *e);

/* The plan of another rank of a split model (engine/rank.h): blocks and slots are rank 0's. */
void cn_engine_plan_rank(cn_start_plan *out, const cn_config *c, const cn_memory_plan *kv,
                         struct cn_rank *k);

/* The sizes of the pools, and those of the scratch of selection and of labels. m: of the rank. */
void cn_engine_size_pools(cn_pools *p, const cn_config *c, const cn_model_config *m,
                          const cn_backend *be, const cn_memory_plan *kv);
void cn_engine_size_select(cn_select_scratch *s, cn_pools *p, const cn_config *c,
                           const cn_model_config *m, uint32_t block_tokens);

/* cn_start_wanted_bytes of that plan. */
cn_status cn_engine_wanted_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                                 cn_backend *be);

/* cn_backend_open with what that plan needs, at least least_bytes. */
cn_status cn_engine_open_backend(cn_backend **out, const cn_config *c, const cn_model_config *m,
                                 uint64_t least_bytes, cn_device_choice *choice);
