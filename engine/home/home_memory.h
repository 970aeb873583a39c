/* home_memory.h - the memory of homes and their exchanges in the start plan.
 *
 * Owner: the caller. Thread: any. Stage: start. */
#pragma once

#include "engine/home/home_step.h"
#include "engine/start/start_plan.h"

/* Adds what exchanges with declared homes need, besides the home spaces. */
void cn_homes_declare(cn_start_plan *p, cn_homes *hs);
/* Adds what a flight needs for its rows with them. */
void cn_home_flight_declare(cn_start_plan *p, cn_home_flight *f);
/* Adds the spaces of all homes and their dense layers. The KV memory of the plan is divided. */
void cn_homes_declare_kv(cn_start_plan *p, cn_homes *hs);

/* The memory of the cache device that these options need: CN_PART_CACHE of the plan. Works before
 * any backend has allocated memory. CN_ERR_ARG when the home space is too small. */
cn_status cn_home_cache_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                              cn_backend *be);
/* cn_backend_open_cache with that memory. */
cn_status cn_home_open_cache(cn_backend **out, const cn_config *c, const cn_model_config *m);
