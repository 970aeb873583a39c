/* test_spool.c - a server starts on a spool with damaged files: a damage costs what it concerns, is
 * named in the log, and ends when the file is repaired. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/jobs_rig.h"

enum { LINES = 4, DEEP = 100000 };

/* ---- files of the spool ---- */

static void shell(const char *format, const char *path)
{
    char command[1024];
    snprintf(command, sizeof command, format, path, path, path, path);
    if (system(command) != 0) fail_msg("%s", command);
}

static void path_of(char *path, const char *place, const char *id, const char *suffix)
{
    snprintf(path, 160, "%s/spool/%s/%s%s", jobs.dir, place, id, suffix);
}

static void put(const char *path, const void *text, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static size_t get(const char *path, char *text, size_t size)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    const size_t n = fread(text, 1, size - 1, f);
    text[n] = '\0';
    fclose(f);
    return n;
}

/* Opens the spool with its warnings in a file. Fails if they do not contain the id. */
static void open_and_expect(const char *id)
{
    char path[64];
    static char log[1 << 16];
    snprintf(path, sizeof path, "%s/log", jobs.dir);
    FILE *f = fopen(path, "w");
    const int before = dup(STDERR_FILENO);
    assert_true(f && before >= 0 && dup2(fileno(f), STDERR_FILENO) >= 0);
    cn_log_set_level(CN_LOG_WARN);
    jobs_open();
    jobs_pump(3); /* a batch opens its files */
    cn_log_set_level(CN_LOG_ERROR);
    dup2(before, STDERR_FILENO);
    close(before);
    fclose(f);
    get(path, log, sizeof log);
    if (!strstr(log, id)) fail_msg("%s is not in the log: %s", id, log);
}

/* ---- damages ---- */

/* What stands in a file instead of its text. */
static const char *const texts[] = {
    "",
    "8",
    "null",
    "true",
    "\"text\"",
    "[]",
    "[{}]",
    "{}",
    "{",
    "{\"id\":",
    "{\"id\": 1e999}",
    "{\"id\": 5}",
    "{\"id\": null, \"id\": null}",
    "{\"id\": \"a\\u0000b\"}",
    "\xff\xfe{}",
    "{} {}",
    "{\"id\": 123456789012345678901234567890}",
};

/* Commands that replace a file. */
static const char *const kinds[] = {
    "rm %s && mkdir %s",           "rm %s && ln -s /etc/hostname %s", "rm %s && ln -s nowhere %s",
    "rm %s && mkfifo %s",          "head -c 65536 /dev/zero >%s",     "truncate -s 16M %s",
    "rm %s && ln -s /dev/zero %s",
};

/* Damages of single members of a record: the text is replaced where the record has `of`. */
static const struct {
    const char *of, *by;
} members[] = {
    {"\"id\": \"", "\"id\": \"x"},
    {"\"id\": ", "\"id\": [], \"was\": "},
    {"\"created_at\": ", "\"created_at\": -"},
    {"\"created_at\": ", "\"created_at\": 99999999999999999999"},
    {"\"created_at\": ", "\"created_at\": {}, \"was\": "},
    {"\"order\": ", "\"order\": 9223372036854775807, \"was\": "},
    {"\"order\": ", "\"order\": 1.5, \"was\": "},
    {"\"owner\": ", "\"owner\": 7, \"was\": "},
};
static const struct {
    const char *of, *by;
} batch_members[] = {
    {"\"status\": \"", "\"status\": \"un"},
    {"\"endpoint\": ", "\"endpoint\": [\"/v1\"], \"was\": "},
    {"\"completion_window\": \"24h\"", "\"completion_window\": \"12345678901234\xc3\xa9h\""},
    {"\"input_file_id\": \"file-", "\"input_file_id\": \"../../x-"},
    {"\"output\": \"file-", "\"output\": \"../"},
    {"\"errors\": ", "\"errors\": 3, \"was\": "},
    {"\"total\": ", "\"total\": 9223372036854775807, \"was\": "},
    {"\"usage\": ", "\"usage\": [], \"was\": "},
    {"\"metadata\": ", "\"metadata\": {\"a\": [1]}, \"was\": "},
    {"\"metadata\": ", "\"metadata\": \"a\", \"was\": "},
    {"\"cinch\": ", "\"cinch\": null, \"was\": "},
    {"\"in_progress_at\": ", "\"in_progress_at\": \"now\", \"was\": "},
    {"\"output_file_id\": ", "\"output_file_id\": 5, \"was\": "},
};

static void replace(const char *path, const char *of, const char *by)
{
    static char text[1 << 16], changed[1 << 17];
    get(path, text, sizeof text);
    const char *at = strstr(text, of);
    if (!at) fail_msg("%s is not in %s", of, text);
    const int n =
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, by, at + strlen(of));
    put(path, changed, (size_t)n);
}

/* ---- tests ---- */

static cn_spool_id hurt, beside, input, output;

/* Two batches in progress; one line of each is answered. */
static void begin_two(void)
{
    char text[1 << 12], path[160];
    input = jobs_upload_lines(LINES);
    hurt = jobs_create(&input);
    const cn_spool_id file = jobs_upload_lines(LINES);
    beside = jobs_create(&file);
    jobs.max = 2;
    jobs_pump(4);
    jobs_work(2);
    jobs_pump(1);
    jobs.max = JOBS_MAX_SUBMITTED;
    jobs_close();
    path_of(path, "batches", hurt.text, ".json");
    get(path, text, sizeof text);
    const char *at = strstr(text, "\"output\": \"");
    assert_non_null(at);
    snprintf(output.text, sizeof output.text, "%.29s", at + strlen("\"output\": \""));
}

/* Starts on the damaged spool: the log names the id, and the other batch goes on. The lists can be
 * made. Then repairs the file. */
static void expect_cost(const char *path, const char *id)
{
    json_t *list = NULL;
    open_and_expect(id);
    jobs_pump(3);
    assert_int_equal(cn_batches_list(jobs.batches, &jobs_viewer, NULL, 100, &list), CN_OK);
    json_decref(list);
    cn_files *files = cn_batches_files(jobs.batches);
    for (size_t i = 0; i < cn_files_count(files); i++) {
        json_t *file = cn_file_json(cn_files_at(files, i));
        assert_non_null(file);
        json_decref(file);
    }
    jobs_expect_status(&beside, "in_progress");
    assert_true(jobs.n > 0);
    jobs_work(0);
    jobs_close();
    shell("rm -rf %s && cp %s.whole %s", path);
}

static void damage(const char *path, const char *id)
{
    shell("cp %s %s.whole", path);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put(path, texts[i], strlen(texts[i]));
        expect_cost(path, id);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        shell(kinds[i], path);
        expect_cost(path, id);
    }
    static char deep[DEEP];
    memset(deep, '[', sizeof deep);
    put(path, deep, sizeof deep);
    expect_cost(path, id);
}

static void expect_the_end(void)
{
    jobs_open();
    jobs_run_all();
    const cn_spool_id *const both[] = {&hurt, &beside};
    for (int i = 0; i < 2; i++) {
        jobs_expect_status(both[i], "completed");
        jobs_expect_files(both[i], LINES, 0);
    }
    assert_non_null(cn_files_find(cn_batches_files(jobs.batches), &input));
}

static void a_damaged_record_costs_only_itself(void **state)
{
    (void)state;
    char path[160];
    begin_two();
    path_of(path, "batches", hurt.text, ".json");
    damage(path, hurt.text);
    for (size_t i = 0; i < sizeof batch_members / sizeof *batch_members; i++) {
        replace(path, batch_members[i].of, batch_members[i].by);
        expect_cost(path, hurt.text);
    }
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        replace(path, members[i].of, members[i].by);
        expect_cost(path, hurt.text);
    }
    path_of(path, "files", input.text, ".json");
    damage(path, input.text);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        replace(path, members[i].of, members[i].by);
        expect_cost(path, input.text);
    }
    replace(path, "\"purpose\": \"", "\"purpose\": \"a_purpose_of_a_later_version_");
    expect_cost(path, input.text);
    expect_the_end();
}

/* A copy of a record under another name is not a second batch that writes the same files. */
static void a_copied_record_is_ignored(void **state)
{
    (void)state;
    char path[160];
    begin_two();
    path_of(path, "batches", hurt.text, ".json");
    shell("cp %s $(dirname %s)/batch_000000000000000000000000.json", path);
    path_of(path, "files", input.text, ".json");
    shell("cp %s $(dirname %s)/file-000000000000000000000000.json && "
          "echo >$(dirname %s)/file-000000000000000000000000",
          path);
    open_and_expect("batch_000000000000000000000000");
    assert_int_equal(cn_files_count(cn_batches_files(jobs.batches)), 2);
    jobs_close();
    expect_the_end();
}

static void a_damaged_output_pauses_its_batch(void **state)
{
    (void)state;
    static const char *const lines[] = {"8\n",  "null\n",        "[]\n",
                                        "{}\n", "{\"id\": 5}\n", "{\"id\": \"a\\u0000b\"}\n"};
    char path[160];
    begin_two();
    path_of(path, "files", output.text, "");
    shell("cp %s %s.whole", path);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        put(path, lines[i], strlen(lines[i]));
        expect_cost(path, hurt.text);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strchr(kinds[i], '>') || strstr(kinds[i], "truncate")) continue; /* an unended line */
        shell(kinds[i], path);
        expect_cost(path, hurt.text);
    }
    expect_the_end();
}

/* The greatest order leaves the records after it readable. */
static void the_greatest_order_costs_nobody(void **state)
{
    (void)state;
    char path[160];
    begin_two();
    path_of(path, "batches", hurt.text, ".json");
    replace(path, "\"order\": ", "\"order\": 9223372036854775806, \"was\": ");
    path_of(path, "files", input.text, ".json");
    replace(path, "\"order\": ", "\"order\": 9223372036854775806, \"was\": ");
    jobs_open();
    const cn_spool_id file = jobs_upload_lines(LINES), later = jobs_create(&file);
    jobs_run_all();
    jobs_close();
    expect_the_end();
    jobs_expect_status(&later, "completed");
    jobs_expect_files(&later, LINES, 0);
    assert_non_null(cn_files_find(cn_batches_files(jobs.batches), &file));
}

static void a_lock_that_is_not_a_file_is_named(void **state)
{
    (void)state;
    char path[160];
    cn_spool *spool = NULL;
    jobs_close();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        path_of(path, "", "lock", "");
        if (strchr(kinds[i], '>') || strstr(kinds[i], "truncate")) continue;
        shell(kinds[i], path);
        assert_int_equal(cn_spool_open(&spool, jobs.opts.dir), CN_ERR_IO);
        assert_non_null(strstr(cn_last_error(), "lock: expected a regular file"));
        shell("rm -rf %s && touch %s", path);
    }
    jobs_open();
}

int main(void)
{
#define IN_SPOOL(test) cmocka_unit_test_setup_teardown(test, jobs_set_up, jobs_tear_down)
    const struct CMUnitTest tests[] = {
        IN_SPOOL(a_damaged_record_costs_only_itself), IN_SPOOL(a_copied_record_is_ignored),
        IN_SPOOL(a_damaged_output_pauses_its_batch),  IN_SPOOL(the_greatest_order_costs_nobody),
        IN_SPOOL(a_lock_that_is_not_a_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
