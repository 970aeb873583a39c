/* test_list.c - the order of intrusive lists after appending, prepending, removing and popping, and
 * the conversion of a member to its struct. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/base/list.h"

typedef struct item {
    char name;
    cn_list_node node;
} item;

/* Checks the names of all items, walked forwards and backwards. */
static void expect(const cn_list *l, const char *names)
{
    uint32_t n = 0;
    for (item *i = CN_CONTAINER_OF(l->head, item, node); i;
         i = CN_CONTAINER_OF(i->node.next, item, node))
        assert_int_equal(i->name, names[n++]);
    assert_int_equal(names[n], '\0');
    assert_int_equal(l->n, n);
    for (item *i = CN_CONTAINER_OF(l->tail, item, node); i;
         i = CN_CONTAINER_OF(i->node.prev, item, node))
        assert_int_equal(i->name, names[--n]);
    assert_int_equal(n, 0);
}

static void nodes_keep_their_order(void **state)
{
    (void)state;
    item a = {'a', {0}}, b = {'b', {0}}, c = {'c', {0}}, d = {'d', {0}};
    cn_list l = {0};
    expect(&l, "");
    assert_null(cn_list_pop(&l));
    cn_list_append(&l, &b.node);
    expect(&l, "b");
    cn_list_append(&l, &c.node);
    cn_list_prepend(&l, &a.node);
    cn_list_append(&l, &d.node);
    expect(&l, "abcd");
    cn_list_remove(&l, &b.node); /* removes from the middle, the front and the end */
    expect(&l, "acd");
    cn_list_remove(&l, &a.node);
    expect(&l, "cd");
    cn_list_remove(&l, &d.node);
    expect(&l, "c");
    cn_list_prepend(&l, &d.node);
    expect(&l, "dc");
    assert_ptr_equal(CN_CONTAINER_OF(cn_list_pop(&l), item, node), &d);
    assert_ptr_equal(cn_list_pop(&l), &c.node);
    expect(&l, "");
    cn_list_prepend(&l, &a.node);
    expect(&l, "a");
}

static void a_member_leads_to_its_struct(void **state)
{
    (void)state;
    item a = {'a', {0}};
    assert_ptr_equal(CN_CONTAINER_OF(&a.node, item, node), &a);
    assert_ptr_equal(CN_CONTAINER_OF(&a.name, item, name), &a);
    const cn_list_node *none = NULL;
    assert_null(CN_CONTAINER_OF(none, item, node));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_keep_their_order),
        cmocka_unit_test(a_member_leads_to_its_struct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
