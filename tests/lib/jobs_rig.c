/* jobs_rig.c - see jobs_rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/chat_params.h"
#include "tests/lib/jobs_rig.h"

jobs_rig jobs;
const cn_viewer jobs_viewer = {.name = "", .sees_all = true};

/* ---- the engine ---- */

static cn_status submit(void *user, cn_batch_job *job, const char *owner)
{
    (void)user;
    if (!jobs.any_owner) assert_string_equal(owner, "");
    if (jobs.n >= jobs.max) return cn_fail(CN_ERR_BUSY, "the queue is full");
    jobs.cancelled[jobs.n] = false;
    jobs.submitted[jobs.n++] = job;
    if (jobs.n > jobs.most) jobs.most = jobs.n;
    jobs.n_submitted++;
    return CN_OK;
}

static void cancel(void *user, cn_batch_job *job)
{
    (void)user;
    for (uint32_t i = 0; i < jobs.n; i++)
        if (jobs.submitted[i] == job) jobs.cancelled[i] = true;
}

static uint64_t n_tokens(void *user, cn_batch_job *job)
{
    (void)user, (void)job;
    return 0;
}

static bool is_accepted(void *user, const cn_batch_job *job)
{
    (void)user, (void)job;
    return !jobs.at_intake;
}

static void answer(cn_batch_job *job)
{
    cn_api_result *result;
    char text[64];
    const uint32_t token = 5;
    const cn_usage usage = {.prompt_tokens = 3, .completion_tokens = 1, .cached_tokens = 2};
    const char *prompt = chat_text(&job->attempt.params, 0, "content");
    if (prompt && strcmp(prompt, "long") == 0) {
        cn_fail(CN_ERR_ARG, "the prompt has 9 tokens");
        cn_batch_job_end(job, CN_ERR_ARG);
        return;
    }
    snprintf(text, sizeof text, "echo %s", job->item.custom_id);
    assert_int_equal(cn_api_result_create(&result, &job->attempt, NULL, NULL), CN_OK);
    const uint32_t n = job->attempt.params.sampling.n;
    for (uint32_t sample = 0; sample < n; sample++) {
        const cn_event ev = {.sample = sample,
                             .text = text,
                             .text_len = strlen(text),
                             .tokens = &token,
                             .n_tokens = 1,
                             .finish = CN_FINISH_STOP,
                             .usage = &usage,
                             .last = sample + 1 == n};
        cn_api_result_add(result, &ev);
    }
    job->result = result;
    cn_batch_job_end(job, CN_OK);
}

void jobs_work(uint32_t n)
{
    cn_batch_job *submitted[JOBS_MAX_SUBMITTED];
    bool cancelled[JOBS_MAX_SUBMITTED];
    const uint32_t had = jobs.n;
    memcpy(submitted, jobs.submitted, sizeof submitted);
    memcpy(cancelled, jobs.cancelled, sizeof cancelled);
    jobs.n = 0;
    for (uint32_t i = 0; i < had; i++) {
        if (cancelled[i]) {
            cn_fail(CN_ERR_CANCELLED, "cancelled");
            cn_batch_job_end(submitted[i], CN_ERR_CANCELLED);
        } else if (n > 0) {
            n--;
            answer(submitted[i]);
        } else {
            jobs.cancelled[jobs.n] = false;
            jobs.submitted[jobs.n++] = submitted[i];
        }
    }
}

void jobs_refuse_one(void)
{
    if (jobs.n == 0) return;
    cn_batch_job *job = jobs.submitted[0];
    jobs.n--;
    memmove(jobs.submitted, jobs.submitted + 1, jobs.n * sizeof *jobs.submitted);
    memmove(jobs.cancelled, jobs.cancelled + 1, jobs.n * sizeof *jobs.cancelled);
    cn_fail(CN_ERR_BUSY, "the memory for requests has no room");
    cn_batch_job_end(job, CN_ERR_BUSY);
}

/* ---- a spool in a temporary directory ---- */

static int64_t now(void) { return jobs.now_s; }
/* Ten milliseconds pass whenever it is read. */
static double steady_now_s(void) { return (double)jobs.now_s + 0.01 * (double)jobs.n_reads++; }

void jobs_open(void)
{
    static char path[64];
    snprintf(path, sizeof path, "%s/spool", jobs.dir);
    jobs.opts.dir = path;
    if (cn_batches_open(&jobs.batches, &jobs.opts) != CN_OK) fail_msg("%s", cn_last_error());
}

void jobs_close(void)
{
    int wait_ms;
    cn_batches_abandon(jobs.batches);
    jobs_work(0);
    cn_batches_pump(jobs.batches, &wait_ms);
    assert_true(cn_batches_is_idle(jobs.batches));
    cn_batches_close(jobs.batches);
    jobs.batches = NULL;
}

int jobs_set_up(void **state)
{
    (void)state;
    jobs = (jobs_rig){0};
    const bool in_memory = access("/dev/shm", W_OK) == 0;
    strcpy(jobs.dir, in_memory ? "/dev/shm/cinch_jobs_XXXXXX" : "/tmp/cinch_jobs_XXXXXX");
    if (!mkdtemp(jobs.dir)) return -1;
    jobs.max = JOBS_MAX_SUBMITTED;
    jobs.now_s = 1800000000;
    cn_log_set_level(CN_LOG_ERROR);
    jobs.config = cn_config_create();
    cn_free(jobs.config->model);
    jobs.config->model = cn_strdup("examples/tiny-reasoner");
    static const cn_served_names names = {.names = {"tiny", "small"}, .n = 2};
    jobs.opts = (cn_batches_opts){.config = jobs.config,
                             .names = &names,
                             .files = {100, 1 << 20, 4 << 20, .now_s = steady_now_s},
                             .max_lines = 1000,
                             .max_batches = 4,
                             .max_kept = 100,
                             .max_inflight = 16,
                             .now = now,
                             .defaults = {.sampling = {.n = 1, .top_p = 1, .logprobs = -1}},
                             .submit = submit,
                             .cancel = cancel,
                             .n_tokens = n_tokens,
                             .is_accepted = is_accepted};
    jobs_open();
    return 0;
}

int jobs_tear_down(void **state)
{
    (void)state;
    char command[64];
    if (jobs.batches) jobs_close();
    cn_config_free(jobs.config);
    snprintf(command, sizeof command, "rm -rf %s", jobs.dir);
    return system(command);
}

/* Adds a request line. The engine refuses the prompt "long". */
void jobs_add_line(cn_buf *text, const char *id, const char *prompt)
{
    assert_int_equal(cn_buf_addf(text,
                                 "{\"custom_id\": \"%s\", \"method\": \"POST\", \"url\": "
                                 "\"/v1/chat/completions\", \"body\": {\"messages\": [{\"role\": "
                                 "\"user\", \"content\": \"%s\"}]}}\n",
                                 id, prompt),
                     CN_OK);
}

cn_status jobs_try_upload(const char *text, size_t n, cn_spool_id *id)
{
    cn_files *files = cn_batches_files(jobs.batches);
    const cn_file *file;
    cn_upload u;
    CN_TRY(cn_upload_begin(files, n, &u));
    cn_status status = cn_upload_write(&u, text, n);
    if (status == CN_OK) {
        status = cn_upload_keep(files, &u, "", "in.jsonl", "batch", &file);
        if (status == CN_OK) *id = file->id;
    } else {
        cn_upload_drop(files, &u);
    }
    return status;
}

cn_spool_id jobs_upload(const cn_buf *text)
{
    cn_spool_id id;
    if (jobs_try_upload(text->data, text->len, &id) != CN_OK) fail_msg("%s", cn_last_error());
    return id;
}

cn_spool_id jobs_upload_lines(int n)
{
    cn_buf text = {0};
    char id[16];
    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof id, "r%d", i);
        jobs_add_line(&text, id, "hi");
    }
    cn_spool_id file = jobs_upload(&text);
    cn_buf_free(&text);
    return file;
}

cn_status jobs_try_create(const cn_spool_id *input, const char *window, cn_spool_id *id)
{
    json_t *batch;
    json_t *body = json_pack("{s:s, s:s, s:s}", "input_file_id", input->text, "endpoint",
                             "/v1/chat/completions", "completion_window", window);
    cn_status status = cn_batches_create(jobs.batches, &jobs_viewer, body, &batch);
    json_decref(body);
    if (status != CN_OK) return status;
    assert_true(cn_spool_id_read(id, cn_batch_prefix,
                                 json_string_value(json_object_get(batch, "id"))));
    json_decref(batch);
    return CN_OK;
}

cn_spool_id jobs_create(const cn_spool_id *input)
{
    cn_spool_id id;
    if (jobs_try_create(input, "24h", &id) != CN_OK) fail_msg("%s", cn_last_error());
    return id;
}

const char *jobs_text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

void jobs_expect_status(const cn_spool_id *id, const char *status)
{
    json_t *batch = cn_batches_get(jobs.batches, &jobs_viewer, id);
    assert_non_null(batch);
    assert_string_equal(jobs_text_of(batch, "status"), status);
    json_decref(batch);
}

void jobs_pump(int times)
{
    int wait_ms;
    for (int i = 0; i < times; i++) cn_batches_pump(jobs.batches, &wait_ms);
}

void jobs_run_all(void)
{
    for (int idle = 0, wait_ms; idle < 3;) {
        cn_batches_pump(jobs.batches, &wait_ms);
        idle = jobs.n == 0 && wait_ms >= 1000 ? idle + 1 : 0;
        jobs_work(5);
    }
}

/* ---- files that the batches wrote ---- */

json_t *jobs_read_lines(const json_t *batch, const char *member)
{
    json_t *all = json_array(), *line;
    const char *id = jobs_text_of(batch, member);
    char path[160];
    if (!*id) return all;
    snprintf(path, sizeof path, "%s/spool/files/%s", jobs.dir, id);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while ((line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) json_array_append_new(all, line);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    return all;
}

static void expect_echo(const json_t *line)
{
    char want[64];
    const json_t *response = json_object_get(line, "response");
    const json_t *choices =
        json_object_get(json_object_get(response, "body"), "choices");
    const json_t *message = json_object_get(json_array_get(choices, 0), "message");
    snprintf(want, sizeof want, "echo %s", jobs_text_of(line, "custom_id"));
    assert_string_equal(jobs_text_of(message, "content"), want);
}

void jobs_check_files(const cn_spool_id *id, int *answered, int *errors)
{
    json_t *batch = cn_batches_get(jobs.batches, &jobs_viewer, id), *seen = json_object(), *line;
    assert_non_null(batch);
    json_t *output = jobs_read_lines(batch, "output_file_id");
    json_t *error_lines = jobs_read_lines(batch, "error_file_id");
    size_t i;
    json_array_foreach(output, i, line) expect_echo(line);
    json_array_extend(output, error_lines);
    json_array_foreach(output, i, line)
    {
        const char *custom_id = jobs_text_of(line, "custom_id");
        if (json_object_get(seen, custom_id)) fail_msg("%s has two lines", custom_id);
        json_object_set_new(seen, custom_id, json_true());
    }
    *errors = (int)json_array_size(error_lines);
    *answered = (int)json_array_size(output) - *errors;
    const json_t *counts = json_object_get(batch, "request_counts");
    assert_int_equal(json_integer_value(json_object_get(counts, "completed")), *answered);
    assert_int_equal(json_integer_value(json_object_get(counts, "failed")), *errors);
    json_decref(output);
    json_decref(error_lines);
    json_decref(seen);
    json_decref(batch);
}

void jobs_expect_files(const cn_spool_id *id, int want_answered, int want_errors)
{
    int answered, errors;
    jobs_check_files(id, &answered, &errors);
    assert_int_equal(answered, want_answered);
    assert_int_equal(errors, want_errors);
}
