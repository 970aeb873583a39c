/* test_merge_table.c - the table of places of `cinch merge`, beside a search of all entries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/offline/merge_table.h"

enum { N = 3000 };

/* An id as a hash is, or one of few that many entries share, or that differ in their last bits. */
static cn_id draw_id(void)
{
    const uint64_t any = (uint64_t)rand() << 33 ^ (uint64_t)rand() << 2;
    switch (rand() % 4) {
    case 0: return (cn_id){.hi = UINT64_MAX - (uint64_t)(rand() % 2), .lo = any & ~(uint64_t)3};
    case 1: return (cn_id){.hi = (uint64_t)(rand() % 3) << 47, .lo = (uint64_t)(rand() % 5) << 2};
    default: return (cn_id){.hi = any << 1, .lo = any & ~(uint64_t)3};
    }
}

static bool same_id(cn_id a, cn_id b) { return a.hi == b.hi && (a.lo | 1) == (b.lo | 1); }

static void check_found(const cn_merge_table *t, cn_id id)
{
    size_t n, expected = 0;
    for (size_t i = 0; i < t->len; i++) expected += same_id(t->at[i].id, id);
    const cn_merge_entry *e = cn_merge_table_find(t, id, &n);
    assert_int_equal(n, expected);
    assert_int_equal(e != NULL, expected > 0);
    for (size_t i = 0; i < n; i++) {
        assert_true(same_id(e[i].id, id));
        if (i == 0) continue;
        assert_true(e[i - 1].file < e[i].file ||
                    (e[i - 1].file == e[i].file && e[i - 1].offset < e[i].offset));
    }
}

static void every_id_is_found_with_all_its_lines(void **state)
{
    (void)state;
    cn_merge_table t = {0};
    size_t n_errors = 0;
    srand(1);
    for (uint64_t i = 0; i < N; i++) {
        cn_merge_entry e = {.id = draw_id(), .offset = i, .file = (uint32_t)(rand() % 3)};
        if (rand() % 5 == 0) e.id.lo |= 1, n_errors++;
        assert_int_equal(cn_merge_table_add(&t, &e), CN_OK);
    }
    assert_int_equal(cn_merge_table_sort(&t), CN_OK);
    assert_int_equal(t.n_errors, n_errors);
    for (size_t i = 0; i < t.len; i++) check_found(&t, t.at[i].id);
    for (int i = 0; i < N; i++) check_found(&t, draw_id());
    cn_merge_table_sort_by_place(&t);
    for (size_t i = 1; i < t.len; i++) assert_true(t.at[i - 1].file <= t.at[i].file);
    cn_merge_table_free(&t);
}

static void an_empty_table_has_no_id(void **state)
{
    (void)state;
    cn_merge_table t = {0};
    assert_int_equal(cn_merge_table_sort(&t), CN_OK);
    check_found(&t, (cn_id){.hi = 0});
    check_found(&t, (cn_id){.hi = UINT64_MAX});
    cn_merge_table_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_id_is_found_with_all_its_lines),
        cmocka_unit_test(an_empty_table_has_no_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
