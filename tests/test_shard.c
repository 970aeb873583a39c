/* test_shard.c - parts of an input: every line is in exactly one. What the environment of a task
 * says about its shard. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/line_reader.h"
#include "engine/options/options.h"

/* ---- parts of a file ---- */

enum { MAX_LINES = 400, MAX_PARTS = 97, LINE_LIMIT = 32 << 20 };

/* What the lines of a part are checked by. */
typedef struct lines {
    uint64_t number[MAX_LINES], offset[MAX_LINES];
    size_t n_bytes[MAX_LINES];
    size_t n;
} lines;

static void read_part(const char *path, const cn_line_part *part, lines *out)
{
    cn_line_reader *r;
    cn_line line;
    cn_line_state state = CN_LINE_READY;
    uint64_t before = 0;
    out->n = 0;
    assert_int_equal(cn_line_reader_open(&r, path, LINE_LIMIT), CN_OK);
    assert_int_equal(cn_line_reader_take_part(r, part), CN_OK);
    while (state != CN_LINE_END) {
        assert_int_equal(cn_line_reader_next(r, 0, &line, &state), CN_OK);
        if (state != CN_LINE_READY) continue;
        assert_true(out->n < MAX_LINES);
        assert_int_equal(cn_line_reader_lines_before(r, &before), CN_OK);
        out->number[out->n] = line.number + before;
        out->offset[out->n] = line.offset;
        out->n_bytes[out->n++] = line.n;
    }
    const uint64_t done = cn_line_reader_bytes_done(r), total = cn_line_reader_bytes_total(r);
    assert_true(done >= total || (part->by_bytes && out->n == 0));
    cn_line_reader_close(r);
}

/* The parts of a file together have its lines, each once, and those by bytes in its order. */
static void check_parts(const char *path, uint32_t of, bool by_bytes)
{
    static lines all, part;
    static bool seen[MAX_LINES];
    size_t n = 0;
    read_part(path, &(cn_line_part){0}, &all);
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < of; i++) {
        const cn_line_part p = {i, of, by_bytes};
        read_part(path, &p, &part);
        for (size_t k = 0; k < part.n; k++) {
            size_t at = 0;
            while (at < all.n && all.number[at] != part.number[k]) at++;
            if (at == all.n || seen[at])
                fail_msg("part %u of %u: line %llu", i, of, (unsigned long long)part.number[k]);
            seen[at] = true;
            assert_int_equal(part.offset[k], all.offset[at]);
            assert_int_equal(part.n_bytes[k], all.n_bytes[at]);
            if (by_bytes) assert_int_equal(at, n + k);
            else assert_int_equal((part.number[k] - 1) % of, i);
        }
        n += part.n;
    }
    assert_int_equal(n, all.n);
}

static void with_file(const char *text, size_t n, const uint32_t *counts, size_t n_counts)
{
    char path[] = "/tmp/cinch_shard_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, n), n);
    close(fd);
    for (size_t i = 0; i < n_counts; i++) {
        check_parts(path, counts[i], false);
        check_parts(path, counts[i], true);
    }
    unlink(path);
}

static void every_line_is_in_one_part(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", "\n", "a", "a\n", "\xEF\xBB\xBF{}\n{}\n", "a\r\nbb\r\n\r\nccc\r\n", "\n\n\na\n\n\nb",
        "a\nb\nc\nd\ne\nf\ng\nh", "one line that is longer than all others together\nb\nc\n",
    };
    uint32_t counts[MAX_PARTS];
    for (uint32_t i = 0; i < MAX_PARTS; i++) counts[i] = i + 1;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        with_file(texts[i], strlen(texts[i]), counts, MAX_PARTS);
}

static void random_files_and_long_lines(void **state)
{
    (void)state;
    enum { BYTES = 40 << 20 };
    static const uint32_t few[] = {1, 2, 3, 8, 97};
    char *text = malloc(BYTES);
    assert_non_null(text);
    srand(7);
    for (int round = 0; round < 20; round++) {
        size_t n = 0;
        for (int i = 0; i < 60; i++) {
            const size_t len = (size_t)(rand() % 40);
            memset(text + n, 'x', len);
            n += len;
            if (rand() % 4 == 0) text[n++] = '\r';
            text[n++] = '\n';
        }
        with_file(text, n - (size_t)(rand() % 2), few, 5);
    }
    /* Longer than a line may be, and over the borders of many parts. */
    memset(text, 'x', BYTES);
    text[99] = text[LINE_LIMIT + 200] = text[LINE_LIMIT + 300] = '\n';
    with_file(text, BYTES, few + 2, 2);
    free(text);
}

static void a_pipe_has_no_parts_of_bytes(void **state)
{
    (void)state;
    char path[] = "/tmp/cinch_shard_XXXXXX";
    assert_non_null(mkdtemp(path));
    rmdir(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    FILE *keep = fopen(path, "r+");
    cn_line_reader *r;
    assert_int_equal(cn_line_reader_open(&r, path, 100), CN_OK);
    assert_int_equal(cn_line_reader_take_part(r, &(cn_line_part){0, 2, true}), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "split it by lines"));
    cn_line_reader_close(r);
    fclose(keep);
    unlink(path);
}

/* ---- the environment ---- */

static const char *const names[] = {
    "CINCH_SHARD", "CINCH_SHARD_INDEX", "CINCH_SHARD_COUNT", "SLURM_ARRAY_TASK_ID",
    "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX",
    "SLURM_ARRAY_TASK_STEP", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS",
    "JOB_COMPLETION_INDEX", "SKYPILOT_JOB_RANK", "SKYPILOT_NUM_JOBS", "SKYPILOT_NODE_RANK",
    "SKYPILOT_NUM_NODES", "AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "RANK", "WORLD_SIZE",
};

/* Sets only the variables of "A=1 B=2". */
static void set_environment(const char *text)
{
    char copy[512], *rest = copy;
    snprintf(copy, sizeof copy, "%s", text);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    for (char *word; (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value = '\0';
        assert_int_equal(setenv(word, value + 1, 1), 0);
    }
}

static cn_status find(const char *environment, const char *shard, const char *output,
                      cn_config *c)
{
    set_environment(environment);
    const char *argv[] = {"run-batch", "--model", "m", "-i", "in", "-o", output, "--shard", shard};
    const uint32_t sections = CN_SECTION_CHECKPOINT | CN_SECTION_PROMPTS | CN_SECTION_RUN_BATCH;
    assert_int_equal(cn_config_parse_args(c, sections, 9, (char **)(uintptr_t)argv, NULL), CN_OK);
    return cn_config_find_shard(c);
}

static void the_environment_tells_the_shard(void **state)
{
    (void)state;
#define ARRAY(id, count, min, max, step)                                                   \
    "SLURM_ARRAY_TASK_ID=" #id " SLURM_ARRAY_TASK_COUNT=" #count " SLURM_ARRAY_TASK_MIN=" #min \
    " SLURM_ARRAY_TASK_MAX=" #max " SLURM_ARRAY_TASK_STEP=" #step " "
    static const struct {
        const char *environment;
        uint32_t index, of;
        const char *error; /* NULL: none */
    } rows[] = {
        {"CINCH_SHARD=3/8 RANK=1 WORLD_SIZE=2", 3, 8, NULL},
        {"CINCH_SHARD=8/8", 0, 0, "the shards are 0 to 7"},
        {"CINCH_SHARD=3", 0, 0, "expected I/N"},
        {"CINCH_SHARD_INDEX=3 CINCH_SHARD_COUNT=8", 3, 8, NULL},
        {"CINCH_SHARD_INDEX=3 RANK=1 WORLD_SIZE=2", 1, 2, NULL},
        {"CINCH_SHARD_COUNT=8", 0, 0, "but no index"},
        {"CINCH_SHARD_COUNT=0 RANK=1", 0, 0, "CINCH_SHARD_COUNT is 0"},
        {ARRAY(3, 8, 0, 7, 1), 3, 8, NULL},
        {ARRAY(6, 4, 0, 6, 2), 3, 4, NULL},
        {ARRAY(3, 2, 3, 7, 1), 0, 0, "set CINCH_SHARD_COUNT to the N of the first submission"},
        {ARRAY(1, 8, 1, 8, 1), 0, 0, "this array has gaps"},
        {ARRAY(0, 2, 0, 7, 1), 0, 0, "2 tasks from 0 to 7"},
        {ARRAY(7, 2, 3, 7, 1) "CINCH_SHARD_COUNT=8", 7, 8, NULL},
        {"SLURM_ARRAY_TASK_ID=3", 0, 0, "set CINCH_SHARD_COUNT"},
        {ARRAY(3, 4, 0, 3, 1) "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2", 7, 8, NULL},
        {ARRAY(3, 4, 0, 3, 1) "SLURM_PROCID=0 SLURM_NTASKS=2", 3, 4, NULL},
        {ARRAY(3, 1, 3, 3, 1) "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 CINCH_SHARD_COUNT=8",
         7, 8, NULL},
        {"SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2", 1, 2, NULL},
        {"SLURM_PROCID=1 SLURM_NTASKS=2", 0, 0, "the environment tells no shard"},
        {"JOB_COMPLETION_INDEX=5", 0, 0, "CINCH_SHARD_COUNT to the completions"},
        {"JOB_COMPLETION_INDEX=5 CINCH_SHARD_COUNT=64", 5, 64, NULL},
        {"JOB_COMPLETION_INDEX=64 CINCH_SHARD_COUNT=64", 0, 0, "JOB_COMPLETION_INDEX: shard 64"},
        {"SKYPILOT_JOB_RANK=2 SKYPILOT_NUM_JOBS=3 SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=1", 2, 3,
         NULL},
        {"SKYPILOT_JOB_RANK=2 SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=1", 0, 1, NULL},
        {"AWS_BATCH_JOB_ARRAY_INDEX=1 AWS_BATCH_JOB_ARRAY_SIZE=2", 1, 2, NULL},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", 1, 2, NULL},
        {"PMI_RANK=1 PMI_SIZE=2", 1, 2, NULL},
        {"RANK=1 WORLD_SIZE=2", 1, 2, NULL},
        {"RANK=1 WORLD_SIZE=2 CINCH_SHARD_COUNT=4", 1, 4, NULL},
        {"RANK=one WORLD_SIZE=2", 0, 0, "RANK is \"one\": expected a number"},
        {"RANK=1", 0, 0, "set CINCH_SHARD=I/N or use --shard I/N"},
        {"", 0, 0, "the environment tells no shard"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cn_config *c = cn_config_create();
        const cn_status status = find(rows[i].environment, "auto", "%i.jsonl", c);
        if (rows[i].error && (status != CN_ERR_ARG || !strstr(cn_last_error(), rows[i].error)))
            fail_msg("%s: %s", rows[i].environment, cn_last_error());
        if (!rows[i].error &&
            (status != CN_OK || c->shard_index != rows[i].index || c->shard_of != rows[i].of))
            fail_msg("%s: %u of %u", rows[i].environment, c->shard_index, c->shard_of);
        cn_config_free(c);
    }
}

static void names_expand(void **state)
{
    (void)state;
    static const struct {
        const char *shard, *output, *expanded;
    } rows[] = {
        {"3/64", "out/%i-of-%n.jsonl", "out/00003-of-00064.jsonl"},
        {"123456/1000000", "%i%%%n", "123456%1000000"},
        {"0/1", "/tmp", "/tmp/part-00000-of-00001.jsonl"},
        {"0/1", "/tmp/", "/tmp/part-00000-of-00001.jsonl"},
        {"0/1", "/tmp/%%i", NULL},
        {"0/1", "out.jsonl", NULL},
        {"1/1", "%i", NULL},
        {"0/0", "%i", NULL},
        {"0/1000001", "%i", NULL},
        {"1", "%i", NULL},
        {"-1/4", "%i", NULL},
        {"1/4 ", "%i", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cn_config *c = cn_config_create();
        const cn_status status = find("", rows[i].shard, rows[i].output, c);
        assert_int_equal(status, rows[i].expanded ? CN_OK : CN_ERR_ARG);
        if (rows[i].expanded) assert_string_equal(c->output_file, rows[i].expanded);
        cn_config_free(c);
    }
}

int main(void)
{
    cn_log_set_level(CN_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line_is_in_one_part),
        cmocka_unit_test(random_files_and_long_lines),
        cmocka_unit_test(a_pipe_has_no_parts_of_bytes),
        cmocka_unit_test(the_environment_tells_the_shard),
        cmocka_unit_test(names_expand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
