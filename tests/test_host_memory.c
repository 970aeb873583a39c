/* test_host_memory.c - the memory that the machine has: limits of cgroups of both versions, in the
 * group of the process and above it, and the option that overrides them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/base.h"
#include "engine/start/host_memory.h"

static char dir[64];

/* Makes the folders of a file below dir, and writes the text. */
static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (char *slash = strchr(path + strlen(dir) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static uint64_t limit(const char *list)
{
    char path[128];
    put("list", list);
    snprintf(path, sizeof path, "%s/list", dir);
    return cn_host_cgroup_room(path, dir).all;
}

static uint64_t left(const char *list)
{
    char path[128];
    put("list", list);
    snprintf(path, sizeof path, "%s/list", dir);
    return cn_host_cgroup_room(path, dir).free;
}

static int make_tree(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/cinch-host-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_tree(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

static void version_2_is_read_with_the_groups_above(void **state)
{
    (void)state;
    put("a/memory.max", "5000000\n");
    put("a/b/memory.max", "max\n");
    put("a/b/c/memory.max", "7000000\n");
    assert_int_equal(limit("0::/a/b/c\n"), 5000000);
    put("a/b/memory.max", "4000000\n");
    assert_int_equal(limit("0::/a/b/c\n"), 4000000);
    assert_int_equal(limit("0::/a/b\n"), 4000000);
    assert_int_equal(limit("0::/other/path\n"), UINT64_MAX);
    put("memory.max", "3000000\n"); /* of a container that does not see its path */
    assert_int_equal(limit("0::/other/path\n"), 3000000);
    assert_int_equal(limit("0::/\n"), 3000000);
}

static void version_1_is_read_from_its_controller(void **state)
{
    (void)state;
    put("memory/x/memory.limit_in_bytes", "6000000\n");
    put("memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(limit("9:name=systemd:/\n8:pids:/x\n4:cpu,memory:/x\n0::/\n"), 6000000);
    assert_int_equal(limit("4:memory:/\n"), UINT64_C(9223372036854771712));
    assert_int_equal(limit("8:pids:/x\n"), UINT64_MAX);
    assert_int_equal(limit("damaged\n4\n5:\n"), UINT64_MAX);
    assert_int_equal(cn_host_cgroup_room("/no/such", dir).all, UINT64_MAX);
}

static void used_memory_is_taken_off(void **state)
{
    (void)state;
    put("a/memory.max", "5000000\n");
    put("a/b/memory.max", "max\n");
    assert_int_equal(left("0::/a/b\n"), 5000000);
    put("a/memory.current", "3000000\n");
    assert_int_equal(left("0::/a/b\n"), 2000000);
    put("a/memory.stat", "anon 2000000\ninactive_file 600000\nactive_file 100000\n");
    assert_int_equal(left("0::/a/b\n"), 2700000);
    put("a/b/memory.high", "4000000\n");
    put("a/b/memory.current", "3000000\n");
    assert_int_equal(left("0::/a/b\n"), 1000000);
    assert_int_equal(limit("0::/a/b\n"), 4000000);
    put("a/b/memory.current", "4500000\n"); /* beyond memory.high */
    assert_int_equal(left("0::/a/b\n"), 0);
    assert_int_equal(left("0::/other\n"), UINT64_MAX);
    put("memory/x/memory.limit_in_bytes", "6000000\n");
    put("memory/x/memory.usage_in_bytes", "5000000\n");
    put("memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 1000000\n");
    assert_int_equal(left("4:cpu,memory:/x\n"), 2000000);
}

static void what_is_free_bounds_the_sum(void **state)
{
    (void)state;
    cn_config *c = cn_config_create();
    assert_non_null(c);
    c->swap_space_gib = 60;
    assert_int_equal(cn_host_check_within(c, (cn_host_room){100 * CN_GIB, 60 * CN_GIB}), CN_OK);
    assert_int_equal(cn_host_check_within(c, (cn_host_room){100 * CN_GIB, 59 * CN_GIB}),
                     CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--swap-space 60 exceeds the 59 GiB of memory that are "
                                            "free now, of 100: lower the sum, end the "
                                            "programs that hold the rest, or set --host-memory"));
    cn_config_free(c);
}

static void the_option_overrides_the_kernel(void **state)
{
    (void)state;
    cn_config *c = cn_config_create();
    assert_non_null(c);
    assert_true(cn_host_bytes(c) > 0);
    c->host_memory_gib = 100;
    assert_int_equal(cn_host_bytes(c), 100 * CN_GIB);
    c->swap_space_gib = 69.5f;
    assert_int_equal(cn_host_check(c), CN_OK);
    c->swap_space_gib = 70.5f;
    assert_int_equal(cn_host_check(c), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--swap-space 70.5 exceeds 70 % of the machine's 100 "
                                            "GiB of memory (--host-memory): lower the sum to 70"));
    c->gpu_memory = UINT64_C(80) << 30; /* a plan for that machine */
    assert_int_equal(cn_host_check(c), CN_ERR_ARG);
    c->host_memory_gib = 0;
    c->swap_space_gib = 60000;
    assert_int_equal(cn_host_check(c), CN_OK);
    c->gpu_memory = 0;
    assert_int_equal(cn_host_check(c), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "or set --host-memory"));
    assert_int_equal(cn_host_check_size(c), CN_ERR_ARG);
    c->swap_space_gib = (float)(cn_gib(cn_host_bytes(c)) * 0.69); /* free or not */
    assert_int_equal(cn_host_check_size(c), CN_OK);
    cn_config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(version_2_is_read_with_the_groups_above, make_tree,
                                        remove_tree),
        cmocka_unit_test_setup_teardown(version_1_is_read_from_its_controller, make_tree,
                                        remove_tree),
        cmocka_unit_test_setup_teardown(used_memory_is_taken_off, make_tree, remove_tree),
        cmocka_unit_test(what_is_free_bounds_the_sum),
        cmocka_unit_test(the_option_overrides_the_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
