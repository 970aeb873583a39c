/* lane_engines.h - the engines of a process (--data-parallel-size, --devices).
 *
 * Owner: the command, or the server. Thread: the owner's. Stage: start. All devices are opened, and
 * their memory is planned and taken, before weights are read: a GPU that is too full ends the start
 * at once. They are opened one after the other, so that the first GPU of a kind times the products
 * and the others find its plans in the cache. */
#pragma once

#include "engine/engine.h"

typedef struct cn_lane_engines {
    cn_engine *at[CN_MAX_DEVICES];
    uint32_t n;
    cn_load_gate *gate; /* NULL: there is one engine */
} cn_lane_engines; /* zero-initialise */

/* Plans the engines. After a failure, too, they have to be freed. */
cn_status cn_lane_engines_plan(cn_lane_engines *engines, const cn_config *c);
/* Seconds after which a step that has not ended is a stall (--health-stall); 0: it never is. */
double cn_lane_engines_stall_s(const cn_lane_engines *engines, const cn_config *c);
void cn_lane_engines_free(cn_lane_engines *engines);
