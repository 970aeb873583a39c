/* home_step.h - what the homes do for a step in flight: they take its away rows from the plan,
 * exchange beside the model, and count the exchange of each row when its token is delivered.
 * HOMES.md.
 *
 * Owner: cn_engine, one cn_home_flight for each flight. Thread: engine. Stage: 6 of the path of a
 * request. Without a declared home these functions do nothing. */
#pragma once

#include "engine/home/home.h"

typedef struct cn_home_flight {
    cn_home_step at[CN_N_HOMES]; /* by cn_kv_home */
    cn_home_clock *clock;        /* of the step; NULL: it is not timed */
} cn_home_flight;

/* Allocates the host arrays; the start plan allocates `counts`. CN_ERR_MEMORY. Free also after an
 * error. */
cn_status cn_home_flight_init(cn_home_flight *f, const cn_homes *hs);
void cn_home_flight_free(cn_home_flight *f, cn_homes *hs);

/* Begins a step: takes the rows of the plan that exchange and uploads what they need. The pass of
 * the model then has the hook cn_home_hook. A recorded step has no exchanges, so the model's stream
 * waits for those of the previous step. */
cn_status cn_home_flight_begin(cn_homes *hs, cn_home_flight *f, const cn_plan *plan, bool recorded);
/* Ends it, when all of its ops are enqueued. */
void cn_home_flight_end(cn_homes *hs);

/* Waits until the counts of the step's exchanges have been read. The tokens have been read. */
cn_status cn_home_flight_land(cn_homes *hs, cn_home_flight *f);
/* Counts the exchange of q, if it had one in the step. Call in the order of the step's rows, when
 * the token of the row is delivered. */
void cn_home_flight_count(const cn_homes *hs, cn_home_flight *f, cn_seq *q, cn_stats *stats);
