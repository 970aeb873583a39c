/* process_memory.h - how much memory this process takes. Thread: the test's. */
#pragma once

#include <stdint.h>

/* Lets all threads share one heap. Call it first. The free end of another heap stays resident, also
 * in process_idle_rss_kib, and its next use would not count. */
void process_use_one_arena(void);
/* Waits until the other threads have freed what they no longer need, returns free memory to the
 * system, and returns what is resident then. Memory that is still in use, or free but resident,
 * would not count when it is used again. */
uint64_t process_idle_rss_kib(void);
/* Returns process_idle_rss_kib, and counts the peak from now on. */
uint64_t process_reset_peak_kib(void);
/* Returns by how much the peak since process_reset_peak_kib exceeds before, its result: 0 where it
 * does not, which free memory that was still resident can cause. */
uint64_t process_growth_kib(uint64_t before);
