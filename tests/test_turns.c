/* test_turns.c - one thread at a time has the turn, and those that entered with `first` get it
 * before the others. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <cmocka.h>

#include "engine/serve/calls/turns.h"

enum { N_THREADS = 6, N_ROUNDS = 2000 };

static cn_turns *turns;
static atomic_int inside, most_inside;
static atomic_uint n_done;

static void visit(void)
{
    if (atomic_fetch_add(&inside, 1) > 0) atomic_store(&most_inside, 2);
    atomic_fetch_add(&n_done, 1);
    atomic_fetch_sub(&inside, 1);
}

static void *work(void *first)
{
    for (int i = 0; i < N_ROUNDS; i++) {
        cn_turns_enter(turns, first != NULL);
        visit();
        cn_turns_pass(turns);
        visit();
        cn_turns_leave(turns);
    }
    return NULL;
}

static void one_thread_is_inside(void **state)
{
    (void)state;
    pthread_t threads[N_THREADS];
    assert_int_equal(cn_turns_create(&turns), CN_OK);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, i % 3 ? NULL : &turns), 0);
    for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&most_inside), 0);
    assert_int_equal(atomic_load(&n_done), 2 * N_THREADS * N_ROUNDS);
    cn_turns_free(turns);
}

/* ---- order ---- */

static atomic_int n_entered;
static char order[4];

static void *enter_as(void *name)
{
    const char c = *(const char *)name;
    cn_turns_enter(turns, c == 'f');
    order[atomic_fetch_add(&n_entered, 1)] = c;
    cn_turns_leave(turns);
    return NULL;
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* The main thread has the turn, and passes it when the others wait. */
static void the_first_go_before(void **state)
{
    (void)state;
    static const char names[] = "abf";
    pthread_t threads[3];
    assert_int_equal(cn_turns_create(&turns), CN_OK);
    cn_turns_enter(turns, false);
    cn_turns_pass(turns); /* nobody waits */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, enter_as, (void *)(uintptr_t)&names[i]),
                         0);
        pause_ms(100); /* it waits now */
    }
    assert_int_equal(atomic_load(&n_entered), 0);
    cn_turns_pass(turns);
    assert_int_equal(atomic_load(&n_entered), 3); /* all of them came before */
    cn_turns_leave(turns);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    assert_int_equal(order[0], 'f');
    assert_int_equal(order[1], 'a');
    assert_int_equal(order[2], 'b');
    cn_turns_free(turns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_thread_is_inside),
        cmocka_unit_test(the_first_go_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
