/* test_batch_output.c - an output file survives incomplete lines, a full disk and being read back.
 * A run resumes only with the configuration it began with. */
#include <errno.h>
#include <fcntl.h>
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

#include "engine/base/lock_file.h"
#include "engine/offline/batch_line.h"
#include "engine/offline/batch_output.h"
#include "engine/offline/fingerprint.h"
#include "engine/offline/resume.h"
#include "engine/options/option_value.h"
#include "engine/serve/spool/spool.h"

static char dir[] = "/tmp/cinch_output_XXXXXX";
static char path[64];

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/cinch_output_XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/out.jsonl", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static void put(const char *file, const char *text, size_t n)
{
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static char *get(const char *file)
{
    static char text[1 << 16];
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return text;
}

static cn_batch_output *open_output(void)
{
    cn_batch_output *o;
    assert_int_equal(cn_batch_output_open(&o, path, 0666), CN_OK);
    return o;
}

static cn_id id_of(int i)
{
    char text[16];
    snprintf(text, sizeof text, "r%d", i);
    return cn_id_of("custom_id", text, strlen(text));
}

static json_t *error_body(void)
{
    return json_pack("{s:{s:s, s:i}}", "error", "message", "bad", "line", 3);
}

/* Appends the line of request i. */
static cn_status append(cn_batch_output *o, int i, int status_code)
{
    char name[16];
    snprintf(name, sizeof name, "r%d", i);
    json_t *body = status_code == 200
                       ? json_pack("{s:{s:i, s:i}}", "usage", "prompt_tokens", 10,
                                   "completion_tokens", 100 + i)
                       : error_body();
    cn_buf line = {0};
    const cn_batch_notes grade = {.request_hash = i % 2 ? UINT64_MAX - (uint64_t)i : 0,
                                  .reference = "7",
                                  .matched = status_code == 200,
                                  .of = 1};
    cn_status status = cn_batch_line_format(&line, id_of(i), name, status_code, body, &grade);
    if (status == CN_OK) status = cn_batch_output_append(o, line.data, line.len);
    cn_buf_free(&line);
    return status;
}

static void a_line_has_openais_format(void **state)
{
    (void)state;
    cn_buf line = {0};
    const cn_batch_notes none = {0};
    assert_int_equal(cn_batch_line_format(&line, (cn_id){1, 4}, NULL, 400,
                                          error_body(), &none),
                     CN_OK);
    assert_string_equal(
        line.data,
        "{\"id\":\"cinch-00000000000000010000000000000004-0000000000000000\",\"custom_id\":null,"
        "\"response\":{\"status_code\":400,"
        "\"request_id\":\"cinch-batch-00000000000000010000000000000004-0000000000000000-"
        "0000000000000000\","
        "\"body\":{\"error\":{\"message\":\"bad\",\"line\":3}}},\"error\":null}\n");
    const cn_batch_notes notes = {.request_hash = 0xbeef, .run = 0xabc};
    cn_buf_clear(&line);
    assert_int_equal(cn_batch_line_format(&line, (cn_id){1, 4}, NULL, 400, error_body(), &notes),
                     CN_OK);
    assert_non_null(strstr(line.data, "\"request_id\":\"cinch-batch-0000000000000001000000000000"
                                      "0004-000000000000beef-0000000000000abc\""));
    assert_non_null(strstr(line.data, "0004-0000000000000abc\",\"custom_id\""));
    cn_buf_clear(&line);
    assert_int_equal(cn_batch_line_format(&line, (cn_id){1, 4}, "a", 200, NULL, &none),
                     CN_ERR_MEMORY);
    cn_buf_free(&line);
}

/* With and without the number of a run. */
static void lines_of_earlier_versions_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *id, *request_id;
        uint64_t hash;
    } lines[] = {
        {"cinch-00000000000000010000000000000004", "", 0},
        {"cinch-00000000000000010000000000000004",
         "cinch-batch-00000000000000010000000000000004-000000000000beef", 0xbeef},
        {"cinch-00000000000000010000000000000004-0123456789abcdef",
         "cinch-batch-00000000000000010000000000000004-000000000000beef-0123456789abcdef", 0xbeef},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        cn_batch_line_figures f;
        cn_buf text = {0};
        cn_buf_addf(&text, "{\"id\": \"%s\", \"response\": {\"status_code\": 200, "
                           "\"request_id\": \"%s\"}}", lines[i].id, lines[i].request_id);
        assert_int_equal(cn_batch_line_parse(&f, text.data, text.len), CN_OK);
        assert_true(f.id.hi == 1 && f.id.lo == 4);
        assert_int_equal(f.request_hash, lines[i].hash);
        cn_buf_free(&text);
    }
}

static void an_incomplete_tail_of_any_length_is_cut(void **state)
{
    (void)state;
    cn_batch_output *o = open_output();
    for (int i = 0; i < 3; i++) assert_int_equal(append(o, i, 200), CN_OK);
    const size_t whole = (size_t)cn_batch_output_bytes(o);
    cn_batch_output_close(o);
    char *text = strdup(get(path));
    const size_t second = (size_t)(strchr(strchr(text, '\n') + 1, '\n') - text) + 1;
    for (size_t n = second; n <= whole; n++) {
        put(path, text, n);
        o = open_output();
        uint64_t removed;
        assert_int_equal(cn_batch_output_repair(o, &removed), CN_OK);
        const size_t want = n == whole ? whole : second;
        assert_int_equal(cn_batch_output_bytes(o), want);
        assert_int_equal(removed, n - want);
        cn_batch_output_close(o);
        assert_int_equal(strlen(get(path)), want);
    }
    free(text);

    /* A tail longer than one read, and a file that is all tail. */
    char *junk = calloc(1, 200000);
    put(path, junk, 200000);
    o = open_output();
    uint64_t removed;
    assert_int_equal(cn_batch_output_repair(o, &removed), CN_OK);
    assert_int_equal(removed, 200000);
    assert_int_equal(cn_batch_output_bytes(o), 0);
    cn_batch_output_close(o);
    free(junk);
}

/* Runs fn in a process whose files may have at most 1,000 bytes. fn returns 0 on success. */
static void under_a_file_limit(int (*fn)(void))
{
    pid_t child = fork();
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        struct rlimit limit = {1000, 1000};
        _exit(setrlimit(RLIMIT_FSIZE, &limit) == 0 ? fn() : 2);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The last error has the cause that the system gave, although the first write was partial. */
static bool told_of(const char *name)
{
    return strstr(cn_last_error(), name) && strstr(cn_last_error(), strerror(EFBIG));
}

static int fill_an_output(void)
{
    cn_batch_output *o = open_output();
    int i = 0;
    while (append(o, i, 200) == CN_OK) i++;
    if (!told_of(path)) return 3;
    return i > 0 && cn_batch_output_bytes(o) <= 1000 ? 0 : 4;
}

static void a_full_disk_leaves_complete_lines(void **state)
{
    (void)state;
    under_a_file_limit(fill_an_output);
    const char *text = get(path);
    assert_true(strlen(text) > 0 && text[strlen(text) - 1] == '\n');
}

static int write_long_records(void)
{
    cn_buf record = {0};
    char text[2000];
    memset(text, 'x', sizeof text);
    if (cn_buf_add(&record, text, sizeof text) != CN_OK) return 3;
    if (cn_run_record_write(path, &record) != CN_ERR_IO || !told_of(path)) return 4;
    cn_spool *spool;
    cn_spool_id id;
    if (cn_spool_open(&spool, dir) != CN_OK) return 5;
    if (cn_spool_id_make(&id, cn_batch_prefix) != CN_OK) return 6;
    json_t *long_text = json_pack("{s:s%}", "text", text, sizeof text);
    cn_status status = cn_spool_put_record(spool, CN_SPOOL_BATCHES, &id, long_text);
    return status == CN_ERR_IO && told_of(id.text) ? 0 : 7;
}

static void a_failed_record_write_names_the_cause(void **state)
{
    (void)state;
    under_a_file_limit(write_long_records);
}

static void an_open_output_is_busy_for_another_run(void **state)
{
    (void)state;
    cn_batch_output *a = open_output(), *b;
    assert_int_equal(cn_batch_output_open(&b, path, 0666), CN_ERR_BUSY);
    cn_batch_output_close(a);
    b = open_output();
    cn_batch_output_close(b);
}

/* A clock whose pauses take no time. The other holder of the lock ends at `ends_s`. */
typedef struct other_run {
    double at_s, ends_s;
    int fd;
} other_run;

static double other_now_s(void *ctx) { return ((const other_run *)ctx)->at_s; }

static void other_pause(void *ctx, double seconds)
{
    other_run *r = ctx;
    r->at_s += seconds;
    if (r->at_s < r->ends_s || r->fd < 0) return;
    close(r->fd);
    r->fd = -1;
}

/* A killed run keeps its lock for a moment. */
static void a_lock_that_is_released_soon_is_waited_for(void **state)
{
    (void)state;
    for (int soon = 0; soon < 2; soon++) {
        other_run r = {.ends_s = soon ? 2.8 : 100};
        r.fd = open(path, O_RDWR | O_CREAT, 0666);
        const int fd = open(path, O_RDWR);
        assert_true(r.fd >= 0 && fd >= 0);
        const cn_clock clock = {other_now_s, other_pause, &r};
        assert_true(cn_lock_file_by(r.fd, &clock));
        assert_true(r.at_s == 0);
        assert_int_equal(cn_lock_file_by(fd, &clock), soon);
        if (!soon) assert_int_equal(errno, EWOULDBLOCK);
        assert_true(soon ? r.at_s < 2.9 : r.at_s >= 3 && r.at_s < 3.1);
        close(fd);
        if (r.fd >= 0) close(r.fd);
    }
}

static void reading_back_finds_ids_and_figures(void **state)
{
    (void)state;
    cn_batch_output *o = open_output();
    for (int i = 0; i < 100; i++) assert_int_equal(append(o, i, i % 10 ? 200 : 400), CN_OK);
    cn_id_set ids = {0};
    cn_batch_totals t = {0};
    assert_int_equal(cn_resume_scan(o, false, &ids, &t), CN_OK);
    assert_int_equal(t.answered, 90);
    assert_int_equal(t.errors, 10);
    assert_int_equal(t.graded, 100);
    assert_int_equal(t.matched, 90);
    assert_int_equal(t.prompt_tokens, 900);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(cn_id_set_marks(&ids, id_of(i)), CN_ID_DONE);
        assert_true(cn_id_set_hash(&ids, id_of(i)) == (i % 2 ? UINT64_MAX - (uint64_t)i : 0));
    }
    assert_int_equal(cn_id_set_marks(&ids, id_of(100)), 0);
    cn_id_set_free(&ids);
    cn_batch_output_close(o);
}

static void retried_errors_are_removed_from_the_file(void **state)
{
    (void)state;
    cn_batch_output *o = open_output();
    assert_int_equal(chmod(path, 0640), 0);
    for (int i = 0; i < 20; i++) assert_int_equal(append(o, i, i % 3 ? 200 : 500), CN_OK);
    cn_id_set ids = {0};
    cn_batch_totals t = {0};
    assert_int_equal(cn_resume_scan(o, true, &ids, &t), CN_OK);
    assert_int_equal(t.errors, 0);
    assert_int_equal(t.answered, 13);
    for (int i = 0; i < 20; i++)
        assert_int_equal(cn_id_set_marks(&ids, id_of(i)), i % 3 ? CN_ID_DONE : 0);
    cn_id_set_free(&ids);

    /* The new file must be the one that is locked, measured and appended to. */
    cn_batch_output *second;
    assert_int_equal(cn_batch_output_open(&second, path, 0666), CN_ERR_BUSY);
    assert_int_equal(append(o, 99, 200), CN_OK);
    assert_int_equal(cn_batch_output_bytes(o), strlen(get(path)));
    assert_null(strstr(get(path), "\"status_code\":500"));
    assert_non_null(strstr(get(path), "\"r99\""));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    cn_batch_output_close(o);
}

static void a_symbolic_link_keeps_pointing_at_the_file(void **state)
{
    (void)state;
    char real[64];
    struct stat st;
    snprintf(real, sizeof real, "%s/real.jsonl", dir);
    assert_int_equal(symlink("real.jsonl", path), 0);
    cn_batch_output *o = open_output();
    for (int i = 0; i < 20; i++) assert_int_equal(append(o, i, i % 3 ? 200 : 500), CN_OK);
    cn_id_set ids = {0};
    cn_batch_totals t = {0};
    assert_int_equal(cn_resume_scan(o, true, &ids, &t), CN_OK);
    assert_int_equal(append(o, 99, 200), CN_OK);
    cn_id_set_free(&ids);
    cn_batch_output_close(o);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_null(strstr(get(real), "\"status_code\":500"));
    assert_non_null(strstr(get(real), "\"r99\""));
}

/* A run whose file another process removed, replaced or changed must not end with success. */
static void a_file_that_others_changed_fails_at_the_end(void **state)
{
    (void)state;
    static const char *const texts[] = {"removed or replaced", "removed or replaced", "bytes"};
    for (int i = 0; i < 3; i++) {
        cn_batch_output *o = open_output();
        assert_int_equal(append(o, 1, 200), CN_OK);
        assert_int_equal(cn_batch_output_sync(o), CN_OK);
        if (i < 2) assert_int_equal(unlink(path), 0);
        if (i == 1) put(path, "other", 5);
        if (i == 2) assert_int_equal(truncate(path, 3), 0);
        assert_int_equal(append(o, 2, 200), CN_OK);
        assert_int_equal(cn_batch_output_sync(o), CN_ERR_IO);
        assert_non_null(strstr(cn_last_error(), texts[i]));
        cn_batch_output_close(o);
        unlink(path);
    }
}

static void an_unknown_line_is_refused_with_its_number(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "{\"id\":\"vllm-1\",\"response\":{\"status_code\":200}}\n", "not json\n", "{}\n",
        "{\"id\":\"cinch-0123456789abcdef0123456789abcde0\"}\n",
        "{\"id\":\"cinch-0123456789abcdef0123456789abcde0-1\","
        "\"response\":{\"status_code\":200}}\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        put(path, "", 0);
        cn_batch_output *o = open_output();
        assert_int_equal(append(o, 1, 200), CN_OK);
        assert_int_equal(cn_batch_output_append(o, lines[i], strlen(lines[i])), CN_OK);
        cn_id_set ids = {0};
        cn_batch_totals t = {0};
        assert_int_equal(cn_resume_scan(o, false, &ids, &t), CN_ERR_ARG);
        assert_non_null(strstr(cn_last_error(), "output line 2"));
        cn_id_set_free(&ids);
        cn_batch_output_close(o);
    }
}

/* ---- the record ---- */

/* Makes a directory with the checkpoint files that the fingerprint reads. */
static void make_checkpoint(const char *model, int byte)
{
    char file[128], *weights = malloc(1 << 20);
    assert_int_equal(mkdir(model, 0777) == 0 || access(model, F_OK) == 0, 1);
    snprintf(file, sizeof file, "%s/config.json", model);
    put(file, "{}", 2);
    memset(weights, 1, 1 << 20);
    memset(weights + (200 << 10), byte, (1 << 20) - (200 << 10));
    snprintf(file, sizeof file, "%s/model.safetensors", model);
    put(file, weights, 1 << 20);
    free(weights);
}

static void fingerprints_depend_on_content_not_names(void **state)
{
    (void)state;
    char a[64], b[64], file[96];
    snprintf(a, sizeof a, "%s/a", dir);
    snprintf(b, sizeof b, "%s/b", dir);
    make_checkpoint(a, 5);
    make_checkpoint(b, 5);
    uint64_t fa, fb;
    assert_int_equal(cn_fingerprint(&fa, a, NULL), CN_OK);
    assert_int_equal(cn_fingerprint(&fb, b, NULL), CN_OK);
    assert_true(fa == fb);
    snprintf(file, sizeof file, "%s/README.md", b);
    put(file, "x", 1);
    assert_int_equal(cn_fingerprint(&fb, b, NULL), CN_OK);
    assert_true(fa == fb);
    make_checkpoint(b, 6);
    assert_int_equal(cn_fingerprint(&fb, b, NULL), CN_OK);
    assert_true(fa != fb);
    make_checkpoint(b, 5);
    snprintf(file, sizeof file, "%s/config.json", b);
    put(file, "[]", 2);
    assert_int_equal(cn_fingerprint(&fb, b, NULL), CN_OK);
    assert_true(fa != fb);
    make_checkpoint(b, 5);
    snprintf(file, sizeof file, "%s/hf_quant_config.json", b);
    put(file, "{}", 2);
    assert_int_equal(cn_fingerprint(&fb, b, NULL), CN_OK);
    assert_true(fa != fb);
    assert_int_equal(unlink(file), 0);
    snprintf(file, sizeof file, "%s/select.safetensors", b);
    put(file, "x", 1);
    assert_int_equal(cn_fingerprint(&fb, b, NULL), CN_OK);
    assert_true(fa == fb);
    assert_int_equal(cn_fingerprint_channels(&fa, a), CN_OK);
    assert_int_equal(cn_fingerprint_channels(&fb, b), CN_OK);
    assert_true(fa == 0 && fb != 0);
    snprintf(file, sizeof file, "%s/retrieval.safetensors", b);
    put(file, "x", 1);
    assert_int_equal(cn_fingerprint(&fa, a, NULL), CN_OK);
    assert_int_equal(cn_fingerprint(&fb, b, NULL), CN_OK);
    assert_true(fa == fb);
    assert_int_equal(cn_fingerprint_head(&fa, a), CN_OK);
    assert_int_equal(cn_fingerprint_head(&fb, b), CN_OK);
    assert_true(fa == 0 && fb != 0);
    snprintf(file, sizeof file, "%s/retrieval.json", b);
    put(file, "{}", 2);
    assert_int_equal(cn_fingerprint_head(&fa, b), CN_OK);
    assert_true(fa != fb);
    assert_int_equal(cn_fingerprint(&fb, "/no/such", NULL), CN_ERR_IO);
}

static cn_config *make_config(void)
{
    char model[64];
    snprintf(model, sizeof model, "%s/model", dir);
    make_checkpoint(model, 5);
    cn_config *c = cn_config_create();
    c->model = cn_strdup(model);
    return c;
}

static void a_run_resumes_only_with_its_first_configuration(void **state)
{
    (void)state;
    char model[64], record_path[80];
    snprintf(model, sizeof model, "%s/model", dir);
    snprintf(record_path, sizeof record_path, "%s.cinch-run", path);
    make_checkpoint(model, 5);
    cn_config *c = cn_config_create();
    c->model = cn_strdup(model);
    cn_buf record = {0}, other = {0};
    assert_int_equal(cn_run_record_make(&record, c), CN_OK);
    assert_int_equal(cn_run_record_check(path, &record), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "does not exist"));
    assert_int_equal(cn_run_record_write(path, &record), CN_OK);
    assert_int_equal(cn_run_record_check(path, &record), CN_OK);
    assert_int_equal(cn_run_record_backend(path, "cuda, bfloat16"), CN_OK);
    assert_int_equal(cn_run_record_check(path, &record), CN_OK);
    assert_int_equal(cn_run_record_backend(path, "cuda, bfloat16"), CN_OK);
    assert_int_equal(cn_run_record_backend(path, "cpu, float32"), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "began on cuda, bfloat16, and this is cpu, float32"));

    /* These options do not change an answer. */
    c->max_inflight = 3;
    c->n_threads = 7;
    assert_int_equal(cn_run_record_make(&other, c), CN_OK);
    assert_int_equal(cn_run_record_check(path, &other), CN_OK);

    c->sampling.temperature = 0.5f;
    cn_buf_clear(&other);
    assert_int_equal(cn_run_record_make(&other, c), CN_OK);
    assert_int_equal(cn_run_record_check(path, &other), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--temperature was 1 and is now 0.5"));

    c->sampling.temperature = 1;
    make_checkpoint(model, 6);
    cn_buf_clear(&other);
    assert_int_equal(cn_run_record_make(&other, c), CN_OK);
    assert_int_equal(cn_run_record_check(path, &other), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "checkpoint"));

    static const char *const damaged[] = {"", "{", "[]", "{}", "{\"cinch_run\": 1}",
                                          "{\"cinch_run\": 1, \"model\": 1, \"version\": \"x\", "
                                          "\"options\": {}}",
                                          "{\"cinch_run\": 1, \"model\": \"m\", \"options\": "
                                          "{\"n\": 1}, \"version\": \"x\"}"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        put(record_path, damaged[i], strlen(damaged[i]));
        assert_int_not_equal(cn_run_record_check(path, &record), CN_OK);
    }
    cn_buf_free(&record);
    cn_buf_free(&other);
    cn_config_free(c);
}

/* The retrieval head belongs to the record of a run that declares `spec`. */
static void a_run_with_spec_resumes_only_with_its_head(void **state)
{
    (void)state;
    char head[96];
    for (int declared = 0; declared < 2; declared++) {
        cn_config *c = make_config();
        cn_buf record = {0}, other = {0};
        if (declared) c->kv_selectors |= 1U << CN_SELECT_SPEC;
        snprintf(head, sizeof head, "%s/retrieval.safetensors", c->model);
        put(head, "x", 1);
        assert_int_equal(cn_run_record_make(&record, c), CN_OK);
        assert_int_equal(cn_run_record_write(path, &record), CN_OK);
        assert_int_equal(cn_run_record_check(path, &record), CN_OK);
        put(head, "y", 1);
        assert_int_equal(cn_run_record_make(&other, c), CN_OK);
        assert_int_equal(cn_run_record_check(path, &other), declared ? CN_ERR_ARG : CN_OK);
        if (declared)
            assert_non_null(strstr(cn_last_error(), "retrieval.json differs from that"));
        assert_int_equal(unlink(head), 0);
        cn_run_record_remove(path);
        cn_buf_free(&record);
        cn_buf_free(&other);
        cn_config_free(c);
    }
}

/* The record is beside the file, so the run is found by the file's name and through a link. */
static void a_link_names_the_run_of_its_file(void **state)
{
    (void)state;
    char link[80], record_path[96];
    struct stat st;
    snprintf(link, sizeof link, "%s/link", dir);
    cn_config *c = make_config();
    cn_buf record = {0};
    assert_int_equal(cn_run_record_make(&record, c), CN_OK);
    assert_int_equal(symlink(path, link), 0);
    for (int through_link = 0; through_link < 2; through_link++) {
        const char *first = through_link ? link : path, *then = through_link ? path : link;
        assert_int_equal(cn_run_record_write(first, &record), CN_OK);
        assert_int_equal(cn_run_record_check(then, &record), CN_OK);
        assert_int_equal(cn_run_record_backend(then, "cpu"), CN_OK);
        assert_int_equal(lstat(link, &st), 0);
        assert_true(S_ISLNK(st.st_mode));
        snprintf(record_path, sizeof record_path, "%s.cinch-run", link);
        assert_int_equal(access(record_path, F_OK), -1);
        cn_run_record_remove(then);
        assert_int_equal(cn_run_record_check(first, &record), CN_ERR_ARG);
    }
    cn_buf_free(&record);
    cn_config_free(c);
}

/* Writes a record, without the line that begins with `line` if old, and resumes it with c. Frees
 * the record. */
static cn_status resume_record(cn_buf *record, cn_config *c, const char *line, bool old)
{
    char record_path[80], text[8192];
    cn_buf again = {0};
    snprintf(record_path, sizeof record_path, "%s.cinch-run", path);
    const char *at = strstr(record->data, line);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s", (int)(at - record->data), record->data,
             old ? strchr(at, '\n') + 1 : at);
    put(record_path, text, strlen(text));
    assert_int_equal(cn_run_record_adopt(path, c), CN_OK);
    assert_int_equal(cn_run_record_make(&again, c), CN_OK);
    const cn_status status = cn_run_record_check(path, &again);
    cn_buf_free(record);
    cn_buf_free(&again);
    return status;
}

/* Resumes a run whose record lacks the line `line` if `old`. The option has the value `given`, if
 * that is not NULL. Returns what the check of the record says; c has the options with which the run
 * goes on. */
static cn_status resume_run(cn_config *c, const char *line, bool old, const char *option,
                            const char *given)
{
    cn_buf record = {0};
    assert_int_equal(cn_run_record_make(&record, c), CN_OK);
    if (given) assert_int_equal(cn_option_set_text(c, cn_option_find(option), given), CN_OK);
    return resume_record(&record, c, line, old);
}

/* A run of a version without --json-whitespace keeps the white space that it began with. */
static void a_run_keeps_its_white_space(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const bool old = i < 2, given = i % 2;
        cn_config *c = make_config();
        const cn_status status = resume_run(c, "  \"json-whitespace\": \"none\",\n", old,
                                            "json-whitespace", given ? "none" : NULL);
        assert_int_equal(c->json_whitespace, old && !given ? CN_OPT_JSON_WHITESPACE_ANY
                                                           : CN_OPT_JSON_WHITESPACE_NONE);
        assert_int_equal(status, old && given ? CN_ERR_ARG : CN_OK);
        if (status != CN_OK)
            assert_non_null(strstr(cn_last_error(), "--json-whitespace was any and is now none"));
        cn_config_free(c);
    }
}

/* A run of a version without --kv-rule was scored by the paper's rule, and goes on with it. */
static void a_run_keeps_its_rule(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const bool given = i == 1;
        cn_config *c = make_config();
        const cn_status status =
            resume_run(c, "  \"kv-rule\": ", true, "kv-rule", given ? "scaled" : NULL);
        assert_int_equal(c->kv.rule, given ? CN_RULE_SCALED : CN_RULE_ZIPAGE);
        assert_int_equal(status, given ? CN_ERR_ARG : CN_OK);
        if (given)
            assert_non_null(strstr(cn_last_error(), "--kv-rule was zipage and is now scaled"));
        cn_config_free(c);
    }
}

/* A run whose version had the same defaults for every rule goes on with them, also in requests that
 * choose a rule. Another value is not taken over. */
static void a_run_keeps_the_defaults_of_its_rule(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        const bool old = i < 2;
        cn_config *c = make_config();
        assert_int_equal(cn_config_set(c, "kv-rule", "peak"), CN_OK);
        assert_int_equal(c->kv.window_tokens, 64);
        if (old) c->kv.window_tokens = i == 0 ? 16 : 48, c->kv.alpha = 0.8f;
        c->kv.pooling = CN_POOLING_FIRST;
        cn_config *now = make_config();
        assert_int_equal(cn_config_set(now, "kv-rule", "peak"), CN_OK);
        cn_buf record = {0};
        assert_int_equal(cn_run_record_make(&record, c), CN_OK);
        const cn_status status = resume_record(&record, now, " \"rule_defaults\": true,\n", old);
        assert_int_equal(status, i == 0 ? CN_OK : CN_ERR_ARG);
        if (i == 1) assert_non_null(strstr(cn_last_error(), "--kv-window was 48 and is now 64"));
        if (i == 2) assert_non_null(strstr(cn_last_error(), "--kv-pooling was first and is now"));
        assert_int_equal(cn_config_is_given(now, &now->kv.pooling), old);
        assert_int_equal(cn_config_is_given(now, &now->kv.window_tokens), i == 0);
        cn_config_free(c);
        cn_config_free(now);
    }
}

/* With the values of its own defaults, which are not those of another rule. */
static void a_run_of_rule_follow_goes_on_with_what_it_reads(void **state)
{
    (void)state;
    static const char *const changes[][3] = {
        {"kv-recent", NULL, NULL},
        {"kv-recent", "0.25", "--kv-recent was 0.5 and is now 0.25"},
        {"kv-rule", "scaled", "--kv-rule was follow and is now scaled"},
    };
    for (int i = 0; i < 3; i++) {
        cn_config *c = make_config();
        assert_int_equal(cn_config_set(c, "kv-rule", "follow"), CN_OK);
        const cn_status status =
            resume_run(c, " \"rule_defaults\": true,\n", false, changes[i][0], changes[i][1]);
        assert_int_equal(status, i == 0 ? CN_OK : CN_ERR_ARG);
        if (i > 0 && !strstr(cn_last_error(), changes[i][2])) fail_msg("%s", cn_last_error());
        cn_config_free(c);
    }
}

/* --chat-template FILE: the content of the file counts, not only its name. */
static void a_run_resumes_only_with_its_first_chat_template(void **state)
{
    (void)state;
    char model[64], chat[80];
    snprintf(model, sizeof model, "%s/model", dir);
    snprintf(chat, sizeof chat, "%s/chat.jinja", model);
    make_checkpoint(model, 5);
    put(chat, "one", 3);
    cn_config *c = cn_config_create();
    c->model = cn_strdup(model);
    cn_free(c->chat_template);
    c->chat_template = cn_strdup(chat);
    cn_buf record = {0}, other = {0};
    assert_int_equal(cn_run_record_make(&record, c), CN_OK);
    assert_int_equal(cn_run_record_write(path, &record), CN_OK);
    assert_int_equal(cn_run_record_check(path, &record), CN_OK);
    put(chat, "two", 3);
    assert_int_equal(cn_run_record_make(&other, c), CN_OK);
    assert_int_equal(cn_run_record_check(path, &other), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "the file of --chat-template differs"));
    cn_buf_free(&record);
    cn_buf_free(&other);
    cn_config_free(c);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_openais_format),
        cmocka_unit_test(lines_of_earlier_versions_are_read),
        IN_DIR(an_incomplete_tail_of_any_length_is_cut),
        IN_DIR(a_full_disk_leaves_complete_lines),
        IN_DIR(a_failed_record_write_names_the_cause),
        IN_DIR(an_open_output_is_busy_for_another_run),
        IN_DIR(a_lock_that_is_released_soon_is_waited_for),
        IN_DIR(reading_back_finds_ids_and_figures),
        IN_DIR(retried_errors_are_removed_from_the_file),
        IN_DIR(a_symbolic_link_keeps_pointing_at_the_file),
        IN_DIR(a_file_that_others_changed_fails_at_the_end),
        IN_DIR(an_unknown_line_is_refused_with_its_number),
        IN_DIR(fingerprints_depend_on_content_not_names),
        IN_DIR(a_run_resumes_only_with_its_first_configuration),
        IN_DIR(a_run_with_spec_resumes_only_with_its_head),
        IN_DIR(a_link_names_the_run_of_its_file),
        IN_DIR(a_run_keeps_its_white_space),
        IN_DIR(a_run_keeps_its_rule),
        IN_DIR(a_run_keeps_the_defaults_of_its_rule),
        IN_DIR(a_run_of_rule_follow_goes_on_with_what_it_reads),
        IN_DIR(a_run_resumes_only_with_its_first_chat_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
