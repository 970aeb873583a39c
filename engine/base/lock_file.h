/* lock_file.h - the lock by which one process at a time writes a file.
 *
 * Owner: the descriptor. Thread: any. Stage: start. */
#pragma once

#include "engine/base/base.h"
#include "engine/base/clock.h"

/* Locks an open file until it is closed. A killed process keeps its lock until the system has freed
 * its memory, so this waits up to three seconds. Returns false with errno: EWOULDBLOCK when another
 * process has the lock. */
bool cn_lock_file(int fd);
/* The same by another clock. */
bool cn_lock_file_by(int fd, const cn_clock *clock);
