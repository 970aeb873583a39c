/* test_serve_status.c - what a running server reports: the page and its content security policy,
 * figures that count requests, and an openapi.json with every route and every option's bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/serve/routes/metrics.h"
#include "tests/lib/http_client.h"
#include "tests/lib/serve_rig.h"

static serve_rig rig;
static char dir[32];

static int open_rig(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/cinch_status_XXXXXX");
    if (!mkdtemp(dir)) return -1;
    const char *const options[] = {"--spool", dir, /* enables the routes of batches */
                                   "--kv-selectors", "ds", "--select-tokens", "64", NULL};
    serve_rig_open(&rig, options);
    return 0;
}

static int close_rig(void **state)
{
    char command[64];
    (void)state;
    serve_rig_close(&rig);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

/* ---- the page ---- */

/* Checks the attribute nonce of `tag`. */
static void expect_nonce(const char *html, const char *tag, const char *nonce)
{
    char want[128];
    snprintf(want, sizeof want, "<%s nonce=\"%s\">", tag, nonce);
    if (!strstr(html, want)) fail_msg("no %s", want);
}

static void read_nonce(const http_reply *r, char nonce[33])
{
    const char *policy = http_field(r, "Content-Security-Policy");
    assert_non_null(policy);
    assert_non_null(strstr(policy, "default-src 'none'"));
    assert_non_null(strstr(policy, "frame-ancestors 'none'"));
    assert_null(strstr(policy, "unsafe"));
    const char *at = strstr(policy, "script-src 'nonce-");
    assert_non_null(at);
    snprintf(nonce, 33, "%s", at + strlen("script-src 'nonce-"));
}

static void the_page_can_run_only_its_own_script(void **state)
{
    (void)state;
    char first[33], second[33];
    http_reply r;
    http_ask(rig.port, "GET", "/", NULL, NULL, &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_field(&r, "Content-Type"), "text/html; charset=utf-8");
    read_nonce(&r, first);
    expect_nonce(r.body.data, "script", first);
    expect_nonce(r.body.data, "style", first);
    assert_null(strstr(r.body.data, "@NONCE@"));
    /* The page loads nothing, and inserts no text as markup. */
    assert_null(strstr(r.body.data, "src="));
    assert_null(strstr(r.body.data, "innerHTML"));
    assert_non_null(strstr(r.body.data, "</html>"));
    http_reply_free(&r);
    http_ask(rig.port, "GET", "/", NULL, NULL, &r);
    read_nonce(&r, second);
    http_reply_free(&r);
    assert_string_not_equal(first, second);
}

/* ---- figures ---- */

static json_int_t figure(const char *object, const char *key)
{
    json_t *stats = http_ask_json(rig.port, "GET", "/stats", NULL, 200);
    json_int_t n = json_integer_value(json_object_get(json_object_get(stats, object), key));
    json_decref(stats);
    return n;
}

/* Waits for a count: a reply is sent before the step that ended it is counted. */
static void expect_output_tokens(json_int_t want)
{
    const double until = cn_now_s() + 120;
    const struct timespec pause = {.tv_nsec = 5000000};
    while (figure("engine", "output_tokens") != want && cn_now_s() < until) nanosleep(&pause, NULL);
    assert_int_equal(figure("engine", "output_tokens"), want);
}

static void figures_count_the_requests(void **state)
{
    (void)state;
    const json_int_t tokens = figure("engine", "output_tokens");
    json_decref(http_ask_json(rig.port, "POST", "/v1/completions",
                              "{\"prompt\": \"Sort: 3 1 2\", \"max_tokens\": 5, "
                              "\"ignore_eos\": true}", 200));
    json_decref(http_ask_json(rig.port, "POST", "/v1/completions", "{}", 400));
    expect_output_tokens(tokens + 5);
    json_t *stats = http_ask_json(rig.port, "GET", "/stats?span=day", NULL, 200);
    const json_t *requests = json_object_get(stats, "requests");
    const json_t *ends = json_object_get(requests, "ends");
    assert_int_equal(json_integer_value(json_object_get(ends, "length")), 1);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(requests, "refused"),
                                                        "invalid")), 1);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(stats, "history"),
                                                        "step_s")), 300);
    json_decref(stats);
    json_decref(http_ask_json(rig.port, "GET", "/stats?span=year", NULL, 400));
    json_decref(http_ask_json(rig.port, "GET", "/stats?span=day%00", NULL, 400));
    http_reply r;
    http_ask(rig.port, "GET", "/metrics", NULL, NULL, &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_field(&r, "Content-Type"), CN_METRICS_CONTENT_TYPE);
    static const char want[] = "\nvllm:time_to_first_token_seconds_count{model_name=\"tiny\","
                               "engine=\"0\"} 1\n";
    assert_non_null(strstr(r.body.data, want));
    http_reply_free(&r);
}

/* Fails unless /metrics has the line "NAME{labels} VALUE". */
static void expect_metric(const http_reply *r, const char *name, json_int_t value)
{
    char want[160];
    snprintf(want, sizeof want, "\n%s{model_name=\"tiny\",engine=\"0\"} %lld\n", name,
             (long long)value);
    if (!strstr(r->body.data, want)) fail_msg("no %s", want);
}

static void figures_count_selected_tokens(void **state)
{
    (void)state;
    static const char *const keys[] = {"selected_steps", "selected_tokens", "candidate_tokens"};
    const json_int_t tokens = figure("engine", "output_tokens");
    json_t *reply = http_ask_json(rig.port, "POST", "/v1/completions",
                                  "{\"prompt\": \"Sort: 3 1 2\", \"max_tokens\": 240, "
                                  "\"ignore_eos\": true, \"kv\": {\"select\": \"ds\", "
                                  "\"select_tokens\": 16, \"recent_tokens\": 0}}", 200);
    json_t *kv = json_object_get(json_object_get(reply, "usage"), "kv");
    expect_output_tokens(tokens + 240);
    http_reply r;
    http_ask(rig.port, "GET", "/metrics", NULL, NULL, &r);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char name[64];
        const json_int_t n = json_integer_value(json_object_get(kv, keys[i]));
        assert_true(n > 0);
        assert_int_equal(figure("kv", keys[i]), n);
        snprintf(name, sizeof name, "cinch_%s_total", keys[i]);
        expect_metric(&r, name, n);
    }
    http_reply_free(&r);
    json_decref(reply);
}

static int begin_completion(uint16_t port, const char *body)
{
    char request[1024];
    const int fd = http_connect(port);
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
             "application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    assert_true(fd >= 0 && http_send_text(fd, request));
    return fd;
}

/* One request runs at a time: the others wait, and that is not time of prefill. */
static void waiting_counts_as_queue_time(void **state)
{
    (void)state;
    enum { N = 4 };
    static const char *const options[] = {"--max-num-seqs", "1", NULL};
    serve_rig one;
    http_reply r;
    int fds[N];
    cn_serve_figures f;
    serve_rig_open(&one, options);
    for (int i = 0; i < N; i++)
        fds[i] = begin_completion(one.port, "{\"prompt\": \"Sort: 3 1 2\", \"max_tokens\": 200, "
                                            "\"ignore_eos\": true}");
    for (int i = 0; i < N; i++) {
        http_read(fds[i], false, &r);
        assert_int_equal(r.status, 200);
        http_reply_free(&r);
        close(fds[i]);
    }
    serve_rig_figures(&one, &f);
    const cn_histogram *h = f.histograms;
    const double whole_s = h[CN_HIST_E2E_S].sum, queue_s = h[CN_HIST_QUEUE_S].sum;
    const double prefill_s = h[CN_HIST_PREFILL_S].sum, decode_s = h[CN_HIST_DECODE_S].sum;
    assert_int_equal(h[CN_HIST_QUEUE_S].n, N);
    assert_true(queue_s > whole_s / 4); /* 6 of 10 times that of a request alone */
    assert_true(prefill_s > 0 && prefill_s < whole_s / 8);
    assert_true(queue_s + prefill_s + decode_s > 0.99 * whole_s);
    assert_true(queue_s + prefill_s + decode_s < 1.01 * whole_s);
    serve_rig_close(&one);
}

static void page_and_figures_need_a_key(void **state)
{
    (void)state;
    static const char *const paths[] = {"/", "/stats", "/metrics", "/openapi.json"};
    static const char *const options[] = {"--api-key", "night:abcdefgh12345678", NULL};
    serve_rig locked;
    http_reply r;
    serve_rig_open(&locked, options);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        http_ask(locked.port, "GET", paths[i], NULL, NULL, &r);
        assert_int_equal(r.status, 401);
        http_reply_free(&r);
        http_ask(locked.port, "GET", paths[i], "abcdefgh12345678", NULL, &r);
        assert_int_equal(r.status, 200);
        http_reply_free(&r);
    }
    serve_rig_close(&locked);
}

/* ---- openapi.json ---- */

static json_t *described(void)
{
    return http_ask_json(rig.port, "GET", "/openapi.json", NULL, 200);
}

static json_t *operation(json_t *doc, const cn_route *r)
{
    char method[16];
    snprintf(method, sizeof method, "%s", cn_http_method_name(r->method));
    for (char *c = method; *c; c++) *c |= 0x20;
    return json_object_get(json_object_get(json_object_get(doc, "paths"), r->path), method);
}

static void openapi_describes_exactly_the_served_routes(void **state)
{
    (void)state;
    json_t *doc = described();
    const cn_http_server *http = cn_server_http(rig.server);
    size_t n_routes = 0, n_described = 0;
    for (const cn_route *r; (r = cn_http_server_route(http, n_routes)); n_routes++) {
        json_t *op = operation(doc, r);
        if (!op) fail_msg("%s %s is not in openapi.json", cn_http_method_name(r->method), r->path);
        const bool open = json_array_size(json_object_get(op, "security")) == 0 &&
                          json_object_get(op, "security");
        assert_int_equal(open, (r->flags & CN_ROUTE_OPEN) != 0);
    }
    const char *path;
    json_t *methods;
    json_object_foreach(json_object_get(doc, "paths"), path, methods)
        n_described += json_object_size(methods);
    assert_int_equal(n_described, n_routes);
    assert_string_equal(json_string_value(json_object_get(json_object_get(doc, "info"), "version")),
                        CINCH_VERSION);
    json_decref(doc);
}

/* Returns the schema of a body's member; "kv.budget" is a member of the kv object. */
static json_t *property(json_t *schemas, const char *request, const char *key)
{
    const char *dot = strchr(key, '.');
    json_t *props = json_object_get(json_object_get(schemas, request), "properties");
    if (!dot) return json_object_get(props, key);
    if (strncmp(key, "kv.", 3) == 0) return property(schemas, "KvOptions", dot + 1);
    json_t *object = json_object_getn(props, key, (size_t)(dot - key));
    return json_object_get(json_object_get(object, "properties"), dot + 1);
}

static void expect_bounds(const cn_option *o, double min, const json_t *schema)
{
    const bool above = o->flags & CN_OPTION_ABOVE_MIN;
    const json_t *low = json_object_get(schema, above ? "exclusiveMinimum" : "minimum");
    const json_t *high = json_object_get(schema, "maximum");
    if (!json_is_number(low) || !json_is_number(high)) fail_msg("%s: no bounds", o->json);
    if (json_number_value(low) != min || json_number_value(high) != o->max)
        fail_msg("%s: %g to %g, but the option: %g to %g", o->json, json_number_value(low),
                 json_number_value(high), min, o->max);
}

static void expect_names(const cn_option *o, const json_t *schema)
{
    char joined[256] = "";
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(schema, "enum"), i, name)
    {
        const size_t n = strlen(joined);
        snprintf(joined + n, sizeof joined - n, "%s%s", i ? "|" : "", json_string_value(name));
    }
    assert_string_equal(joined, o->values);
}

static void openapi_has_every_body_option_with_its_bounds(void **state)
{
    (void)state;
    static const char *const requests[] = {"ChatCompletionRequest", "CompletionRequest"};
    json_t *doc = described();
    json_t *schemas = json_object_get(json_object_get(doc, "components"), "schemas");
    size_t n, seen = 0;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++, o++) {
        for (int r = 0; r < 2 && o->json; r++, seen++) {
            const json_t *schema = property(schemas, requests[r], o->json);
            if (!schema) fail_msg("%s has no %s", requests[r], o->json);
            /* A request may ask for the scores of its prompt alone. */
            const bool zero = strcmp(o->json, "max_tokens") == 0;
            if (o->type == CN_OPTION_ENUM)
                expect_names(o, schema);
            else if (o->type != CN_OPTION_BOOL)
                expect_bounds(o, zero ? 0 : o->min, schema);
        }
    }
    assert_true(seen > 40);
    json_decref(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_can_run_only_its_own_script),
        cmocka_unit_test(figures_count_the_requests),
        cmocka_unit_test(figures_count_selected_tokens),
        cmocka_unit_test(waiting_counts_as_queue_time),
        cmocka_unit_test(page_and_figures_need_a_key),
        cmocka_unit_test(openapi_describes_exactly_the_served_routes),
        cmocka_unit_test(openapi_has_every_body_option_with_its_bounds),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
