/* lock_file.c - see lock_file.h. */
#include "engine/base/lock_file.h"

#include <errno.h>
#include <sys/file.h>
#include <time.h>

bool cn_lock_file(int fd)
{
    enum { TRIES = 60 };
    const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK || i == TRIES) return false;
        nanosleep(&pause, NULL);
    }
    return true;
}
