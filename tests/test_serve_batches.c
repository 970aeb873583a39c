/* test_serve_batches.c - /v1/files and /v1/batches over real sockets with the bundled checkpoint,
 * with the requests of OpenAI's client; what is refused; and that misbehaving clients leave
 * nothing. test_batch_jobs.c tests how batches run. test_batch_crash.c and serve_chaos.py test
 * kills. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/http_client.h"
#include "tests/lib/serve_rig.h"

static serve_rig rig;
static char dir[32];
static const char *key_list;  /* --api-key; NULL: a server without keys */
static bool refuses_unknown;  /* --unknown-fields refuse */
static const char *upload_key; /* of the client that uploads; NULL: none */

static void open_rig(void)
{
    static char spool[64];
    const char *const options[] = {"--spool", spool, "--max-file-bytes", "100000",
                                   "--max-files", "6", "--max-batches", "2",
                                   "--max-batch-inflight", "4",
                                   "--unknown-fields", refuses_unknown ? "refuse" : "warn",
                                   key_list ? "--api-key" : NULL, key_list, NULL};
    snprintf(spool, sizeof spool, "%s/spool", dir);
    serve_rig_open(&rig, options);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/cinch_http_XXXXXX");
    if (!mkdtemp(dir)) return -1;
    open_rig();
    return 0;
}

static int tear_down(void **state)
{
    char command[64];
    (void)state;
    serve_rig_close(&rig);
    key_list = upload_key = NULL;
    refuses_unknown = false;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

/* ---- requests of a client ---- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

#define FIELD(name) "--edge\r\nContent-Disposition: form-data; name=\"" name "\""

/* Makes a form as curl and the OpenAI client send it. `extra` comes before its end. */
static void make_form(cn_buf *out, const char *purpose, const char *content, const char *extra)
{
    if (purpose)
        assert_int_equal(cn_buf_addf(out, FIELD("purpose") "\r\n\r\n%s\r\n", purpose), CN_OK);
    if (content)
        assert_int_equal(cn_buf_addf(out, FIELD("file") "; filename=\"../in.jsonl\"\r\n"
                                          "Content-Type: application/octet-stream\r\n\r\n%s\r\n",
                                     content),
                         CN_OK);
    assert_int_equal(cn_buf_addf(out, "%s--edge--\r\n", extra ? extra : ""), CN_OK);
}

static void send_form(const cn_buf *form, bool chunked, http_reply *r)
{
    cn_buf head = {0};
    int fd = http_connect(rig.port);
    assert_true(fd >= 0);
    assert_int_equal(cn_buf_addf(&head,
                                 "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                 "multipart/form-data; boundary=edge\r\n"),
                     CN_OK);
    if (upload_key)
        assert_int_equal(cn_buf_addf(&head, "Authorization: Bearer %s\r\n", upload_key), CN_OK);
    if (chunked)
        assert_int_equal(cn_buf_addf(&head, "Transfer-Encoding: chunked\r\n\r\n%zx\r\n%s\r\n"
                                            "0\r\n\r\n",
                                     form->len, form->data),
                         CN_OK);
    else
        assert_int_equal(cn_buf_addf(&head, "Content-Length: %zu\r\n\r\n%s", form->len,
                                     form->data),
                         CN_OK);
    http_send(fd, head.data, head.len);
    http_read(fd, false, r);
    close(fd);
    cn_buf_free(&head);
}

/* Uploads a file and returns the reply, whose status must be `want`. */
static json_t *upload_as(const char *purpose, const char *content, const char *extra, int want)
{
    cn_buf form = {0};
    http_reply r;
    make_form(&form, purpose, content, extra);
    send_form(&form, want == 200 && strlen(content) % 2, &r);
    if (r.status != want) fail_msg("status %d: %s", r.status, r.body.data);
    json_t *json = json_loadb(r.body.data, r.body.len, 0, NULL);
    assert_non_null(json);
    http_reply_free(&r);
    cn_buf_free(&form);
    return json;
}

static void upload(const char *content, char id[64])
{
    json_t *file = upload_as("batch", content, NULL, 200);
    snprintf(id, 64, "%s", text_of(file, "id"));
    json_decref(file);
}

/* Uploads n lines with max_tokens tokens each. */
static void upload_lines(int n, int max_tokens, char id[64])
{
    cn_buf text = {0};
    for (int i = 0; i < n; i++)
        assert_int_equal(cn_buf_addf(&text,
                                     "{\"custom_id\": \"r%d\", \"method\": \"POST\", \"url\": "
                                     "\"/v1/completions\", \"body\": {\"prompt\": \"%d + %d\", "
                                     "\"max_tokens\": %d, \"ignore_eos\": true}}\n",
                                     i, i, i, max_tokens),
                         CN_OK);
    upload(text.data, id);
    cn_buf_free(&text);
}

static json_t *create_as(const char *file, const char *more, int want)
{
    char body[512];
    snprintf(body, sizeof body,
             "{\"input_file_id\": \"%s\", \"endpoint\": \"/v1/completions\", "
             "\"completion_window\": \"24h\"%s}",
             file, more);
    return http_ask_json(rig.port, "POST", "/v1/batches", body, want);
}

static void create(const char *file, char id[64])
{
    json_t *batch = create_as(file, "", 200);
    snprintf(id, 64, "%s", text_of(batch, "id"));
    json_decref(batch);
}

static json_t *get(const char *what, const char *id, int want)
{
    char path[128];
    snprintf(path, sizeof path, "/v1/%s/%s", what, id);
    return http_ask_json(rig.port, "GET", path, NULL, want);
}

/* Waits until the batch has this status, and returns it. */
static json_t *wait_for(const char *id, const char *status)
{
    const struct timespec look = {.tv_nsec = 20 * 1000000L};
    for (int i = 0; i < 3000; i++) {
        json_t *batch = get("batches", id, 200);
        if (strcmp(text_of(batch, "status"), status) == 0) return batch;
        json_decref(batch);
        nanosleep(&look, NULL);
    }
    fail_msg("%s did not reach the status %s", id, status);
    return NULL;
}

/* Creates a batch with further members, cancels it, and waits for its end: batches that are being
 * cancelled count towards --max-batches. `warns`: about an unknown member. */
static void create_with(const char *file, const char *more, bool warns)
{
    char id[64], path[128];
    json_t *batch = create_as(file, more, 200);
    json_t *warnings = json_object_get(batch, "warnings");
    assert_int_equal(json_array_size(warnings), warns);
    if (warns)
        assert_string_equal(json_string_value(json_array_get(warnings, 0)),
                            "colour: unknown field, ignored");
    snprintf(id, sizeof id, "%s", text_of(batch, "id"));
    json_decref(batch);
    snprintf(path, sizeof path, "/v1/batches/%s/cancel", id);
    http_reply r;
    http_ask(rig.port, "POST", path, NULL, NULL, &r);
    json_decref(wait_for(id, r.status == 200 ? "cancelled" : "completed"));
    http_reply_free(&r);
}

static void expect_error(const char *method, const char *path, const char *body, int status,
                         const char *param)
{
    json_t *reply = http_ask_json(rig.port, method, path, body, status);
    const json_t *error = json_object_get(reply, "error");
    assert_true(*text_of(error, "message"));
    assert_string_equal(text_of(error, "param"), param);
    json_decref(reply);
}

static size_t count_names(const char *place)
{
    char path[96];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/spool/%s", dir, place);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* ---- tests ---- */

static void files_are_uploaded_listed_and_deleted(void **state)
{
    (void)state;
    char a[64], b[64], path[128];
    http_reply r;
    upload("one\n", a);
    upload("second\n", b);
    json_t *file = get("files", a, 200);
    assert_int_equal(json_integer_value(json_object_get(file, "bytes")), 4);
    assert_string_equal(text_of(file, "filename"), "../in.jsonl");
    assert_string_equal(text_of(file, "object"), "file");
    json_decref(file);
    snprintf(path, sizeof path, "/v1/files/%s/content", b);
    http_ask(rig.port, "GET", path, NULL, NULL, &r);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.body.len, 7);
    assert_memory_equal(r.body.data, "second\n", 7);
    http_reply_free(&r);

    json_t *list = http_ask_json(rig.port, "GET", "/v1/files?limit=1&order=asc&purpose=batch",
                                 NULL, 200);
    assert_string_equal(text_of(list, "first_id"), a);
    assert_true(json_is_true(json_object_get(list, "has_more")));
    json_decref(list);
    snprintf(path, sizeof path, "/v1/files?after=%s", b);
    list = http_ask_json(rig.port, "GET", path, NULL, 200);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 1);
    assert_true(json_is_false(json_object_get(list, "has_more")));
    json_decref(list);

    snprintf(path, sizeof path, "/v1/files/%s", a);
    json_t *gone = http_ask_json(rig.port, "DELETE", path, NULL, 200);
    assert_true(json_is_true(json_object_get(gone, "deleted")));
    json_decref(gone);
    json_decref(get("files", a, 404));
    assert_int_equal(count_names("files"), 2);
}

static void the_answers_of_a_batch_equal_those_of_requests(void **state)
{
    (void)state;
    char file[64], id[64], path[128];
    http_reply r;
    upload_lines(8, 12, file);
    create(file, id);
    json_t *batch = wait_for(id, "completed");
    snprintf(path, sizeof path, "/v1/files/%s/content", text_of(batch, "output_file_id"));
    http_ask(rig.port, "GET", path, NULL, NULL, &r);
    int n = 0;
    for (char *line = r.body.data, *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        json_t *o = json_loadb(line, (size_t)(end - line), 0, NULL);
        const json_t *body = json_object_get(json_object_get(o, "response"), "body");
        assert_int_equal(json_integer_value(json_object_get(json_object_get(body, "usage"),
                                                            "completion_tokens")),
                         12);
        assert_true(json_is_null(json_object_get(o, "error")));
        json_decref(o);
    }
    assert_int_equal(n, 8);
    http_reply_free(&r);
    json_decref(batch);
    json_t *list = http_ask_json(rig.port, "GET", "/v1/batches?limit=5", NULL, 200);
    assert_string_equal(text_of(list, "first_id"), id);
    json_decref(list);
}

static void a_batch_continues_after_a_stop(void **state)
{
    (void)state;
    char file[64], id[64];
    upload_lines(30, 40, file);
    create(file, id);
    json_decref(wait_for(id, "in_progress"));
    serve_rig_close(&rig);
    open_rig();
    json_t *batch = wait_for(id, "completed");
    const json_t *counts = json_object_get(batch, "request_counts");
    assert_int_equal(json_integer_value(json_object_get(counts, "completed")), 30);
    assert_int_equal(json_integer_value(json_object_get(counts, "failed")), 0);
    json_decref(batch);
}

static void cancel(const char *id)
{
    char path[128];
    snprintf(path, sizeof path, "/v1/batches/%s/cancel", id);
    json_t *batch = http_ask_json(rig.port, "POST", path, NULL, 200);
    assert_true(*text_of(batch, "status"));
    json_decref(batch);
}

static void a_cancel_frees_the_engine(void **state)
{
    (void)state;
    char file[64], id[64], path[128];
    upload_lines(30, 2000, file);
    create(file, id);
    json_decref(wait_for(id, "in_progress"));
    assert_true(serve_rig_wait_running(&rig, 4));
    snprintf(path, sizeof path, "/v1/files/%s", file);
    expect_error("DELETE", path, NULL, 409, "id");
    cancel(id);
    json_decref(wait_for(id, "cancelled"));
    assert_true(serve_rig_wait_running(&rig, 0));
    snprintf(path, sizeof path, "/v1/batches/%s/cancel", id);
    expect_error("POST", path, NULL, 409, "id");
}

static void wrong_requests_are_refused(void **state)
{
    (void)state;
    static char big[100001];
    char file[64], id[64], other[64];
    static const char *const no_ids[] = {
        "/v1/files/x", "/v1/files/file-0123456789abcdef01234567",
        "/v1/files/file-0123456789ABCDEF01234567/content", "/v1/files/lock",
        "/v1/files/file-0123456789abcdef01234567.json", "/v1/files/..%2Flock/content",
        "/v1/batches/batch_0123456789abcdef01234567",
    };
    for (size_t i = 0; i < sizeof no_ids / sizeof *no_ids; i++) {
        http_reply r;
        http_ask(rig.port, "GET", no_ids[i], NULL, NULL, &r);
        if (r.status != 404) fail_msg("%s: %d", no_ids[i], r.status);
        http_reply_free(&r);
    }
    expect_error("GET", "/v1/files?limit=0", NULL, 400, "limit");
    expect_error("GET", "/v1/batches?limit=101", NULL, 400, "limit");
    expect_error("GET", "/v1/files?order=up", NULL, 400, "order");
    expect_error("GET", "/v1/files?after=batch_x", NULL, 400, "after");
    expect_error("GET", "/v1/files?after=file-0123456789abcdef01234567", NULL, 400, "after");
    expect_error("POST", "/v1/batches", "[]", 400, "");
    expect_error("POST", "/v1/batches", "{}", 400, "input_file_id");
    json_decref(upload_as("fine-tune", "x", NULL, 400));
    json_decref(upload_as(NULL, "x", NULL, 400));
    json_decref(upload_as("batch", NULL, NULL, 400));
    json_decref(upload_as("batch", "x", FIELD("colour") "\r\n\r\nred\r\n", 400));
    json_decref(upload_as("batch", "x", FIELD("file") "; filename=b\r\n\r\ny\r\n", 400));
    memset(big, 'x', sizeof big - 1);
    upload(big, file);
    big[sizeof big - 2] = 'x';
    cn_buf form = {0};
    http_reply r;
    assert_int_equal(cn_buf_addf(&form, "%s!", big), CN_OK);
    json_decref(upload_as("batch", form.data, NULL, 413));
    cn_buf_free(&form);
    http_ask(rig.port, "POST", "/v1/files", NULL, "{}", &r);
    assert_int_equal(r.status, 415);
    http_reply_free(&r);

    upload_lines(4, 2000, file);
    create(file, id);
    create(file, other);
    json_decref(create_as(file, "", 429));
    json_decref(create_as(file, ", \"metadata\": {\"a\": 1}", 429));
    for (int i = 2; i < 6; i++) upload("x", file);
    json_t *reply = upload_as("batch", "x", NULL, 403);
    assert_string_equal(text_of(json_object_get(reply, "error"), "code"), "quota_exceeded");
    json_decref(reply);
    cancel(id); /* the server would finish the requests that run */
    cancel(other);
}

/* Uploads that end in the middle leave no file, and the quota is unchanged. */
static void a_client_that_disconnects_leaves_nothing(void **state)
{
    (void)state;
    const struct timespec look = {.tv_nsec = 20 * 1000000L};
    char file[64];
    for (int i = 0; i < 40; i++) {
        int fd = http_connect(rig.port);
        http_send_text(fd, "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n"
                           "Content-Type: multipart/form-data; boundary=edge\r\n\r\n");
        if (i % 2) http_send_text(fd, FIELD("file") "\r\n\r\nhalf a line");
        if (i % 3 == 0) nanosleep(&look, NULL);
        close(fd);
    }
    for (int i = 0; i < 500 && count_names("tmp") > 0; i++) nanosleep(&look, NULL);
    assert_int_equal(count_names("tmp"), 0);
    for (int i = 0; i < 6; i++) upload("x", file);
    assert_int_equal(count_names("files"), 12);
}

static void unknown_members_are_named(void **state)
{
    (void)state;
    char file[64];
    upload_lines(1, 2, file);
    create_with(file, ", \"colour\": 1", true);
    create_with(file, ", \"colour\": null", false);
    create_with(file, ", \"output_expires_after\": {\"seconds\": 3600}", false);
    serve_rig_close(&rig);
    refuses_unknown = true;
    open_rig();
    json_t *reply = create_as(file, ", \"colour\": 1", 400);
    assert_string_equal(text_of(json_object_get(reply, "error"), "param"), "colour");
    json_decref(reply);
}

#define ANN "ann-secret-1"
#define BOB "bob-secret-2"

static void restart_with_keys(const char *list)
{
    serve_rig_close(&rig);
    key_list = list;
    open_rig();
}

static void upload_with_key(const char *key, char id[64])
{
    upload_key = key;
    upload("x\n", id);
}

static void expect_seen(const char *key, const char *id, bool seen)
{
    char path[128];
    http_reply r;
    snprintf(path, sizeof path, "/v1/files/%s", id);
    http_ask(rig.port, "GET", path, key, NULL, &r);
    assert_int_equal(r.status, seen ? 200 : 404);
    http_reply_free(&r);
}

static void files_stay_with_their_key_when_lines_move(void **state)
{
    (void)state;
    char of_ann[64], of_bob[64], old[64];
    restart_with_keys(ANN "," BOB);
    upload_with_key(ANN, of_ann);
    upload_with_key(BOB, of_bob);
    static const char *const lists[] = {ANN "," BOB, BOB "," ANN, "eve-secret-3," ANN "," BOB};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        restart_with_keys(lists[i]);
        expect_seen(ANN, of_ann, true);
        expect_seen(ANN, of_bob, false);
        expect_seen(BOB, of_ann, false);
        expect_seen(BOB, of_bob, true);
    }
    restart_with_keys(BOB);
    expect_seen(BOB, of_ann, false);
    expect_seen(BOB, of_bob, true);

    /* A place in the list, as in spools of older servers, is the name of no key. */
    restart_with_keys("key-1:" ANN);
    upload_with_key(ANN, old);
    restart_with_keys(ANN "," BOB);
    expect_seen(ANN, old, false);
    expect_seen(BOB, old, false);
    restart_with_keys("key-1:" ANN "," BOB);
    expect_seen(ANN, old, true);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(files_are_uploaded_listed_and_deleted),
        IN_DIR(the_answers_of_a_batch_equal_those_of_requests),
        IN_DIR(a_batch_continues_after_a_stop),
        IN_DIR(a_cancel_frees_the_engine),
        IN_DIR(wrong_requests_are_refused),
        IN_DIR(a_client_that_disconnects_leaves_nothing),
        IN_DIR(unknown_members_are_named),
        IN_DIR(files_stay_with_their_key_when_lines_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
