/* event_log.c - see event_log.h. */
#include "engine/base/event_log.h"

#include <event2/event.h>

#include "engine/base/base.h"

static void forward(int severity, const char *text)
{
    (void)severity;
    cn_log(CN_LOG_DEBUG, "libevent: %s", text);
}

void cn_event_log_begin(void) { event_set_log_callback(forward); }
