/* test_replace_file.c - a file is replaced as a whole or not at all, links are followed, and
 * devices are written in place. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/replace_file.h"

static char dir[] = "/tmp/cinch_replace_XXXXXX";

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/cinch_replace_XXXXXX");
    return mkdtemp(dir) && chdir(dir) == 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return chdir("/") == 0 ? system(command) : -1;
}

static cn_status replace(const char *path, const char *text)
{
    return cn_replace_file(path, text, strlen(text));
}

static void expect_text(const char *path, const char *want)
{
    char text[256];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    assert_string_equal(text, want);
}

static void a_file_keeps_its_mode_and_links_to_it(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(replace("file", "one"), CN_OK);
    assert_int_equal(chmod("file", 0640), 0);
    assert_int_equal(symlink("file", "link"), 0);
    assert_int_equal(replace("link", "two"), CN_OK);
    expect_text("file", "two");
    assert_int_equal(lstat("link", &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat("file", &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(access("file.cinch-tmp", F_OK), -1);
}

/* In a child, because the limit stays: the old text is kept and nothing is left beside it. */
static int replace_on_a_full_disk(void)
{
    static char text[4096];
    const struct rlimit limit = {sizeof text / 2, sizeof text / 2};
    memset(text, 'x', sizeof text);
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    if (cn_replace_file("file", text, sizeof text) != CN_ERR_IO) return 2;
    if (!strstr(cn_last_error(), strerror(EFBIG))) return 3;
    return access("file.cinch-tmp", F_OK) == 0 ? 4 : 0;
}

static void a_full_disk_keeps_the_old_file(void **state)
{
    (void)state;
    int status;
    assert_int_equal(replace("file", "one"), CN_OK);
    const pid_t child = fork();
    if (child == 0) _exit(replace_on_a_full_disk());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    expect_text("file", "one");
}

static void devices_and_descriptors_are_written_in_place(void **state)
{
    (void)state;
    struct stat st;
    char name[32];
    assert_int_equal(replace("/dev/null", "one"), CN_OK);
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    assert_int_equal(replace("/dev/full", "one"), CN_ERR_IO);
    assert_non_null(strstr(cn_last_error(), "/dev/full: No space left on device"));
    const int fd = open("file", O_RDWR | O_CREAT, 0666);
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    assert_true(cn_is_stream(name));
    assert_int_equal(replace(name, "two"), CN_OK);
    close(fd);
    expect_text("file", "two");
    assert_int_equal(replace("no/file", "one"), CN_ERR_IO);
    assert_non_null(strstr(cn_last_error(), "no/file: No such file"));
    assert_int_equal(replace(".", "one"), CN_ERR_IO);
}

static void expect_path(const char *path, const char *want)
{
    char *real = cn_resolve_path(path);
    if (!want) assert_null(real);
    else assert_string_equal(real, want);
    cn_free(real);
}

static void paths_are_resolved_up_to_the_last_name(void **state)
{
    (void)state;
    char here[PATH_MAX], file[PATH_MAX + 8];
    assert_non_null(realpath(dir, here));
    snprintf(file, sizeof file, "%s/file", here);
    assert_int_equal(mkdir("sub", 0777), 0);
    assert_int_equal(symlink("../file", "sub/link"), 0);
    assert_int_equal(symlink(file, "absolute"), 0);
    assert_int_equal(symlink("loop", "loop"), 0);
    for (int exists = 0; exists < 2; exists++) {
        expect_path("file", file);
        expect_path("./sub/../file", file);
        expect_path("sub/link", file);
        expect_path("absolute", file);
        assert_int_equal(replace("sub/link", "one"), CN_OK);
    }
    expect_path("/file", "/file");
    expect_path("loop", NULL);
    assert_int_equal(errno, ELOOP);
    expect_path("no/file", NULL);
    assert_int_equal(errno, ENOENT);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(a_file_keeps_its_mode_and_links_to_it),
        IN_DIR(a_full_disk_keeps_the_old_file),
        IN_DIR(devices_and_descriptors_are_written_in_place),
        IN_DIR(paths_are_resolved_up_to_the_last_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
