/* clock.h - time as an argument, so that a test can wait without time passing.
 *
 * Owner: the caller. Thread: any. Stage: none. */
#pragma once

typedef struct cn_clock {
    double (*now_s)(void *ctx); /* from any instant on; never falls */
    void (*pause)(void *ctx, double seconds);
    void *ctx;
} cn_clock;
