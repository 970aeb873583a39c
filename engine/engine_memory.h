/* engine_memory.h - the memory plan of a whole engine: every part declares its items, and the KV
 * memory is divided between them. The device is opened with what the plan needs.
 *
 * Owner: the caller. Thread: any. Stage: start (engine/start/start_plan.h). */
#pragma once

#include "engine/start/device_choice.h"
#include "engine/start/start_plan.h"

struct cn_engine;

/* The plan of an engine with these options, this model and this backend. e NULL: the plan is only
 * read, and cannot be allocated. Errors are those of cn_start_divide. */
cn_status cn_engine_plan_make(cn_start_plan *out, const cn_config *c, const cn_model_config *m,
                              cn_backend *be, struct cn_engine *e);

/* cn_start_wanted_bytes of that plan. */
cn_status cn_engine_wanted_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                                 cn_backend *be);

/* cn_backend_open with what that plan needs, at least least_bytes. */
cn_status cn_engine_open_backend(cn_backend **out, const cn_config *c, const cn_model_config *m,
                                 uint64_t least_bytes, cn_device_choice *choice);
