/* test_pool.c - block states: taking, sharing, dropping, caching, reclaiming. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "paged/pool.h"

static cn_pool *make(uint32_t n_blocks)
{
    cn_pool *p;
    assert_int_equal(cn_pool_create(&p, n_blocks), CN_OK);
    return p;
}

static void sound(const cn_pool *p) { assert_null(cn_pool_check(p)); }

static void take_is_all_or_nothing(void **state)
{
    (void)state;
    cn_pool *p = make(3);
    uint32_t ids[3] = {99, 99, 99};
    assert_false(cn_pool_try_take(p, 4, ids));
    assert_int_equal(ids[0], 99);
    assert_int_equal(cn_pool_available(p), 3);
    assert_true(cn_pool_try_take(p, 3, ids));
    assert_true(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    for (int i = 0; i < 3; i++) {
        assert_in_range(ids[i], 0, 2);
        assert_int_equal(cn_pool_refs(p, ids[i]), 1);
    }
    assert_false(cn_pool_try_take(p, 1, ids));
    assert_true(cn_pool_try_take(p, 0, NULL));
    sound(p);
    cn_pool_free(p);
}

static void last_drop_frees(void **state)
{
    (void)state;
    cn_pool *p = make(1);
    uint32_t id;
    assert_true(cn_pool_try_take(p, 1, &id));
    cn_pool_share(p, id);
    assert_int_equal(cn_pool_refs(p, id), 2);
    assert_false(cn_pool_drop(p, id));
    assert_false(cn_pool_try_take(p, 1, &id));
    assert_true(cn_pool_drop(p, id));
    sound(p);
    assert_true(cn_pool_try_take(p, 1, &id));
    cn_pool_free(p);
}

typedef struct reclaimed {
    uint32_t ids[8], n;
} reclaimed;

static void note(void *ctx, uint32_t block)
{
    reclaimed *r = ctx;
    r->ids[r->n++] = block;
}

static void an_older_block_is_free_or_was_released_before_the_stamp(void **state)
{
    (void)state;
    cn_pool *p;
    uint32_t ids[3], id;
    assert_int_equal(cn_pool_create(&p, 3), CN_OK);
    assert_true(cn_pool_try_take_older(p, 0, &id)); /* free blocks have no age */
    cn_pool_drop(p, id);
    assert_int_equal(cn_pool_n_released(p), 0);
    assert_true(cn_pool_try_take(p, 3, ids));
    for (uint32_t i = 0; i < 3; i++) cn_pool_set_cached(p, ids[i], true);
    assert_false(cn_pool_try_take_older(p, UINT64_MAX, &id)); /* all are used */
    cn_pool_drop(p, ids[1]);
    const uint64_t stamp = cn_pool_n_released(p);
    cn_pool_drop(p, ids[0]);
    assert_false(cn_pool_try_take_older(p, stamp - 1, &id));
    assert_true(cn_pool_try_take_older(p, stamp, &id));
    assert_int_equal(id, ids[1]);
    assert_false(cn_pool_try_take_older(p, stamp, &id)); /* ids[0] was released later */
    cn_pool_share(p, ids[0]);
    cn_pool_drop(p, ids[0]); /* released again: newer */
    assert_false(cn_pool_try_take_older(p, stamp + 1, &id));
    assert_true(cn_pool_try_take_older(p, stamp + 2, &id));
    assert_int_equal(id, ids[0]);
    cn_pool_free(p);
}

/* Blocks that were never used stay unused while freed blocks are available. */
static void freed_blocks_are_reused_before_new_ones(void **state)
{
    (void)state;
    cn_pool *p = make(100);
    uint32_t ids[3], most = 0;
    for (uint32_t round = 0; round < 50; round++) {
        const uint32_t n = 1 + round % 3;
        assert_true(cn_pool_try_take(p, n, ids));
        for (uint32_t i = 0; i < n; i++) most = cn_max_u32(most, ids[i]);
        for (uint32_t i = 0; i < n; i++) cn_pool_drop(p, ids[i]);
    }
    assert_int_equal(most, 2);
    cn_pool_free(p);
}

static void cached_blocks_return_in_order_of_release(void **state)
{
    (void)state;
    cn_pool *p = make(4);
    reclaimed r = {{0}, 0};
    cn_pool_on_reclaim(p, note, &r);
    uint32_t ids[4], again[4];
    assert_true(cn_pool_try_take(p, 4, ids));
    for (int i = 0; i < 3; i++) cn_pool_set_cached(p, ids[i], true);
    cn_pool_drop(p, ids[2]);
    cn_pool_drop(p, ids[0]);
    cn_pool_drop(p, ids[1]);
    cn_pool_drop(p, ids[3]);
    assert_int_equal(cn_pool_cached_only(p), 3);
    assert_int_equal(cn_pool_available(p), 4);
    sound(p);
    cn_pool_share(p, ids[2]); /* shared again: no longer the oldest */
    assert_int_equal(cn_pool_available(p), 3);
    assert_true(cn_pool_drop(p, ids[2]));
    assert_true(cn_pool_try_take(p, 3, again));
    assert_int_equal(again[0], ids[3]); /* the free block goes first: no cached content is lost */
    assert_int_equal(r.n, 2);
    assert_int_equal(r.ids[0], ids[0]);
    assert_int_equal(r.ids[1], ids[1]);
    assert_false(cn_pool_is_cached(p, ids[0]));
    sound(p);
    cn_pool_free(p);
}

static void forgetting_a_cached_only_block_frees_it(void **state)
{
    (void)state;
    cn_pool *p = make(2);
    uint32_t id;
    assert_true(cn_pool_try_take(p, 1, &id));
    cn_pool_set_cached(p, id, true);
    cn_pool_drop(p, id);
    cn_pool_set_cached(p, id, false);
    assert_int_equal(cn_pool_cached_only(p), 0);
    assert_int_equal(cn_pool_available(p), 2);
    sound(p);
    cn_pool_free(p);
}

static void refuses_an_empty_pool(void **state)
{
    (void)state;
    cn_pool *p;
    assert_int_equal(cn_pool_create(&p, 0), CN_ERR_ARG);
    assert_null(p);
    cn_pool_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(take_is_all_or_nothing),
        cmocka_unit_test(last_drop_frees),
        cmocka_unit_test(an_older_block_is_free_or_was_released_before_the_stamp),
        cmocka_unit_test(freed_blocks_are_reused_before_new_ones),
        cmocka_unit_test(cached_blocks_return_in_order_of_release),
        cmocka_unit_test(forgetting_a_cached_only_block_frees_it),
        cmocka_unit_test(refuses_an_empty_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
