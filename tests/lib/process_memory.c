/* process_memory.c - see process_memory.h. */
#include "tests/lib/process_memory.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The allocator of a sanitizer has one heap, and no mallopt(). */
void process_use_one_arena(void) { (void)mallopt(M_ARENA_MAX, 1); }

static FILE *must_open(const char *path, const char *mode)
{
    FILE *f = fopen(path, mode);
    if (f) return f;
    perror(path);
    abort();
}

static uint64_t status_kib(const char *field)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = must_open("/proc/self/status", "r");
    while (fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0) sscanf(line + strlen(field), ": %llu", &kib);
    fclose(f);
    return kib;
}

uint64_t process_idle_rss_kib(void)
{
    enum { LOOKS = 40 };
    const struct timespec look = {.tv_nsec = 50000000};
    uint64_t last = 0, now = UINT64_MAX;
    for (int i = 0; i < LOOKS && now != last; i++) {
        last = now;
        nanosleep(&look, NULL);
        malloc_trim(0);
        now = status_kib("VmRSS");
    }
    return now;
}

uint64_t process_reset_peak_kib(void)
{
    const uint64_t before = process_idle_rss_kib();
    FILE *f = must_open("/proc/self/clear_refs", "w");
    fputs("5", f);
    fclose(f);
    return before;
}

uint64_t process_growth_kib(uint64_t before)
{
    const uint64_t peak = status_kib("VmHWM");
    return peak > before ? peak - before : 0;
}
