/* test_batch_jobs.c - batches in a spool with a scripted engine: every state transition, how
 * batches share the engine, and what is refused. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/json.h"
#include "tests/lib/jobs_rig.h"

/* ---- tests: states ---- */

static void a_batch_runs_to_its_end(void **state)
{
    (void)state;
    cn_spool_id file = jobs_upload_lines(40), id = jobs_create(&file);
    jobs_expect_status(&id, "validating");
    jobs_pump(2);
    jobs_expect_status(&id, "in_progress");
    jobs_run_all();
    jobs_expect_status(&id, "completed");
    jobs_expect_files(&id, 40, 0);
    assert_int_equal(jobs.most, 16);
    json_t *batch = cn_batches_get(jobs.batches, &jobs_viewer, &id);
    assert_true(json_is_null(json_object_get(batch, "error_file_id")));
    assert_true(json_is_null(json_object_get(batch, "errors")));
    assert_int_equal(json_integer_value(json_object_get(batch, "expires_at")), jobs.now_s + 86400);
    assert_int_equal(json_integer_value(json_object_get(batch, "completed_at")), jobs.now_s);
    const json_t *usage = json_object_get(batch, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "total_tokens")), 160);
    const json_t *in = json_object_get(usage, "input_tokens_details");
    assert_int_equal(json_integer_value(json_object_get(in, "cached_tokens")), 80);
    cn_spool_id output;
    assert_true(cn_spool_id_read(&output, cn_file_prefix, jobs_text_of(batch, "output_file_id")));
    assert_string_equal(cn_files_find(cn_batches_files(jobs.batches), &output)->purpose,
                        "batch_output");
    json_decref(batch);

    jobs_close();
    jobs_open();
    jobs_expect_status(&id, "completed");
    jobs_expect_files(&id, 40, 0);
    assert_int_equal(cn_files_count(cn_batches_files(jobs.batches)), 2);
}

static void a_faulty_request_gets_a_line_in_the_error_file(void **state)
{
    (void)state;
    cn_buf text = {0};
    jobs_add_line(&text, "a", "hi");
    jobs_add_line(&text, "b", "long");
    assert_int_equal(cn_buf_addf(&text, "{\"custom_id\": \"c\", \"url\": "
                                        "\"/v1/chat/completions\", \"body\": {\"tempo\": 1}}\n"),
                     CN_OK);
    cn_spool_id file = jobs_upload(&text), id = jobs_create(&file);
    cn_buf_free(&text);
    jobs_run_all();
    jobs_expect_status(&id, "completed");
    jobs_expect_files(&id, 1, 2);
}

/* Only the user of the server may read a file of the spool. */
static void expect_private(const char *id)
{
    char path[128];
    struct stat st;
    snprintf(path, sizeof path, "%s/spool/files/%s", jobs.dir, id);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void a_line_for_another_model_gets_an_error_line(void **state)
{
    (void)state;
    cn_buf text = {0};
    static const char *const models[] = {"tiny", "small", "other"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        assert_int_equal(cn_buf_addf(&text, "{\"custom_id\": \"r%zu\", \"url\": "
                                            "\"/v1/chat/completions\", \"body\": {\"model\": "
                                            "\"%s\", \"messages\": [{\"role\": \"user\", "
                                            "\"content\": \"hi\"}]}}\n", i, models[i]),
                         CN_OK);
    cn_spool_id file = jobs_upload(&text), id = jobs_create(&file);
    cn_buf_free(&text);
    jobs_run_all();
    jobs_expect_status(&id, "completed");
    jobs_expect_files(&id, 2, 1);
    json_t *batch = cn_batches_get(jobs.batches, &jobs_viewer, &id);
    json_t *errors = jobs_read_lines(batch, "error_file_id");
    const json_t *line = json_array_get(errors, 0), *response = json_object_get(line, "response");
    const json_t *error = json_object_get(json_object_get(response, "body"), "error");
    assert_string_equal(jobs_text_of(line, "custom_id"), "r2");
    assert_int_equal(json_integer_value(json_object_get(response, "status_code")), 404);
    assert_string_equal(jobs_text_of(error, "code"), "model_not_found");
    expect_private(jobs_text_of(batch, "output_file_id"));
    expect_private(jobs_text_of(batch, "error_file_id"));
    assert_string_equal(jobs_text_of(error, "param"), "model");
    assert_non_null(strstr(jobs_text_of(error, "message"), "\"other\""));
    json_decref(errors);
    json_decref(batch);
}

static void expect_fault(const json_t *faults, size_t i, int line, const char *code)
{
    const json_t *fault_i = json_array_get(json_object_get(faults, "data"), i);
    assert_int_equal(json_integer_value(json_object_get(fault_i, "line")), line);
    assert_string_equal(jobs_text_of(fault_i, "code"), code);
    assert_true(*jobs_text_of(fault_i, "message"));
}

static void an_invalid_input_fails_with_its_line_numbers(void **state)
{
    (void)state;
    cn_buf text = {0};
    jobs_add_line(&text, "a", "hi");
    assert_int_equal(cn_buf_addf(&text, "{\"custom_id\": \n"), CN_OK);
    jobs_add_line(&text, "a", "hi");
    assert_int_equal(cn_buf_addf(&text, "\n{\"custom_id\": \"d\", \"url\": \"/v1/completions\", "
                                        "\"body\": {}}\n"
                                        "{\"custom_id\": 5}\n"
                                        "{\"custom_id\": \"e\", \"url\": "
                                        "\"/v1/chat/completions\"}\n"),
                     CN_OK);
    cn_spool_id file = jobs_upload(&text), id = jobs_create(&file);
    cn_buf_free(&text);
    jobs_run_all();
    for (int i = 0; i < 2; i++) { /* before and after a restart */
        jobs_expect_status(&id, "failed");
        json_t *batch = cn_batches_get(jobs.batches, &jobs_viewer, &id);
        const json_t *faults = json_object_get(batch, "errors");
        assert_int_equal(json_array_size(json_object_get(faults, "data")), 5);
        expect_fault(faults, 0, 2, "invalid_json_line");
        expect_fault(faults, 1, 3, "duplicate_custom_id");
        expect_fault(faults, 2, 5, "invalid_request");
        expect_fault(faults, 3, 6, "invalid_custom_id");
        expect_fault(faults, 4, 7, "invalid_request");
        assert_true(json_is_null(json_object_get(batch, "output_file_id")));
        json_decref(batch);
        jobs_close();
        jobs_open();
    }
    assert_int_equal(jobs.n_submitted, 0);

    file = jobs_upload(&(cn_buf){.data = "\n", .len = 1});
    id = jobs_create(&file);
    jobs_run_all();
    jobs_expect_status(&id, "failed");
}

static void an_expired_batch_keeps_its_answers(void **state)
{
    (void)state;
    cn_spool_id file = jobs_upload_lines(30), id;
    assert_int_equal(jobs_try_create(&file, "60s", &id), CN_OK);
    jobs_pump(3);
    jobs_work(7);
    jobs_pump(1);
    jobs.now_s += 61;
    jobs_run_all();
    jobs_expect_status(&id, "expired");
    jobs_expect_files(&id, 7, 23);
    json_t *batch = cn_batches_get(jobs.batches, &jobs_viewer, &id);
    json_t *errors = jobs_read_lines(batch, "error_file_id");
    const json_t *line = json_array_get(errors, 0);
    assert_true(json_is_null(json_object_get(line, "response")));
    assert_string_equal(jobs_text_of(json_object_get(line, "error"), "code"), "batch_expired");
    json_decref(errors);
    json_decref(batch);
}

static void a_batch_expires_while_no_server_runs(void **state)
{
    (void)state;
    cn_spool_id file = jobs_upload_lines(30), id;
    assert_int_equal(jobs_try_create(&file, "1h", &id), CN_OK);
    jobs_pump(3);
    jobs_work(7);
    jobs_pump(1);
    jobs_close();
    jobs.now_s += 4000;
    cn_free(jobs.config->tokenizer);
    jobs.config->kv.budget_tokens += 64; /* the new server may have another configuration */
    jobs_open();
    jobs_run_all();
    jobs_expect_status(&id, "expired");
    jobs_expect_files(&id, 7, 23);
}

static void a_cancelled_batch_keeps_its_answers(void **state)
{
    (void)state;
    json_t *batch;
    cn_spool_id file = jobs_upload_lines(30), id = jobs_create(&file), early = jobs_create(&file);
    assert_int_equal(cn_batches_cancel(jobs.batches, &jobs_viewer, &early, &batch), CN_OK);
    assert_string_equal(jobs_text_of(batch, "status"), "cancelling");
    json_decref(batch);
    jobs_pump(3);
    jobs_expect_status(&early, "cancelled");
    jobs_work(7);
    jobs_pump(1);
    assert_int_equal(cn_batches_cancel(jobs.batches, &jobs_viewer, &id, &batch), CN_OK);
    json_decref(batch);
    jobs_expect_status(&id, "cancelling");
    jobs_run_all();
    jobs_expect_status(&id, "cancelled");
    jobs_expect_files(&id, 7, 0);
    jobs_expect_files(&early, 0, 0);
    assert_int_equal(cn_batches_cancel(jobs.batches, &jobs_viewer, &id, &batch), CN_ERR_ARG);
    assert_int_equal(cn_files_count(cn_batches_files(jobs.batches)), 2);
}

static void lists_start_at_the_newest_and_have_pages(void **state)
{
    (void)state;
    cn_spool_id file = jobs_upload_lines(1), ids[4];
    json_t *list;
    for (int i = 0; i < 4; i++) ids[i] = jobs_create(&file);
    jobs_close();
    jobs_open();
    assert_int_equal(cn_batches_list(jobs.batches, &jobs_viewer, NULL, 3, &list), CN_OK);
    assert_string_equal(jobs_text_of(list, "first_id"), ids[3].text);
    assert_string_equal(jobs_text_of(list, "last_id"), ids[1].text);
    assert_true(json_is_true(json_object_get(list, "has_more")));
    json_decref(list);
    assert_int_equal(cn_batches_list(jobs.batches, &jobs_viewer, &ids[1], 3, &list), CN_OK);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 1);
    assert_true(json_is_false(json_object_get(list, "has_more")));
    json_decref(list);
    assert_int_equal(cn_batches_list(jobs.batches, &jobs_viewer, &file, 3, &list), CN_ERR_ARG);
}

/* ---- tests: sharing, quotas ---- */

static uint32_t count_submitted(char first)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < jobs.n; i++) n += jobs.submitted[i]->item.custom_id[0] == first;
    return n;
}

static void batches_share_the_engine(void **state)
{
    (void)state;
    cn_buf text = {0};
    char name[16];
    cn_spool_id file = jobs_upload_lines(200), id = jobs_create(&file);
    jobs_pump(4);
    assert_int_equal(count_submitted('r'), 16);
    for (int i = 0; i < 30; i++) {
        snprintf(name, sizeof name, "s%d", i);
        jobs_add_line(&text, name, "hi");
    }
    cn_spool_id other_file = jobs_upload(&text), other = jobs_create(&other_file);
    cn_buf_free(&text);
    for (int i = 0; i < 4; i++) {
        jobs_pump(2);
        jobs_work(4);
    }
    jobs_pump(1);
    assert_int_equal(count_submitted('r'), 8);
    assert_int_equal(count_submitted('s'), 8);
    jobs_run_all();
    jobs_expect_files(&id, 200, 0);
    jobs_expect_files(&other, 30, 0);
    assert_int_equal(jobs.most, 16);
}

static void a_busy_engine_is_retried(void **state)
{
    (void)state;
    cn_spool_id file = jobs_upload_lines(40), id = jobs_create(&file);
    jobs.max = 0;
    jobs_pump(10);
    jobs.max = 3;
    jobs_run_all();
    jobs_expect_files(&id, 40, 0);
    assert_int_equal(jobs.most, 3);
}

/* Pumps once a second, which is longer than the wait after a refusal. */
static void pump_for(int seconds, bool refuses)
{
    for (int i = 0; i < seconds; i++) {
        if (refuses) jobs_refuse_one();
        jobs_pump(1);
        jobs.now_s++;
    }
}

static void expect_paused(const cn_spool_id *id, bool paused)
{
    json_t *batch = cn_batches_get(jobs.batches, &jobs_viewer, id);
    const char *why = jobs_text_of(batch, "paused");
    if (paused) assert_non_null(strstr(why, "the memory for requests has no room"));
    else assert_string_equal(why, "");
    json_decref(batch);
}

/* The intake refuses one line while others wait there, so some line is always in flight. */
static void lines_refused_one_at_a_time_pause_their_batch(void **state)
{
    (void)state;
    cn_spool_id file = jobs_upload_lines(3), id = jobs_create(&file);
    jobs.at_intake = true;
    pump_for(12, true);
    expect_paused(&id, true);

    jobs.at_intake = false; /* the engine runs all lines, then one, which is enough to go on */
    pump_for(4, false);
    assert_int_equal(jobs.n, 3);
    expect_paused(&id, false);
    jobs_refuse_one();
    jobs_refuse_one();
    jobs.max = 1;
    pump_for(6, false);
    assert_int_equal(jobs.n, 1);
    expect_paused(&id, false);
    jobs_run_all();
    jobs_expect_files(&id, 3, 0);
}

static void quotas_are_enforced(void **state)
{
    (void)state;
    static char big[(1 << 20) + 1];
    cn_spool_id id, file;
    memset(big, 'x', sizeof big);
    assert_int_equal(jobs_try_upload(big, sizeof big, &file), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--max-file-bytes"));
    for (int i = 0; i < 4; i++)
        assert_int_equal(jobs_try_upload(big, sizeof big - 1, &file), CN_OK);
    assert_int_equal(jobs_try_upload(big, 1, &id), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--max-spool-bytes"));
    assert_int_equal(cn_files_remove(cn_batches_files(jobs.batches), &file), CN_OK);
    for (int i = 0; i < 97; i++) assert_int_equal(jobs_try_upload(big, 1, &id), CN_OK);
    assert_int_equal(jobs_try_upload(big, 1, &id), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--max-files"));

    assert_int_equal(cn_files_remove(cn_batches_files(jobs.batches), &id), CN_OK);
    file = jobs_upload_lines(2);
    for (int i = 0; i < 4; i++) jobs_create(&file);
    assert_int_equal(jobs_try_create(&file, "24h", &id), CN_ERR_BUSY);
    jobs_run_all();
    jobs.opts.max_lines = 1;
    jobs_close();
    jobs_open();
    assert_int_equal(jobs_try_create(&file, "24h", &id), CN_OK);
    jobs_run_all();
    jobs_expect_status(&id, "failed");
}

/* Uploads that have begun and send nothing cannot keep the quota. */
static void reservations_of_unfinished_uploads_expire(void **state)
{
    (void)state;
    enum { N = 4 };
    static char data[1 << 20];
    cn_upload uploads[N], other;
    jobs.opts.files.upload_expires_s = 5;
    jobs_close();
    jobs_open();
    cn_files *files = cn_batches_files(jobs.batches);
    for (int i = 0; i < N; i++) assert_int_equal(cn_upload_begin(files, 0, &uploads[i]), CN_OK);
    assert_int_equal(cn_upload_write(&uploads[0], data, 1000), CN_OK);
    assert_int_equal(cn_upload_begin(files, 0, &other), CN_ERR_BUSY); /* nothing to delete */
    assert_non_null(strstr(cn_last_error(), "try again later"));
    jobs.now_s += 5;
    assert_int_equal(cn_upload_write(&uploads[0], data, 1000), CN_OK); /* nobody needs the space */
    assert_int_equal(cn_upload_begin(files, 0, &other), CN_OK);
    assert_int_equal(cn_upload_write(&uploads[0], data, 1), CN_ERR_BUSY);
    assert_non_null(strstr(cn_last_error(), "--max-spool-bytes"));
    assert_int_equal(cn_upload_write(&other, data, sizeof data), CN_OK);
    cn_upload_drop(files, &other);
    for (int i = 0; i < N; i++) cn_upload_drop(files, &uploads[i]);
    assert_true(cn_files_have_room(files, 4 << 20)); /* no reservation is left */
    assert_false(cn_files_have_room(files, (4 << 20) + 1));
}

static void in_spool(char path[128], const char *name)
{
    snprintf(path, 128, "%s/spool/%s", jobs.dir, name);
}

/* What the server did not make is ignored: it neither stops the start nor is read. */
static void foreign_names_in_the_spool_are_ignored(void **state)
{
    (void)state;
    char path[128], target[128];
    const cn_spool_id file = jobs_upload_lines(3);
    jobs_close();
    in_spool(path, "tmp/a-directory");
    assert_int_equal(mkdir(path, 0700), 0);
    in_spool(path, "files/file-aaaaaaaaaaaaaaaaaaaaaaaa");
    assert_int_equal(mkdir(path, 0700), 0);
    in_spool(path, "files/file-bbbbbbbbbbbbbbbbbbbbbbbb");
    assert_int_equal(mkfifo(path, 0600), 0);
    in_spool(path, "files/file-bbbbbbbbbbbbbbbbbbbbbbbb.json");
    assert_int_equal(mkfifo(path, 0600), 0);
    in_spool(path, "files/file-cccccccccccccccccccccccc");
    assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
    in_spool(path, "files/file-cccccccccccccccccccccccc.json");
    snprintf(target, sizeof target, "%s.json", file.text); /* a record that could be read */
    assert_int_equal(symlink(target, path), 0);
    in_spool(path, "batches/batch_aaaaaaaaaaaaaaaaaaaaaaaa.json");
    assert_int_equal(mkfifo(path, 0600), 0);
    jobs_open();
    cn_files *files = cn_batches_files(jobs.batches);
    assert_int_equal(cn_files_count(files), 1);
    assert_string_equal(cn_files_at(files, 0)->id.text, file.text);
    const cn_spool_id id = jobs_create(&file);
    jobs_run_all();
    jobs_expect_files(&id, 3, 0);
}

/* A name that a batch would write to must be a regular file. */
static void a_batch_does_not_write_through_a_link(void **state)
{
    (void)state;
    char path[128], target[128];
    const cn_spool_id file = jobs_upload_lines(3), id = jobs_create(&file);
    json_t *records = NULL;
    in_spool(path, "batches/");
    snprintf(path + strlen(path), 128 - strlen(path), "%s.json", id.text);
    assert_int_equal(cn_json_load_file(&records, path, 1 << 16, 8), CN_OK);
    char name[64];
    snprintf(name, sizeof name, "files/%s",
             jobs_text_of(json_object_get(records, "cinch"), "output"));
    json_decref(records);
    in_spool(path, name);
    in_spool(target, "target");
    assert_int_equal(symlink(target, path), 0);
    jobs_pump(5);
    json_t *batch = cn_batches_get(jobs.batches, &jobs_viewer, &id);
    assert_non_null(strstr(jobs_text_of(batch, "paused"), "expected a regular file"));
    json_decref(batch);
    assert_int_equal(access(target, F_OK), -1);
    unlink(path);
    jobs.now_s += 10;
    jobs_run_all();
    jobs_expect_files(&id, 3, 0);
}

static void a_full_quota_pauses_a_batch_until_space_is_free(void **state)
{
    (void)state;
    static char big[1 << 20];
    cn_spool_id ballast, file = jobs_upload_lines(200), id = jobs_create(&file);
    memset(big, 'x', sizeof big);
    for (int i = 0; i < 3; i++)
        assert_int_equal(jobs_try_upload(big, sizeof big, &ballast), CN_OK);
    assert_int_equal(jobs_try_upload(big, sizeof big - (80 << 10), &ballast), CN_OK);
    jobs_run_all();
    json_t *batch = cn_batches_get(jobs.batches, &jobs_viewer, &id);
    assert_string_equal(jobs_text_of(batch, "status"), "in_progress");
    assert_non_null(strstr(jobs_text_of(batch, "paused"), "--max-spool-bytes"));
    json_decref(batch);
    assert_int_equal(jobs_try_upload(big, 1, &file), CN_ERR_ARG);
    assert_int_equal(cn_files_remove(cn_batches_files(jobs.batches), &ballast), CN_OK);
    jobs.now_s += 10;
    jobs_run_all();
    jobs_expect_files(&id, 200, 0);
}

static void a_request_for_a_batch_is_checked(void **state)
{
    (void)state;
    cn_spool_id file = jobs_upload_lines(1);
    static const struct {
        const char *text, *param;
    } bad[] = {
        {"{}", "input_file_id"},
        {"{\"input_file_id\": \"../../etc/passwd\"}", "input_file_id"},
        {"{\"input_file_id\": \"file-000000000000000000000000\"}", "input_file_id"},
        {"{\"input_file_id\": \"%s\"}", "endpoint"},
        {"{\"input_file_id\": \"%s\", \"endpoint\": \"/v1/embeddings\"}", "endpoint"},
        {"{\"input_file_id\": \"%s\", \"endpoint\": \"/v1/completions\", "
         "\"completion_window\": \"soon\"}",
         "completion_window"},
        {"{\"input_file_id\": \"%s\", \"endpoint\": \"/v1/completions\", \"metadata\": "
         "{\"a\": 1}}",
         "metadata"},
        {"{\"input_file_id\": \"%s\", \"endpoint\": \"/v1/completions\", \"colour\": 1}", "colour"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[256];
        json_t *batch;
        const char *hole = strstr(bad[i].text, "%s");
        if (hole)
            snprintf(text, sizeof text, "%.*s%s%s", (int)(hole - bad[i].text), bad[i].text,
                     file.text, hole + 2);
        else
            snprintf(text, sizeof text, "%s", bad[i].text);
        json_t *body = json_loads(text, 0, NULL);
        assert_int_equal(cn_batches_create(jobs.batches, &jobs_viewer, body, &batch),
                         CN_ERR_ARG);
        assert_string_equal(cn_last_param(), bad[i].param);
        json_decref(body);
    }
    int64_t s;
    assert_true(cn_batch_window_read("90m", &s) && s == 5400);
    assert_false(cn_batch_window_read("31d", &s) || cn_batch_window_read("0h", &s) ||
                 cn_batch_window_read("24", &s) || cn_batch_window_read("h", &s) ||
                 cn_batch_window_read("1hh", &s));
}

/* Metadata values have at most 512 characters, whatever their bytes. */
static void metadata_is_limited_in_characters(void **state)
{
    (void)state;
    const cn_spool_id file = jobs_upload_lines(1);
    for (int n = 512; n <= 513; n++) {
        cn_buf value = {0};
        json_t *batch;
        for (int i = 0; i < n; i++) assert_int_equal(cn_buf_addf(&value, "\xe6\xbc\xa2"), CN_OK);
        json_t *body = json_pack("{s:s, s:s, s:{s:s}}", "input_file_id", file.text, "endpoint",
                                 "/v1/completions", "metadata", "k", value.data);
        const cn_status status = cn_batches_create(jobs.batches, &jobs_viewer, body, &batch);
        assert_int_equal(status, n == 512 ? CN_OK : CN_ERR_ARG);
        if (status == CN_OK) json_decref(batch);
        json_decref(body);
        cn_buf_free(&value);
    }
    jobs_run_all();
}

/* Creates a batch of this owner that fails at once. */
static cn_spool_id create_failing(const char *owner, const cn_spool_id *file)
{
    const cn_viewer v = {.name = owner, .sees_all = true};
    cn_spool_id id;
    json_t *batch, *body = json_pack("{s:s, s:s}", "input_file_id", file->text, "endpoint",
                                     "/v1/chat/completions");
    assert_int_equal(cn_batches_create(jobs.batches, &v, body, &batch), CN_OK);
    assert_true(cn_spool_id_read(&id, cn_batch_prefix, jobs_text_of(batch, "id")));
    json_decref(batch);
    json_decref(body);
    jobs_run_all();
    return id;
}

static void expect_kept(const cn_spool_id *id, bool kept)
{
    json_t *batch = cn_batches_get(jobs.batches, &jobs_viewer, id);
    assert_int_equal(batch != NULL, kept);
    json_decref(batch);
}

static void many_batches_replace_those_of_their_owner(void **state)
{
    (void)state;
    const cn_spool_id file = jobs_upload(&(cn_buf){.data = "\n", .len = 1});
    cn_spool_id ann[4], bob[8];
    jobs_close();
    jobs.opts.max_kept = 4;
    jobs_open();
    ann[0] = create_failing("ann", &file);
    for (int i = 0; i < 8; i++) {
        bob[i] = create_failing("bob", &file);
        expect_kept(&ann[0], true);
        if (i >= 3) expect_kept(&bob[i - 3], false);
    }
    for (int i = 5; i < 8; i++) expect_kept(&bob[i], true);
    ann[1] = create_failing("ann", &file); /* bob has more */
    for (int i = 0; i < 2; i++) expect_kept(&ann[i], true);
    expect_kept(&bob[5], false);
    ann[2] = create_failing("ann", &file); /* both have two */
    expect_kept(&ann[0], false);
    for (int i = 6; i < 8; i++) expect_kept(&bob[i], true);
    jobs_close();
    jobs_open();
    ann[3] = create_failing("ann", &file);
    expect_kept(&ann[1], false);
    for (int i = 2; i < 4; i++) expect_kept(&ann[i], true);
    for (int i = 6; i < 8; i++) expect_kept(&bob[i], true);
}

static void unfinished_batches_are_not_replaced(void **state)
{
    (void)state;
    const cn_spool_id bad = jobs_upload(&(cn_buf){.data = "\n", .len = 1});
    const cn_spool_id file = jobs_upload_lines(3);
    cn_spool_id running[3];
    jobs_close();
    jobs.opts.max_kept = 2;
    jobs_open();
    const cn_spool_id old = create_failing("ann", &bad);
    for (int i = 0; i < 3; i++) running[i] = jobs_create(&file);
    expect_kept(&old, true); /* the creator has more, but none that is finished */
    for (int i = 0; i < 3; i++) expect_kept(&running[i], true);
    jobs_run_all();
    for (int i = 0; i < 3; i++) jobs_expect_files(&running[i], 3, 0);
    const cn_spool_id next = jobs_create(&file);
    for (int i = 0; i < 3; i++) expect_kept(&running[i], false);
    expect_kept(&old, true);
    expect_kept(&next, true);
    jobs_run_all();
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, jobs_set_up, jobs_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(a_batch_runs_to_its_end),
        IN_DIR(a_faulty_request_gets_a_line_in_the_error_file),
        IN_DIR(a_line_for_another_model_gets_an_error_line),
        IN_DIR(an_invalid_input_fails_with_its_line_numbers),
        IN_DIR(an_expired_batch_keeps_its_answers),
        IN_DIR(a_batch_expires_while_no_server_runs),
        IN_DIR(a_cancelled_batch_keeps_its_answers),
        IN_DIR(lists_start_at_the_newest_and_have_pages),
        IN_DIR(batches_share_the_engine),
        IN_DIR(a_busy_engine_is_retried),
        IN_DIR(lines_refused_one_at_a_time_pause_their_batch),
        IN_DIR(quotas_are_enforced),
        IN_DIR(reservations_of_unfinished_uploads_expire),
        IN_DIR(foreign_names_in_the_spool_are_ignored),
        IN_DIR(a_batch_does_not_write_through_a_link),
        IN_DIR(a_full_quota_pauses_a_batch_until_space_is_free),
        IN_DIR(a_request_for_a_batch_is_checked),
        IN_DIR(metadata_is_limited_in_characters),
        IN_DIR(many_batches_replace_those_of_their_owner),
        IN_DIR(unfinished_batches_are_not_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
