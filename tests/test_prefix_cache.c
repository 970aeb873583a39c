/* test_prefix_cache.c - exact hits along a chain, forgotten and reclaimed entries, many entries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "paged/prefix_cache.h"

enum { B = 4 };

typedef struct fixture {
    cn_pool *pool;
    cn_prefix_cache *cache;
} fixture;

static fixture make(uint32_t n_blocks)
{
    fixture f;
    assert_int_equal(cn_pool_create(&f.pool, n_blocks), CN_OK);
    assert_int_equal(cn_prefix_cache_create(&f.cache, f.pool, B, 42), CN_OK);
    return f;
}

static void done(fixture f)
{
    assert_null(cn_pool_check(f.pool));
    assert_null(cn_prefix_cache_check(f.cache));
    cn_prefix_cache_free(f.cache);
    cn_pool_free(f.pool);
}

static uint32_t take(fixture f)
{
    uint32_t id;
    assert_true(cn_pool_try_take(f.pool, 1, &id));
    return id;
}

static const uint32_t A[B] = {1, 2, 3, 4}, C[B] = {1, 2, 3, 5};

static void a_hit_needs_parent_and_every_token(void **state)
{
    (void)state;
    fixture f = make(4);
    uint32_t first = take(f), second = take(f);
    cn_prefix_key key = 0, k1 = cn_prefix_cache_insert(f.cache, CN_PREFIX_ROOT, A, first);
    cn_prefix_key k2 = cn_prefix_cache_insert(f.cache, k1, A, second);
    assert_true(k1 != CN_PREFIX_ROOT && k2 != CN_PREFIX_ROOT && k1 != k2);
    assert_int_equal(cn_prefix_cache_find(f.cache, CN_PREFIX_ROOT, A, &key), first);
    assert_int_equal(key, k1);
    assert_int_equal(cn_prefix_cache_find(f.cache, k1, A, &key), second);
    assert_int_equal(key, k2);
    assert_int_equal(cn_prefix_cache_find(f.cache, k2, A, &key), CN_NO_BLOCK);
    assert_int_equal(cn_prefix_cache_find(f.cache, CN_PREFIX_ROOT, C, &key), CN_NO_BLOCK);
    assert_int_equal(key, k2); /* a miss writes nothing */
    done(f);
}

static void the_first_of_equal_blocks_stays(void **state)
{
    (void)state;
    fixture f = make(4);
    uint32_t first = take(f), twin = take(f);
    cn_prefix_key key, k = cn_prefix_cache_insert(f.cache, CN_PREFIX_ROOT, A, first);
    assert_int_equal(cn_prefix_cache_insert(f.cache, CN_PREFIX_ROOT, A, twin), k);
    assert_int_equal(cn_prefix_cache_insert(f.cache, CN_PREFIX_ROOT, A, first), k);
    assert_int_equal(cn_prefix_cache_find(f.cache, CN_PREFIX_ROOT, A, &key), first);
    assert_false(cn_pool_is_cached(f.pool, twin));
    done(f);
}

static void a_forgotten_block_is_not_found(void **state)
{
    (void)state;
    fixture f = make(4);
    uint32_t first = take(f);
    cn_prefix_key key;
    cn_prefix_cache_insert(f.cache, CN_PREFIX_ROOT, A, first);
    cn_prefix_cache_forget(f.cache, first);
    cn_prefix_cache_forget(f.cache, first);
    assert_int_equal(cn_prefix_cache_find(f.cache, CN_PREFIX_ROOT, A, &key), CN_NO_BLOCK);
    assert_true(cn_pool_drop(f.pool, first));
    assert_int_equal(cn_pool_cached_only(f.pool), 0);
    done(f);
}

static void marks_follow_the_entries(void **state)
{
    (void)state;
    fixture f = make(4);
    const cn_prefix_marks *marks = cn_prefix_cache_marks(f.cache);
    const uint64_t of_a = cn_prefix_hash(7, A, B), of_c = cn_prefix_hash(7, C, B);
    const uint32_t block = take(f);
    assert_true(of_a != of_c && of_a != cn_prefix_hash(8, A, B)); /* 7, 8: of two owners */
    cn_prefix_cache_mark(f.cache, block, of_a);
    assert_false(cn_prefix_marks_has(marks, of_a)); /* the block has no entry */
    cn_prefix_cache_insert(f.cache, CN_PREFIX_ROOT, A, block);
    cn_prefix_cache_mark(f.cache, block, of_a);
    assert_true(cn_prefix_marks_has(marks, of_a));
    assert_false(cn_prefix_marks_has(marks, of_c));
    cn_prefix_cache_forget(f.cache, block);
    assert_false(cn_prefix_marks_has(marks, of_a));
    done(f);
}

static void a_reclaimed_block_loses_its_entry(void **state)
{
    (void)state;
    fixture f = make(1);
    uint32_t first = take(f);
    cn_prefix_key key, k = cn_prefix_cache_insert(f.cache, CN_PREFIX_ROOT, A, first);
    cn_pool_drop(f.pool, first);
    assert_int_equal(cn_prefix_cache_find(f.cache, CN_PREFIX_ROOT, A, &key), first);
    assert_int_equal(take(f), first);
    assert_int_equal(cn_prefix_cache_find(f.cache, CN_PREFIX_ROOT, A, &key), CN_NO_BLOCK);
    /* Equal tokens after the old key are now another prefix. */
    assert_true(cn_prefix_cache_insert(f.cache, CN_PREFIX_ROOT, A, first) != k);
    done(f);
}

/* With far more prefixes than blocks, every find must miss or return exactly the inserted block. */
static void many_entries_never_alias(void **state)
{
    (void)state;
    enum { N = 64, ROUNDS = 20000 };
    fixture f = make(N);
    uint32_t content[N] = {0};
    uint64_t seed = 7;
    unsigned hits = 0;
    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t v = (uint32_t)(seed >> 40) % 256;
        uint32_t tokens[B] = {v / 64, v / 16 % 4, v / 4 % 4, v % 4};
        cn_prefix_key key;
        uint32_t block = cn_prefix_cache_find(f.cache, CN_PREFIX_ROOT, tokens, &key);
        if (block == CN_NO_BLOCK) {
            block = take(f);
            cn_prefix_cache_insert(f.cache, CN_PREFIX_ROOT, tokens, block);
            content[block] = v;
        } else {
            cn_pool_share(f.pool, block);
            hits++;
        }
        assert_int_equal(content[block], v);
        cn_pool_drop(f.pool, block);
    }
    assert_true(hits > ROUNDS / 8 && hits < ROUNDS / 2);
    done(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_needs_parent_and_every_token),
        cmocka_unit_test(the_first_of_equal_blocks_stays),
        cmocka_unit_test(a_forgotten_block_is_not_found),
        cmocka_unit_test(marks_follow_the_entries),
        cmocka_unit_test(a_reclaimed_block_loses_its_entry),
        cmocka_unit_test(many_entries_never_alias),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
