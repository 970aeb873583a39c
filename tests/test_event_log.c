/* test_event_log.c - what libevent reports does not reach standard error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include <event2/event.h>

#include "engine/base/base.h"
#include "engine/base/event_log.h"

/* A loop inside a loop is refused by libevent with a message. */
static void loop_again(evutil_socket_t fd, short what, void *base)
{
    (void)fd;
    (void)what;
    event_base_loop(base, EVLOOP_NONBLOCK);
}

/* Bytes on standard error while libevent warns. */
static long warn_bytes(void)
{
    FILE *f = tmpfile();
    const int kept = dup(STDERR_FILENO);
    assert_true(f && kept >= 0 && dup2(fileno(f), STDERR_FILENO) >= 0);
    struct event_base *base = event_base_new();
    event_base_once(base, -1, EV_TIMEOUT, loop_again, base, &(struct timeval){0, 0});
    event_base_dispatch(base);
    event_base_free(base);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    const long n = lseek(fileno(f), 0, SEEK_END);
    fclose(f);
    return n;
}

static void messages_are_debug_lines(void **state)
{
    (void)state;
    cn_event_log_begin();
    assert_int_equal(warn_bytes(), 0);
    cn_log_set_level(CN_LOG_DEBUG);
    assert_true(warn_bytes() > 0);
    cn_log_set_level(CN_LOG_INFO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(messages_are_debug_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
