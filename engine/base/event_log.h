/* event_log.h - keeps libevent's own messages off standard error.
 *
 * Owner: none. Thread: any. Stage: before an event_base is created. */
#ifndef CN_EVENT_LOG_H
#define CN_EVENT_LOG_H

/* Logs what libevent reports at debug level. The callers report what concerns the user. */
void cn_event_log_begin(void);

#endif
