/* bench_steady.c - the steady state of a long run, without the long run. Requests of every age from
 * 0 to --output-len are started, as many as memory holds. Each is replaced by a new one when it
 * ends. Then --steady-steps steps are timed.
 *
 * A request of age a has generated a tokens. It is submitted with these tokens at the end of its
 * prompt and with the rest as its output length. If compression would have capped it by then, its
 * prompt has as many tokens as it would hold. So its memory, its attention and the time of its next
 * event are those of its age. Only positions differ, which costs nothing. The oldest request is
 * submitted first, as it would have been admitted first. New requests wait behind them, so that
 * every block that becomes free is used. */
#include "compress/policy.h"
#include "engine/bench/bench.h"

enum {
    QUEUE = 4,      /* new requests that wait */
    SETTLED = 32,   /* steps without an admission before memory counts as full */
    NEW_STREAM = 1 << 20 /* token streams of requests that start at age 0 */
};

typedef struct steady {
    cn_bench *b;
    cn_tokens tokens; /* scratch */
    uint32_t block_tokens, n_max;
    uint32_t n_aged; /* requests that start with an age */
    uint64_t n_new;
} steady;

typedef struct moment {
    cn_stats stats;
    cn_event_stats events;
    double at_s;
} moment;

/* Summed over steps. */
typedef struct sums {
    double running, blocks;
} sums;

/* ---- what a request of some age holds ---- */

/* Tokens that a request with `known` tokens holds. Below its cap that is all of them. From there
 * on, its last block fills up and is emptied again. */
static uint32_t tokens_held(const steady *t, uint32_t known)
{
    const uint32_t b = t->block_tokens;
    const uint32_t trigger =
        cn_policy_first_trigger(t->n_max, t->b->config->input_len, b);
    if (known < trigger) return known;
    return (t->n_max - 1) * b + (known - trigger) % b + 1;
}

static uint32_t age_of(const steady *t, uint32_t i)
{
    const uint64_t n = t->n_aged, len = t->b->config->output_len;
    return (uint32_t)((2 * (n - i) - 1) * len / (2 * n));
}

/* Share of the ages at which a request must have a query slot. With hybrid scheduling these are the
 * ages from the window of the first event on, else all ages. */
static double slot_share(const steady *t)
{
    const cn_config *c = t->b->config;
    if (!cn_policy_needs_slot(&c->kv)) return 0;
    if (!c->hybrid_scheduling) return 1;
    const uint32_t trigger = cn_policy_first_trigger(t->n_max, c->input_len, t->block_tokens);
    const uint32_t counted = cn_min_u32(trigger, cn_rule_queries(&c->kv));
    const uint32_t free_until = cn_max_u32(trigger - counted, c->input_len);
    const uint32_t end = c->input_len + c->output_len;
    return end > free_until ? (double)(end - free_until) / c->output_len : 0;
}

/* Number of requests that memory holds: by blocks, over the mean that a request holds, and by
 * slots. */
static uint32_t count_aged(const steady *t)
{
    const cn_config *c = t->b->config;
    cn_stats s;
    cn_engine_stats(t->b->engine, &s);
    double blocks = 0;
    for (uint32_t age = 0; age < c->output_len; age++)
        blocks += (double)cn_ceil_div(tokens_held(t, c->input_len + age), t->block_tokens);
    const double by_blocks = s.blocks_total * (double)c->output_len / blocks;
    const double share = slot_share(t), by_slots = share > 0 ? s.slots_total / share : by_blocks;
    const double n = by_slots < by_blocks ? by_slots : by_blocks;
    return n < c->max_num_seqs ? cn_max_u32((uint32_t)n, 1) : c->max_num_seqs;
}

/* ---- running ---- */

static cn_status submit_aged(steady *t, uint32_t i)
{
    const cn_config *c = t->b->config;
    const uint32_t age = age_of(t, i);
    CN_TRY(cn_bench_random_tokens(t->b, i, tokens_held(t, c->input_len + age), &t->tokens));
    return cn_bench_submit(t->b, &t->tokens, c->output_len - age, NULL);
}

static cn_status step_steady(steady *t)
{
    const cn_config *c = t->b->config;
    cn_stats s;
    cn_engine_stats(t->b->engine, &s);
    for (uint32_t waiting = s.waiting; waiting < QUEUE; waiting++) {
        CN_TRY(cn_bench_random_tokens(t->b, NEW_STREAM + t->n_new++, c->input_len, &t->tokens));
        CN_TRY(cn_bench_submit(t->b, &t->tokens, c->output_len, NULL));
    }
    bool idle;
    return cn_bench_step(t->b, &idle);
}

/* Submits the requests with an age, and steps until all that fit are running. */
static cn_status fill_steady(steady *t)
{
    for (uint32_t i = 0; i < t->n_aged; i++) CN_TRY(submit_aged(t, i));
    uint32_t most = 0;
    for (uint32_t settled = 0; settled < SETTLED; settled++) {
        CN_TRY(step_steady(t));
        cn_stats s;
        cn_engine_stats(t->b->engine, &s);
        if (s.running > most) settled = 0;
        most = cn_max_u32(most, s.running);
    }
    return CN_OK;
}

/* Runs until n more steps are launched. Sums what each step has seen. */
static cn_status run_steps(steady *t, uint32_t n, sums *out)
{
    cn_stats s;
    *out = (sums){0};
    cn_engine_stats(t->b->engine, &s);
    for (const uint64_t end = s.steps + n; s.steps < end;) {
        const uint64_t before = s.steps;
        CN_TRY(step_steady(t));
        cn_engine_stats(t->b->engine, &s);
        out->running += s.steps > before ? s.running : 0;
        out->blocks += s.steps > before ? s.blocks_used : 0;
    }
    return CN_OK;
}

/* ---- figures ---- */

static moment now(const steady *t)
{
    moment m = {.at_s = cn_now_s(), .events = *cn_engine_event_stats(t->b->engine)};
    cn_engine_stats(t->b->engine, &m.stats);
    return m;
}

/* The 99th percentile of the steps missed by the events between two moments. */
static uint32_t missed_p99(const moment *a, const moment *z)
{
    uint64_t total = 0, seen = 0;
    for (uint32_t i = 0; i <= CN_MISSED_STEPS_MAX; i++)
        total += z->events.missed[i] - a->events.missed[i];
    for (uint32_t i = 0; i <= CN_MISSED_STEPS_MAX; i++) {
        seen += z->events.missed[i] - a->events.missed[i];
        if (100 * seen >= 99 * total) return i;
    }
    return CN_MISSED_STEPS_MAX;
}

static cn_status report_steady(const steady *t, const moment *a, const moment *z, const sums *sum,
                               json_t **json)
{
    const double s = z->at_s - a->at_s, steps = (double)(z->stats.steps - a->stats.steps);
    const double out = (double)(z->stats.generation_tokens - a->stats.generation_tokens);
    const double stalled_s = z->events.stalled_s - a->events.stalled_s;
    const uint64_t compressions = z->stats.compressions - a->stats.compressions;
    const uint64_t preemptions = z->stats.preemptions - a->stats.preemptions;
    const uint64_t recomputed = z->stats.recomputed_tokens - a->stats.recomputed_tokens;
    const uint32_t p99 = missed_p99(a, z);
    printf("Steady state: %.2f output tokens/s, %.0f steps of %.3f ms, %.1f decoding in a step, "
           "%.1f running\n",
           out / s, steps, s / steps * 1e3, out / steps, sum->running / steps);
    printf("%llu compressions, p99 of steps missed %u, nothing decoded for %.3f %% of the time; "
           "%llu preemptions, %llu tokens recomputed\n",
           (unsigned long long)compressions, p99, 100 * stalled_s / s,
           (unsigned long long)preemptions, (unsigned long long)recomputed);
    *json = json_pack(
        "{s:b, s:f, s:f, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I}",
        "complete", !t->b->interrupted, "elapsed_time", s,
        "output_tokens_per_second", out / s, "steps", (json_int_t)steps,
        "ms_per_step", s / steps * 1e3, "mean_batch", out / steps, "mean_running",
        sum->running / steps, "mean_blocks_used", sum->blocks / steps, "blocks_total",
        (json_int_t)z->stats.blocks_total, "compressions", (json_int_t)compressions,
        "missed_steps_p99", (json_int_t)p99, "stalled_share", stalled_s / s, "preemptions",
        (json_int_t)preemptions, "recomputed_tokens", (json_int_t)recomputed, "input_len",
        (json_int_t)t->b->config->input_len, "output_len", (json_int_t)t->b->config->output_len,
        "aged_requests", (json_int_t)t->n_aged);
    return CN_OK;
}

cn_status cn_bench_check_steady(const cn_bench *b)
{
    const cn_config *c = b->config;
    const uint64_t length = (uint64_t)c->input_len + c->output_len;
    if (length > cn_engine_max_model_len(b->engine))
        return cn_fail(CN_ERR_ARG,
                       "--input-len %u and --output-len %u exceed the context of %u tokens: lower "
                       "one of them, or raise --max-model-len",
                       c->input_len, c->output_len, cn_engine_max_model_len(b->engine));
    return cn_engine_check_batch(b->engine, 1, c->input_len, c->output_len, &b->kv);
}

cn_status cn_bench_steady(cn_bench *b, json_t **json)
{
    const cn_config *c = b->config;
    const uint32_t block_tokens = cn_engine_block_tokens(b->engine);
    steady t = {
        .b = b, .block_tokens = block_tokens, .n_max = cn_policy_n_max(&c->kv, block_tokens)};
    t.n_aged = count_aged(&t);
    cn_log(CN_LOG_INFO, "filling memory with %u requests of every age", t.n_aged);
    sums sum = {0};
    cn_status status = fill_steady(&t);
    if (status == CN_OK) status = run_steps(&t, c->warmup_steps, &sum);
    const moment begin = now(&t);
    if (status == CN_OK) status = run_steps(&t, c->steady_steps, &sum);
    const moment end = now(&t);
    cn_progress_end(&b->progress);
    if (b->interrupted && end.stats.steps > begin.stats.steps) {
        printf("Interrupted: partial figures, %llu of %u steps\n",
               (unsigned long long)(end.stats.steps - begin.stats.steps), c->steady_steps);
        status = CN_OK;
    }
    if (status == CN_OK) status = report_steady(&t, &begin, &end, &sum, json);
    cn_tokens_free(&t.tokens);
    return status;
}
