/* backend_rig.h - a CPU backend with its streams, for tests of ops. Thread: the test's. */
#ifndef CN_TEST_BACKEND_RIG_H
#define CN_TEST_BACKEND_RIG_H

#include "engine/ops.h"

/* A CPU backend of n_threads threads; fails the test when it cannot be had. */
cn_backend *backend_rig_open(uint32_t n_threads);

/* A stream of priority HIGH, and one of LOW. Created on the first call, freed by
 * backend_rig_close. */
cn_stream *backend_rig_stream(cn_backend *be);
cn_stream *backend_rig_side(cn_backend *be);

void backend_rig_close(cn_backend *be);

#endif
