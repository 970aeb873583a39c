/* late_device.h - a CPU that keeps time like a GPU: ops return before they have run, and run later,
 * each stream in its order, the two of them against each other and against the host as a seed has
 * it. What the host changes too early, or reads too early, then shows in the bits.
 *
 * A launch keeps what one of CUDA keeps: argument structs and batch views by value, the bytes of
 * mem_write on stream 0, the lists of copies and swaps. All else must stay as it is until the op
 * has run. Steps are recorded as graphs, as on a GPU, padding included.
 *
 * There are no threads: at each call of the host a drawn number of queued ops runs, and a wait runs
 * what it waits for and no more. So a seed is one interleaving, again and again.
 *
 * A program that uses this is linked with --wrap=cn_backend_cpu_open (LATE_TESTS in the Makefile).
 * Thread: the test's. */
#ifndef CN_TEST_LATE_DEVICE_H
#define CN_TEST_LATE_DEVICE_H

#include <stdint.h>

/* CPU backends opened from now on are late ones, by this seed; one seed in four holds all back
 * until the host waits. 0: they are the CPU's own again. */
void late_device_choose(uint64_t seed);

#endif
