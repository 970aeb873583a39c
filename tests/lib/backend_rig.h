/* backend_rig.h - a CPU backend with its streams, for tests of ops. Thread: the test's. */
#pragma once

#include "engine/ops.h"

/* Opens a CPU backend with n_threads threads; fails the test on an error. */
cn_backend *backend_rig_open(uint32_t n_threads);

/* Return the backend's stream of priority HIGH and that of priority LOW. The first call creates the
 * stream; backend_rig_close frees it. */
cn_stream *backend_rig_stream(cn_backend *be);
cn_stream *backend_rig_side(cn_backend *be);

void backend_rig_close(cn_backend *be);
