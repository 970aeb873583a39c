/* test_metrics.c - the text of /metrics and the figures of the server's page: names, labels,
 * buckets that add up, quantiles, and a history of fixed size. tests/serve_client_check.sh reads
 * the text of a running server with the parser of Prometheus. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/serve/routes/metrics.h"
#include "engine/serve/routes/status_json.h"

/* ---- metrics ---- */

static void expect_line(const cn_buf *text, const char *line)
{
    char want[512];
    snprintf(want, sizeof want, "\n%s\n", line);
    if (!strstr(text->data, want)) fail_msg("no line '%s' in:\n%s", line, text->data);
}

static cn_metrics some_metrics(const cn_config *c)
{
    cn_metrics m = {.model_name = "a \"quoted\\\n\" name", .config = c, .started_s = 1700000000};
    static cn_engine_figures engine;
    engine = (cn_engine_figures){.device = "cpu", .uuid = "", .is_up = true};
    m.engines = &engine;
    m.n_engines = 1;
    engine.stats = m.sums = (cn_stats){.running = 3, .waiting = 7, .blocked = 2, .blocks_total = 8,
                          .blocks_used = 2, .blocks_spared = 40, .block_tokens = 64,
                          .generation_tokens = 12345678901, .compressions = 5,
                          .freed_bytes = 1 << 20, .compression_s = 0.5, .swapped = 2,
                          .swap_blocks_used = 9, .swap_windows_total = 4,
                          .swap_windows_used = 1, .swap_outs = 5, .swap_ins = 3,
                          .swapped_out_blocks = 45, .swapped_out_bytes = 4500};
    m.serve.finished[CN_FINISH_STOP] = 11;
    m.serve.finished[CN_FINISH_CANCELLED] = 4;
    m.serve.rejected_busy = 6;
    return m;
}

#define LABELS "model_name=\"a \\\"quoted\\\\\\n\\\" name\",engine=\"0\""

static void the_text_has_every_series_with_its_labels(void **state)
{
    (void)state;
    cn_config *c = cn_config_create();
    cn_metrics m = some_metrics(c);
    cn_buf text = {0};
    assert_int_equal(cn_metrics_text(&m, &text), CN_OK);
    expect_line(&text, "# TYPE vllm:num_requests_running gauge");
    expect_line(&text, "vllm:num_requests_running{" LABELS "} 3");
    expect_line(&text, "vllm:num_requests_waiting{" LABELS "} 7");
    expect_line(&text, "vllm:kv_cache_usage_perc{" LABELS "} 0.25");
    expect_line(&text, "# TYPE vllm:generation_tokens_total counter");
    expect_line(&text, "vllm:generation_tokens_total{" LABELS "} 12345678901");
    expect_line(&text, "vllm:request_success_total{" LABELS ",finished_reason=\"stop\"} 11");
    expect_line(&text, "vllm:request_success_total{" LABELS ",finished_reason=\"abort\"} 4");
    expect_line(&text, "cinch_requests_blocked{" LABELS "} 2");
    expect_line(&text, "cinch_compressions_total{" LABELS "} 5");
    expect_line(&text, "cinch_freed_bytes_total{" LABELS "} 1048576");
    expect_line(&text, "cinch_compression_seconds_total{" LABELS "} 0.5");
    expect_line(&text, "cinch_kv_blocks_spared{" LABELS "} 40");
    expect_line(&text, "cinch_requests_rejected_total{" LABELS ",reason=\"busy\"} 6");
    expect_line(&text, "vllm:num_requests_swapped{" LABELS "} 2");
    expect_line(&text, "cinch_swap_blocks_used{" LABELS "} 9");
    expect_line(&text, "cinch_swap_windows{" LABELS "} 4");
    expect_line(&text, "cinch_swap_windows_used{" LABELS "} 1");
    expect_line(&text, "cinch_swapped_out_requests_total{" LABELS "} 5");
    expect_line(&text, "cinch_swapped_in_requests_total{" LABELS "} 3");
    expect_line(&text, "cinch_swapped_out_blocks_total{" LABELS "} 45");
    expect_line(&text, "cinch_swapped_out_bytes_total{" LABELS "} 4500");
    cn_buf_free(&text);
    cn_config_free(c);
}

static void each_engine_has_its_lines(void **state)
{
    (void)state;
    cn_config *c = cn_config_create();
    const cn_engine_figures two[] = {
        {.device = "cuda:0", .uuid = "GPU-1", .is_up = true, .stats = {.running = 3, .steps = 8}},
        {.device = "cuda:1", .uuid = "", .failure = "lost", .stats = {.running = 1, .steps = 5}}};
    const cn_metrics m = {.model_name = "m", .config = c, .engines = two, .n_engines = 2};
    cn_buf text = {0};
    assert_int_equal(cn_metrics_text(&m, &text), CN_OK);
    expect_line(&text, "vllm:num_requests_running{model_name=\"m\",engine=\"0\"} 3\n"
                       "vllm:num_requests_running{model_name=\"m\",engine=\"1\"} 1");
    expect_line(&text, "cinch_steps_total{model_name=\"m\",engine=\"1\"} 5");
    expect_line(&text, "cinch_engine_info{model_name=\"m\",engine=\"0\",device=\"cuda:0\","
                       "uuid=\"GPU-1\"} 1");
    expect_line(&text, "cinch_engine_up{model_name=\"m\",engine=\"0\"} 1\n"
                       "cinch_engine_up{model_name=\"m\",engine=\"1\"} 0");
    cn_buf_free(&text);
    cn_config_free(c);
}

static void metrics_without_an_engine_have_no_nan(void **state)
{
    (void)state;
    cn_config *c = cn_config_create();
    const cn_engine_figures idle = {.device = "cpu", .uuid = ""};
    const cn_metrics m = {.model_name = "m", .config = c, .engines = &idle, .n_engines = 1};
    cn_buf text = {0};
    assert_int_equal(cn_metrics_text(&m, &text), CN_OK);
    expect_line(&text, "vllm:kv_cache_usage_perc{model_name=\"m\",engine=\"0\"} 0");
    assert_null(strstr(text.data, "nan"));
    cn_buf_free(&text);
    cn_config_free(c);
}

static void the_last_bucket_counts_all_values(void **state)
{
    (void)state;
    cn_config *c = cn_config_create();
    cn_serve_stats *stats;
    cn_metrics m = {.model_name = "m", .config = c};
    cn_buf text = {0};
    assert_int_equal(cn_serve_stats_create(&stats), CN_OK);
    cn_serve_stats_observe(stats, CN_HIST_TTFT_S, 0.001, 1); /* a bound is in its own bucket */
    cn_serve_stats_observe(stats, CN_HIST_TTFT_S, 0.3, 2);
    cn_serve_stats_observe(stats, CN_HIST_TTFT_S, 1e9, 1);
    cn_serve_stats_copy(stats, &m.serve);
    assert_int_equal(cn_metrics_text(&m, &text), CN_OK);
#define TTFT "vllm:time_to_first_token_seconds"
#define M "model_name=\"m\",engine=\"0\""
    expect_line(&text, "# TYPE " TTFT " histogram");
    expect_line(&text, TTFT "_bucket{" M ",le=\"0.001\"} 1");
    expect_line(&text, TTFT "_bucket{" M ",le=\"0.25\"} 1");
    expect_line(&text, TTFT "_bucket{" M ",le=\"0.5\"} 3");
    expect_line(&text, TTFT "_bucket{" M ",le=\"2560\"} 3");
    expect_line(&text, TTFT "_bucket{" M ",le=\"+Inf\"} 4");
    expect_line(&text, TTFT "_count{" M "} 4");
    cn_buf_free(&text);
    cn_serve_stats_free(stats);
    cn_config_free(c);
}

static void quantiles_are_interpolated(void **state)
{
    (void)state;
    cn_serve_stats *stats;
    cn_serve_figures f;
    assert_int_equal(cn_serve_stats_create(&stats), CN_OK);
    cn_serve_stats_copy(stats, &f);
    assert_true(isnan(cn_histogram_quantile(&f.histograms[CN_HIST_TTFT_S], CN_HIST_TTFT_S, 0.5)));
    cn_serve_stats_observe(stats, CN_HIST_TTFT_S, 0.3, 10); /* between 0.25 and 0.5 */
    cn_serve_stats_copy(stats, &f);
    const cn_histogram *h = &f.histograms[CN_HIST_TTFT_S];
    assert_float_equal(cn_histogram_quantile(h, CN_HIST_TTFT_S, 0.5), 0.375, 1e-9);
    assert_float_equal(cn_histogram_quantile(h, CN_HIST_TTFT_S, 1), 0.5, 1e-9);
    cn_serve_stats_observe(stats, CN_HIST_TTFT_S, 1e9, 90);
    cn_serve_stats_copy(stats, &f);
    assert_float_equal(cn_histogram_quantile(h, CN_HIST_TTFT_S, 0.99), 2560, 1e-9);
    cn_serve_stats_free(stats);
}

/* ---- the page's figures ---- */

static json_t *history_of(const cn_history *h, cn_history_span span, const char *series)
{
    json_t *o = cn_history_json(h, span);
    assert_non_null(o);
    json_t *a = json_incref(json_object_get(o, series));
    json_decref(o);
    assert_non_null(a);
    return a;
}

static void a_history_has_rates_and_a_fixed_size(void **state)
{
    (void)state;
    cn_history *h;
    cn_stats s = {.blocks_total = 100, .blocks_used = 25, .blocks_spared = 300, .running = 4};
    assert_int_equal(cn_history_create(&h), CN_OK);
    assert_float_equal(cn_history_rate(h, 5), 0, 0);
    const int day = 24 * 3600 / CN_HISTORY_STEP_S;
    for (int i = 0; i <= day + 1000; i++) {
        cn_history_add(h, &s, 50 + i * CN_HISTORY_STEP_S);
        s.generation_tokens += 20;
    }
    json_t *rates = history_of(h, CN_HISTORY_RECENT, "output_tokens_per_s");
    assert_int_equal(json_array_size(rates), 180);
    assert_float_equal(json_real_value(json_array_get(rates, 179)), 10, 1e-6);
    json_decref(rates);
    json_t *spared = history_of(h, CN_HISTORY_DAY, "kv_spared");
    assert_int_equal(json_array_size(spared), 288);
    assert_float_equal(json_real_value(json_array_get(spared, 0)), 3, 1e-6);
    json_decref(spared);
    assert_float_equal(cn_history_rate(h, 5), 10, 1e-6);
    cn_history_free(h);
}

static void the_newest_comes_last(void **state)
{
    (void)state;
    cn_history *h;
    cn_stats s = {.blocks_total = 1};
    assert_int_equal(cn_history_create(&h), CN_OK);
    for (uint32_t i = 0; i < 200; i++) {
        s.running = i;
        cn_history_add(h, &s, i);
    }
    json_t *running = history_of(h, CN_HISTORY_RECENT, "running");
    assert_float_equal(json_real_value(json_array_get(running, 0)), 20, 0);
    assert_float_equal(json_real_value(json_array_get(running, 179)), 199, 0);
    json_decref(running);
    cn_history_free(h);
}

static void the_status_has_the_members_that_the_page_reads(void **state)
{
    (void)state;
    cn_config *c = cn_config_create();
    cn_history *h;
    cn_buf text = {0};
    assert_int_equal(cn_history_create(&h), CN_OK);
    const cn_status_figures f = {
        .metrics = some_metrics(c), .now_s = 1700000123.9, .failure = "broken", .history = h};
    assert_int_equal(cn_status_json(&f, &text), CN_OK);
    json_t *o = json_loads(text.data, 0, NULL);
    assert_non_null(o);
    assert_int_equal(json_integer_value(json_object_get(o, "now")), 1700000123);
    assert_string_equal(json_string_value(json_object_get(o, "failure")), "broken");
    const json_t *kv = json_object_get(o, "kv");
    assert_string_equal(json_string_value(json_object_get(kv, "policy")), "full");
    assert_int_equal(json_integer_value(json_object_get(kv, "spared")), 40);
    const json_t *ends = json_object_get(json_object_get(o, "requests"), "ends");
    assert_int_equal(json_integer_value(json_object_get(ends, "abort")), 4);
    json_t *ttft = json_object_get(json_object_get(o, "latency"), "ttft_s");
    assert_true(json_is_null(json_object_get(ttft, "p50")));
    json_decref(o);
    cn_buf_free(&text);
    cn_history_free(h);
    cn_config_free(c);
}

/* With n requests in flight that take T seconds each, requests end at a rate of n / T. */
static void retry_after_is_the_expected_time_to_the_next_end(void **state)
{
    (void)state;
    cn_serve_stats *s;
    assert_int_equal(cn_serve_stats_create(&s), CN_OK);
    assert_int_equal(cn_serve_stats_retry_s(s, CN_CLASS_INTERACTIVE, 0), 1); /* nothing known yet */
    cn_serve_stats_observe_end(s, CN_CLASS_INTERACTIVE, 40);
    cn_serve_stats_observe_end(s, CN_CLASS_BATCH, 7000);
    assert_int_equal(cn_serve_stats_retry_s(s, CN_CLASS_INTERACTIVE, 0), 40);
    assert_int_equal(cn_serve_stats_retry_s(s, CN_CLASS_INTERACTIVE, 3), 14); /* rounded up */
    assert_int_equal(cn_serve_stats_retry_s(s, CN_CLASS_INTERACTIVE, 1000), 1);
    assert_int_equal(cn_serve_stats_retry_s(s, CN_CLASS_BATCH, 2), 60); /* bounded */
    cn_serve_stats_lock(s)->active_class[CN_CLASS_INTERACTIVE] = 8;
    cn_serve_stats_unlock(s);
    assert_int_equal(cn_serve_stats_retry_s(s, CN_CLASS_INTERACTIVE, 0), 5);
    for (int i = 0; i < 100; i++) cn_serve_stats_observe_end(s, CN_CLASS_INTERACTIVE, 400);
    assert_int_equal(cn_serve_stats_retry_s(s, CN_CLASS_INTERACTIVE, 0), 50); /* new rate */
    cn_serve_stats_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_has_every_series_with_its_labels),
        cmocka_unit_test(each_engine_has_its_lines),
        cmocka_unit_test(metrics_without_an_engine_have_no_nan),
        cmocka_unit_test(the_last_bucket_counts_all_values),
        cmocka_unit_test(quantiles_are_interpolated),
        cmocka_unit_test(a_history_has_rates_and_a_fixed_size),
        cmocka_unit_test(the_newest_comes_last),
        cmocka_unit_test(the_status_has_the_members_that_the_page_reads),
        cmocka_unit_test(retry_after_is_the_expected_time_to_the_next_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
