/* event_log.h - keeps libevent's own messages off standard error.
 *
 * Owner: none. Thread: any. Stage: before an event_base is created. */
#pragma once

/* Logs what libevent reports at debug level. The callers report what concerns the user. */
void cn_event_log_begin(void);
