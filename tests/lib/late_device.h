/* late_device.h - a CPU backend with the timing of a GPU. Ops return before they have run and run
 * later, each stream in order. A seed decides how the streams and the host interleave. A host
 * that changes or reads data too early then gets other results.
 *
 * A launch copies what a CUDA launch copies: argument structs and batch views, the bytes of
 * mem_write on a HIGH stream, the lists of copies. All other data must stay unchanged until
 * the op has run. Steps are recorded as graphs, with padding, as on a GPU.
 *
 * There are no threads. Each host call runs a random number of queued ops, and a wait runs only the
 * ops that it waits for. The same seed therefore always gives the same interleaving.
 *
 * A program that uses this is linked with --wrap=cn_backend_cpu_open (LATE_TESTS in the Makefile).
 * Thread: the test's. */
#pragma once

#include <stdint.h>

/* Routes of steps (cn_backend.select_route), and 0: whether tiles are ranked, and some tokens under
 * rule max. */
enum { N_LATE_ROUTES = 5 };

/* Makes every CPU backend opened from now on a late device with this seed. One seed in four runs
 * ops only when the host waits. 0: backends are normal CPU backends again. */
void late_device_choose(uint64_t seed);
