/* test_load_gate.c - engines that are loaded at once measure their links alone. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/start/load_gate.h"

enum { N = 6, FAILS = 2, STEP_US = 3000 };

static cn_load_gate *gate;
static atomic_uint n_loading, n_measuring, n_measured, n_wrong;

static void *load(void *index)
{
    const uintptr_t i = (uintptr_t)index;
    usleep((useconds_t)(STEP_US * i));
    atomic_fetch_sub(&n_loading, 1);
    cn_load_gate_arrive(gate);
    if (i == FAILS) return NULL;
    cn_load_gate_enter(gate);
    if (atomic_fetch_add(&n_measuring, 1) > 0 || atomic_load(&n_loading) > 0)
        atomic_fetch_add(&n_wrong, 1);
    usleep(STEP_US);
    atomic_fetch_add(&n_measured, 1);
    atomic_fetch_sub(&n_measuring, 1);
    cn_load_gate_leave(gate);
    return NULL;
}

static void engines_measure_alone(void **state)
{
    (void)state;
    pthread_t threads[N];
    assert_int_equal(cn_load_gate_create(&gate, N), CN_OK);
    atomic_store(&n_loading, N);
    for (uintptr_t i = 0; i < N; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, load, (void *)i), 0);
    for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
    cn_load_gate_free(gate);
    assert_int_equal(n_wrong, 0);
    assert_int_equal(n_measured, N - 1);
}

static void *wait_in_gate(void *context)
{
    (void)context;
    cn_load_gate_arrive(gate);
    cn_load_gate_enter(gate);
    cn_load_gate_leave(gate);
    return NULL;
}

static void nobody_waits_for_engines_that_never_arrive(void **state)
{
    (void)state;
    pthread_t waits;
    assert_int_equal(cn_load_gate_create(&gate, N), CN_OK);
    assert_int_equal(pthread_create(&waits, NULL, wait_in_gate, NULL), 0);
    usleep(STEP_US);
    cn_load_gate_open(gate);
    pthread_join(waits, NULL);
    wait_in_gate(NULL);
    cn_load_gate_free(gate);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_measure_alone),
        cmocka_unit_test(nobody_waits_for_engines_that_never_arrive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
