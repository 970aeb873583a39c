/* bench_throughput.c - `cinch bench throughput`: submits all requests of a dataset at once, without
 * streaming, and measures the total time; or runs one of the other modes of bench.h. Output lengths
 * are fixed (ignore_eos), so that the work does not depend on the model's output. The clock starts
 * after the model is loaded and the prompts are tokenised. */
#include <signal.h>

#include "engine/base/json.h"
#include "engine/bench/bench.h"
#include "engine/bench/bench_dataset.h"
#include "engine/bench/bench_list.h"
#include "engine/cmd/command.h"
#include "engine/cmd/stop_signals.h"

/* ---- signals ---- */

static volatile int stop_asked; /* only the handler writes it; int is sig_atomic_t here */
_Static_assert(sizeof(int) == sizeof(sig_atomic_t), "the flag must be written atomically");

static void take_signal(void) { stop_asked = 1; }

/* The first signal ends the measurement. */
static const cn_stop_rule stop_rule = {.first = take_signal};

/* ---- what the modes share ---- */

static void on_throughput_event(void *user, const cn_event *ev)
{
    cn_bench *b = user;
    if (ev->usage) {
        b->output_tokens += ev->usage->completion_tokens;
        if (ev->last) b->prompt_tokens += ev->usage->prompt_tokens;
    }
    if (ev->finish == CN_FINISH_ERROR) b->failed++;
    if (ev->last) b->done++;
}

cn_status cn_bench_submit(cn_bench *b, const cn_tokens *prompt, uint32_t output_len,
                          uint64_t *request)
{
    cn_request_params p = {.tokens = prompt->ids, .n_tokens = prompt->len,
                           .klass = CN_CLASS_BATCH};
    cn_engine_default_sampling(b->engine, &p.sampling);
    p.kv = b->kv;
    p.sampling.ignore_eos = true;
    p.sampling.max_tokens = output_len;
    return cn_engine_submit(b->engine, &p, on_throughput_event, b, request);
}

static void show_progress(cn_bench *b)
{
    if (!cn_progress_is_due(&b->progress)) return;
    cn_progress_figures g = {.read = b->n_requests, .done = b->done, .answered_now = b->done,
                             .input_ended = b->n_requests > 0, .tokens_total = b->n_tokens};
    cn_engine_stats(b->engine, &g.stats);
    cn_progress_show(&b->progress, &g);
}

cn_status cn_bench_step(cn_bench *b, bool *idle)
{
    if (*b->stop_asked) {
        b->interrupted = true;
        return cn_fail(CN_ERR_CANCELLED, "interrupted");
    }
    show_progress(b);
    if (b->timeline) CN_TRY(cn_timeline_tick(b->timeline, b->engine));
    CN_TRY(cn_engine_step(b->engine, idle));
    if (b->failed)
        return cn_fail(CN_ERR_DEVICE, "%llu requests failed", (unsigned long long)b->failed);
    return CN_OK;
}

cn_status cn_bench_random_tokens(const cn_bench *b, uint64_t stream, uint32_t n, cn_tokens *out)
{
    const uint32_t vocab = cn_engine_model_config(b->engine)->vocab;
    out->len = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t key[] = {b->config->seed, stream, i};
        const uint32_t token = (uint32_t)(cn_hash64(0, key, sizeof key) % vocab);
        CN_TRY(cn_tokens_add(out, &token, 1));
    }
    return CN_OK;
}

/* ---- a dataset, all at once ---- */

/* Checks that every request fits, before the first one runs. */
static cn_status check_dataset_fit(const cn_bench *b, const cn_bench_dataset *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        const cn_bench_prompt *p = &d->prompts[i];
        CN_TRY(cn_engine_check_batch(b->engine, 1, (uint32_t)p->tokens.len, p->output_len, &b->kv));
    }
    return CN_OK;
}

/* Keeps the engine's queue full until all requests have ended. */
static cn_status run_throughput(cn_bench *b, const cn_bench_dataset *d, double *elapsed_s)
{
    const double began_s = cn_now_s();
    uint32_t next = 0;
    cn_status stepped = CN_OK;
    while (stepped == CN_OK && b->done < d->n) {
        while (next < d->n) {
            const cn_bench_prompt *p = &d->prompts[next];
            cn_status status = cn_bench_submit(b, &p->tokens, p->output_len, NULL);
            if (status == CN_ERR_BUSY) break;
            CN_TRY(status);
            next++;
        }
        bool idle;
        stepped = cn_bench_step(b, &idle);
    }
    *elapsed_s = cn_now_s() - began_s;
    cn_progress_end(&b->progress);
    return b->interrupted ? CN_OK : stepped;
}

static json_t *figures_json(const cn_bench *b, const cn_bench_figures *f)
{
    const cn_stats *s = &f->stats;
    const double elapsed_s = f->elapsed_s;
    const uint64_t total = b->prompt_tokens + b->output_tokens;
    return json_pack(
        "{s:b, s:f, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:f}",
        "complete", !b->interrupted, "elapsed_time", elapsed_s,
        "num_requests", (json_int_t)b->done, "total_num_tokens",
        (json_int_t)total, "requests_per_second", (double)b->done / elapsed_s,
        "tokens_per_second", (double)total / elapsed_s, "output_tokens_per_second",
        (double)b->output_tokens / elapsed_s, "total_input_tokens", (json_int_t)b->prompt_tokens,
        "total_output_tokens", (json_int_t)b->output_tokens, "mean_batch",
        (double)b->output_tokens / (double)(s->steps ? s->steps : 1), "steps", (json_int_t)s->steps,
        "cached_tokens", (json_int_t)s->cached_tokens, "preemptions", (json_int_t)s->preemptions,
        "holder_preemptions", (json_int_t)s->holder_preemptions,
        "recomputed_tokens", (json_int_t)s->recomputed_tokens, "compressions",
        (json_int_t)s->compressions, "evicted_tokens", (json_int_t)s->evicted_tokens, "stalled_s",
        f->stalled_s);
}

cn_status cn_bench_report(cn_bench *b, const cn_bench_figures *f, uint32_t n_requests,
                          json_t **json)
{
    if (b->interrupted) {
        b->output_tokens = f->stats.generation_tokens; /* also of requests that have not ended */
        printf("Interrupted: partial figures, %llu of %u requests ended\n",
               (unsigned long long)b->done, n_requests);
    }
    printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n",
           (double)b->done / f->elapsed_s,
           (double)(b->prompt_tokens + b->output_tokens) / f->elapsed_s,
           (double)b->output_tokens / f->elapsed_s);
    printf("%llu requests, %llu prompt tokens, %llu output tokens in %.2f s, %llu steps, "
           "%llu preemptions\n",
           (unsigned long long)b->done, (unsigned long long)b->prompt_tokens,
           (unsigned long long)b->output_tokens, f->elapsed_s,
           (unsigned long long)f->stats.steps, (unsigned long long)f->stats.preemptions);
    *json = figures_json(b, f);
    return *json ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for the figures");
}

cn_status cn_bench_load_dataset(cn_bench *b, cn_bench_dataset *d)
{
    const cn_bench_model model = {
        .vocab = cn_engine_model_config(b->engine)->vocab,
        .max_model_len = cn_engine_max_model_len(b->engine),
        .tokenizer = cn_engine_tokenizer(b->engine),
    };
    CN_TRY(cn_bench_dataset_load(d, b->config, &model));
    CN_TRY(check_dataset_fit(b, d));
    b->n_requests = d->n;
    for (uint32_t i = 0; i < d->n; i++) b->n_tokens += d->prompts[i].output_len;
    return CN_OK;
}

static cn_status bench_dataset(cn_bench *b, json_t **json)
{
    cn_bench_dataset d = {0};
    cn_bench_figures f = {0};
    cn_status status = cn_bench_load_dataset(b, &d);
    if (status == CN_OK) status = run_throughput(b, &d, &f.elapsed_s);
    const uint32_t n_requests = d.n;
    cn_bench_dataset_free(&d);
    CN_TRY(status);
    cn_engine_stats(b->engine, &f.stats);
    f.stalled_s = cn_engine_event_stats(b->engine)->stalled_s;
    return cn_bench_report(b, &f, n_requests, json);
}

/* ---- the command ---- */

static cn_status write_throughput_json(json_t *figures, const cn_config *c)
{
    if (!figures || json_object_set_new(figures, "model_id", json_string(c->model)) ||
        json_object_set_new(figures, "backend", json_string("cinch " CINCH_VERSION)))
        return cn_fail(CN_ERR_MEMORY, "out of memory for the figures");
    return c->output_json ? cn_json_write_file(json_incref(figures), c->output_json) : CN_OK;
}

static cn_status run_mode(cn_bench *b)
{
    const cn_config *c = b->config;
    json_t *figures = NULL;
    cn_status status;
    if (c->steady_steps)
        status = cn_bench_steady(b, &figures);
    else if (c->resident || c->prefill)
        status = cn_bench_steps(b, &figures);
    else
        status = bench_dataset(b, &figures);
    if (status == CN_OK) status = write_throughput_json(figures, c);
    json_decref(figures);
    return status;
}

/* A cn_engine_check of a cn_bench. A dataset is checked when it is read. */
static cn_status check_mode(void *ctx, cn_engine *e)
{
    cn_bench *b = ctx;
    const cn_config *c = b->config;
    cn_status status = CN_OK;
    b->engine = e;
    cn_engine_default_kv(e, &b->kv);
    if (c->steady_steps)
        status = cn_bench_check_steady(b);
    else if (c->resident || c->prefill)
        status = cn_bench_check_steps(b);
    b->engine = NULL;
    return status;
}

/* Whether several engines are asked for, or one of a list. */
static bool has_lanes(const cn_config *c) { return c->n_lanes > 1 || c->devices; }

/* One step, and the state of one engine over time, are those of one engine. */
static cn_status check_lanes(const cn_config *c)
{
    const char *mode = c->steady_steps ? "steady-steps"
                       : c->resident   ? "resident"
                       : c->prefill    ? "prefill"
                       : c->timeline   ? "timeline"
                                       : NULL;
    if (!mode || !has_lanes(c)) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--%s measures one engine: leave out --%s, and choose a GPU with "
                               "--device", mode, c->devices ? "devices" : "data-parallel-size");
}

static cn_status run_lanes(cn_bench *b)
{
    json_t *figures = NULL;
    cn_stop_signals_set(&stop_rule);
    cn_progress_begin(&b->progress, b->config->progress, stderr);
    cn_status status = cn_bench_lanes(b, &figures);
    cn_progress_end(&b->progress);
    if (status == CN_OK) status = write_throughput_json(figures, b->config);
    json_decref(figures);
    if (status == CN_OK && b->interrupted) status = cn_fail(CN_ERR_CANCELLED, "interrupted");
    return status;
}

static cn_status run_engine(cn_bench *b)
{
    const cn_config *c = b->config;
    CN_TRY(cn_engine_create_checked(&b->engine, c, check_mode, b));
    cn_engine_default_kv(b->engine, &b->kv);
    cn_stop_signals_set(&stop_rule);
    cn_progress_begin(&b->progress, c->progress, stderr);
    cn_status status = CN_OK;
    if (c->timeline) status = cn_timeline_open(&b->timeline, c->timeline, c->timeline_interval);
    if (status == CN_OK) status = run_mode(b);
    cn_progress_end(&b->progress);
    if (status == CN_OK && b->interrupted) status = cn_fail(CN_ERR_CANCELLED, "interrupted");
    const cn_status closed = cn_timeline_close(b->timeline, b->engine);
    cn_engine_free(b->engine);
    return status != CN_OK ? status : closed;
}

static cn_status open_arms(cn_bench *b)
{
    CN_TRY(cn_compare_arms_parse(&b->arms, b->config->decode_arms, b->config));
    CN_TRY(cn_compare_arms_declare(&b->arms, b->config));
    return cn_compare_arms_check_options(&b->arms, b->config);
}

/* --select-churn is read where requests have exchanges. */
static cn_status check_churn(const cn_bench *b)
{
    const cn_compare_arms *arms = &b->arms;
    bool away = arms->n == 0 && cn_kv_is_away(&b->config->kv);
    for (uint32_t i = 0; i < arms->n; i++) away |= cn_kv_is_away(&arms->arms[i].kv);
    if (!b->config->select_churn) return CN_OK;
    cn_bench_shares shares;
    CN_TRY(cn_bench_parse_shares(&shares, "select-churn", b->config->select_churn));
    if (away) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--select-churn needs a home besides the device: %s",
                   arms->n > 0 ? "no arm has home=peer or home=host"
                               : "set --kv-home peer or host, or --arms");
}

static cn_status bench(cn_config *c)
{
    cn_bench b = {.config = c, .stop_asked = &stop_asked};
    if (c->decode_arms && c->resident == 0) return cn_fail(CN_ERR_ARG, "--arms needs --resident");
    cn_status status = c->decode_arms ? open_arms(&b) : CN_OK;
    if (status == CN_OK) status = check_churn(&b);
    if (status == CN_OK) status = check_lanes(c);
    if (status == CN_OK) status = has_lanes(c) ? run_lanes(&b) : run_engine(&b);
    cn_compare_arms_free(&b.arms);
    return status;
}

/* `bench throughput` and `bench serve` take different options. Rejects the options of the other
 * one, and those that neither the measured engine nor the client reads. */
static cn_status check_word(const cn_config *c, bool server)
{
    const uint32_t refused = server ? CN_SECTION_ENGINE | CN_SECTION_BENCH_THROUGHPUT |
                                          CN_SECTION_PROGRESS | CN_SECTION_LANES
                                    : CN_SECTION_BENCH_SERVE;
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++)
        if (c->given[i] && o[i].section & refused)
            return cn_fail(CN_ERR_ARG, "--%s: bench %s takes this option, bench %s does not",
                           o[i].name, server ? "throughput" : "serve",
                           server ? "serve" : "throughput");
    return cn_config_check_mode(c, server ? CN_MODE_BENCH_SERVE : CN_MODE_BENCH_THROUGHPUT);
}

static cn_status run_word(cn_config *c, const char *word)
{
    const bool server = strcmp(word, "serve") == 0;
    if (!server && strcmp(word, "throughput") != 0)
        return cn_fail(CN_ERR_ARG, "expected one word, throughput or serve");
    CN_TRY(check_word(c, server));
    return server ? cn_bench_serve(c) : bench(c);
}

int cn_cmd_bench(int argc, char **argv)
{
    int first, exit_code;
    cn_config *c = cn_command_begin(argc, argv, &first, &exit_code);
    if (!c) return exit_code;
    const cn_status status = run_word(c, argc - first == 1 ? argv[first] : "");
    cn_config_free(c);
    return cn_command_end("bench", status);
}
