/* test_serve_bounds.c - what a client may cost at most: memory and time of a request, of a key and
 * of a batch, and who waits for whom. */
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
#include "tests/lib/scratch_dir.h"
#include "tests/lib/serve_rig.h"

/* ---- memory of this process ---- */

static uint64_t status_kib(const char *field)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0) sscanf(line + strlen(field), ": %llu", &kib);
    fclose(f);
    return kib;
}

/* The most memory since the last call of reset_peak. */
static uint64_t peak_kib(void) { return status_kib("VmHWM"); }
static uint64_t rss_kib(void) { return status_kib("VmRSS"); }

static void reset_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    assert_non_null(f);
    fputs("5", f);
    fclose(f);
}

static int ask(uint16_t port, const char *path, const char *key, const char *body, cn_buf *text)
{
    http_reply r;
    http_ask(port, "POST", path, key, body, &r);
    const int status = r.status;
    if (text) {
        cn_buf_clear(text);
        assert_int_equal(cn_buf_add(text, r.body.data ? r.body.data : "", r.body.len), CN_OK);
    }
    http_reply_free(&r);
    return status;
}

/* Waits until no request holds memory of the budget. */
static void wait_free_memory(serve_rig *rig)
{
    const struct timespec look = {.tv_nsec = 5000000};
    cn_budget *memory = cn_service_memory(cn_server_service(rig->server));
    for (int i = 0; i < 2000 && atomic_load(&memory->used) > 0; i++) nanosleep(&look, NULL);
    assert_int_equal(atomic_load(&memory->used), 0);
}

/* ---- JSON ---- */

/* Returns {"prompt": "hi", "max_tokens": 1, "metadata": [{},{},...]} with n objects. */
static cn_buf body_of_objects(size_t n)
{
    cn_buf b = {0};
    assert_int_equal(cn_buf_addf(&b, "{\"prompt\": \"hi\", \"max_tokens\": 1, \"metadata\": [{}"),
                     CN_OK);
    for (size_t i = 1; i < n; i++) assert_int_equal(cn_buf_add(&b, ",{}", 3), CN_OK);
    assert_int_equal(cn_buf_addf(&b, "]}"), CN_OK);
    return b;
}

static void a_body_of_many_objects_is_refused_unparsed(void **state)
{
    (void)state;
    serve_rig rig;
    cn_buf text = {0}, body = body_of_objects(10 << 20);
    serve_rig_open(&rig, NULL);
    assert_int_equal(ask(rig.port, "/v1/completions", NULL, "{\"prompt\": \"a\"}", NULL), 200);
    const uint64_t before = rss_kib();
    reset_peak();
    assert_int_equal(ask(rig.port, "/v1/completions", NULL, body.data, &text), 400);
    assert_non_null(strstr(text.data, "JSON values exceed the limit"));
    assert_true(peak_kib() - before < 200 << 10);
    assert_int_equal(ask(rig.port, "/tokenize", NULL, body.data, &text), 400);
    assert_true(peak_kib() - before < 200 << 10);
    cn_buf_free(&body);
    cn_buf_free(&text);
    serve_rig_close(&rig);
}

/* The tree of a body counts against --max-buffered-bytes while it is there. */
static void values_count_as_memory(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-buffered-bytes", "2M", NULL};
    serve_rig rig;
    cn_buf text = {0}, body = body_of_objects(20000);
    serve_rig_open(&rig, options);
    assert_int_equal(ask(rig.port, "/v1/completions", NULL, body.data, &text), 429);
    assert_non_null(strstr(text.data, "--max-buffered-bytes"));
    cn_buf_free(&body);
    body = body_of_objects(3000);
    for (int i = 0; i < 10; i++)
        assert_int_equal(ask(rig.port, "/v1/completions", NULL, body.data, NULL), 200);
    assert_true(serve_rig_wait_running(&rig, 0));
    wait_free_memory(&rig);
    cn_buf_free(&body);
    cn_buf_free(&text);
    serve_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_of_many_objects_is_refused_unparsed),
        cmocka_unit_test(values_count_as_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
