/* engine.h - getters of an engine for the rest of the program, beyond the public header.
 *
 * The pointers are borrowed from the engine. Thread: the engine's. */
#pragma once

#include "engine/base/base.h"
#include "engine/checkpoint/model_config.h"
#include "engine/options/options.h"
#include "engine/start/load_gate.h"
#include "engine/text/tokenizer.h"
#include "paged/prefix_marks.h"

/* The two halves of cn_engine_create. The first reads the checkpoint without its tensors, opens the
 * devices, plans the memory and takes that of GPUs. The second, on any thread, allocates and reads
 * weights. After a failure of the second free the engine. */
cn_status cn_engine_plan_start(cn_engine **out, const cn_config *c);
cn_status cn_engine_load(cn_engine *e);
/* Before _load, if others are loaded at the same time. The gate is borrowed. */
void cn_engine_set_gate(cn_engine *e, cn_load_gate *gate);

/* Looks at an engine whose memory is planned and not yet allocated. An error ends the start. */
typedef cn_status (*cn_engine_check)(void *ctx, cn_engine *e);
/* cn_engine_create with a check before memory is allocated and weights are read. The check may call
 * the getters of this header, and cn_engine_check_kv, cn_engine_check_batch and
 * cn_engine_cap_blocks. NULL: none. */
cn_status cn_engine_create_checked(cn_engine **out, const cn_config *c, cn_engine_check check,
                                   void *ctx);

const cn_model_config *cn_engine_model_config(const cn_engine *e);
const cn_config *cn_engine_config(const cn_engine *e);
cn_tokenizer *cn_engine_tokenizer(cn_engine *e);
/* Returns the bytes of a token, or NULL if the id is unknown. A cn_token_bytes_fn (api_logprobs.h)
 * whose `user` is the engine. */
const char *cn_engine_token_bytes(void *engine, uint32_t token, size_t *n_bytes, bool *special);
uint32_t cn_engine_max_model_len(const cn_engine *e);
uint32_t cn_engine_block_tokens(const cn_engine *e);
/* As those of the scheduler (scheduler/scheduler.h); any thread. */
const cn_prefix_marks *cn_engine_prefix_marks(const cn_engine *e);
uint64_t cn_engine_prefix_root(const cn_engine *e, uint32_t owner);
/* "cpu" or "cuda:2". */
const char *cn_engine_device(const cn_engine *e);
/* "" on a CPU, and if the driver does not tell (engine/start/gpu_uuid.h). */
const char *cn_engine_gpu_uuid(const cn_engine *e);
/* Writes what the choice of a device changes in results: "cpu, float32, blocks of 64 tokens". */
void cn_engine_backend_text(const cn_engine *e, char *text, size_t size);
