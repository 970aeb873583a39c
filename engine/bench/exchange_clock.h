/* exchange_clock.h - times the exchanges of an engine's steps with timed fences: how long they ran,
 * and how long the model waited for them. Costs two timed fences for each pack of a step, and four
 * more for each home.
 *
 * Owner: the caller. Thread: the engine's. */
#pragma once

#include "engine/engine.h"
#include "engine/home/home.h"

/* Sums over the timed steps, in seconds of the devices. */
typedef struct cn_exchange_times {
    uint64_t n_steps;
    double stall_s;    /* the model's stream waited for exchanges of the previous step */
    double exchange_s; /* ranks or pushes of a home ran; homes are added up */
} cn_exchange_times;

typedef struct cn_exchange_clock cn_exchange_clock;

/* CN_ERR_DEVICE when the engine has no home, or a backend no timed fences. The engine then refers
 * to the clock, which is off. Free it when no step is in flight, before the engine. */
cn_status cn_exchange_clock_create(cn_exchange_clock **out, cn_engine *e);
void cn_exchange_clock_free(cn_exchange_clock *c); /* NULL is fine */

/* Steps that are launched from now on are timed, or are not. */
void cn_exchange_clock_run(cn_exchange_clock *c, bool on);
/* The sums over the timed steps whose tokens have been read. */
cn_exchange_times cn_exchange_clock_times(const cn_exchange_clock *c);

/* When the ranks and the pushes of one step with one home ran, in seconds from one instant on. The
 * packs of each follow one another. */
typedef struct cn_home_times {
    double begins[CN_HOME_WORKS][CN_MAX_PACKS], ends[CN_HOME_WORKS][CN_MAX_PACKS];
} cn_home_times;

/* Returns for how many seconds ranks, pushes or both ran. */
double cn_home_busy_s(const cn_home_times *t, uint32_t n_packs);
