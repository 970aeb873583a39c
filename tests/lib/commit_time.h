/* commit_time.h - delays or hastens the commits of an engine's events, for tests of timing. */
#pragma once

#include "engine/engine_state.h"

/* BY_LUCK: as the backend runs. LATE: one poll in seven sees the end of an event. EARLY: each poll
 * waits for it. AT_ONCE: events commit together, after many polls that saw none. */
typedef enum commit_time { BY_LUCK, LATE, EARLY, AT_ONCE, N_COMMIT_TIMES } commit_time;

/* Call once for each engine. Replaces fence_done of its backend. */
void commit_time_choose(cn_engine *e, commit_time chosen);
