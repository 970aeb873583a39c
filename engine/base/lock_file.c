/* lock_file.c - see lock_file.h. */
#include "engine/base/lock_file.h"

#include <errno.h>
#include <sys/file.h>
#include <time.h>

#define WAIT_S 3.0
#define PAUSE_S 0.05

bool cn_lock_file_by(int fd, const cn_clock *clock)
{
    const double end_s = clock->now_s(clock->ctx) + WAIT_S;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || clock->now_s(clock->ctx) >= end_s) return false;
        clock->pause(clock->ctx, PAUSE_S);
    }
    return true;
}

static double now_s(void *ctx)
{
    (void)ctx;
    return cn_now_s();
}

static void pause_s(void *ctx, double seconds)
{
    (void)ctx;
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

bool cn_lock_file(int fd) { return cn_lock_file_by(fd, &(cn_clock){now_s, pause_s, NULL}); }
