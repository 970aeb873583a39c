/* bench_decode.c - the time of single steps: a decode step with a given batch size and number of
 * resident tokens, and the prefill of one prompt.
 *
 * Each figure is printed beside a lower bound that is measured in the same run. For a decode step
 * that is one read of its weights, keys and values, for a prefill its matrix products alone. A step
 * with a selector reads digests and scores, and only the keys and values that it attends to. If the
 * step ran from a graph, it is also timed by replays without a pause. The device is idle for the
 * rest of an ordinary step. */
#include "engine/bench/bench.h"
#include "engine/bench/bench_list.h"
#include "engine/bench/device_times.h"
#include "engine/bench/exchange_clock.h"

enum {
    LEAD_STEPS = 8,   /* steps until the batch is in its steady state */
    REFILL_STEPS = 2, /* until steps are again launched before the last one's tokens are read */
    FILL_STEPS = 64,  /* room for steps until a busy home has filled the area of the last request */
    PREFILL_ROUNDS = 3,
    PREFILL_STREAM = 1 << 16
};

/* ---- decode ---- */

typedef struct decode {
    cn_bench *b;
    cn_tokens tokens; /* scratch */
    uint64_t *requests; /* [max_num_seqs] */
    uint32_t resident; /* of the current batch */
    double read_bytes_s; /* bytes per second; 0: unknown */
    cn_bench_shares churns; /* n 0: scores decide */
    cn_exchange_clock *clock; /* NULL: no exchange has been timed */
} decode;

typedef struct batch_time {
    uint32_t batch;
    const char *arm; /* NULL: without --arms */
    float churn;     /* that is forced; 0: scores decide */
    double resident; /* tokens that a request held, mean over the timed steps */
    double step_s, replay_s;
    /* Of the timed exchanges with a home. */
    bool is_away;
    double attended;  /* tokens of a row and layer */
    double moved, missed; /* shares of the exchange area */
    double moved_entries, missed_entries; /* of a request and step */
    double moved_bytes, exchange_s, stall_s; /* of a step */
} batch_time;

/* Runs one step; *n_tokens is the number of tokens it generated. */
static cn_status count_step(decode *d, uint64_t *n_tokens)
{
    cn_stats before, after;
    bool idle;
    cn_engine_stats(d->b->engine, &before);
    CN_TRY(cn_bench_step(d->b, &idle));
    cn_engine_stats(d->b->engine, &after);
    *n_tokens = after.generation_tokens - before.generation_tokens;
    if (idle || after.preemptions > 0)
        return cn_fail(CN_ERR_ARG, "the pool of %u blocks cannot hold --resident %u for every "
                                   "batch of --batches %s: lower one of the two",
                       after.blocks_total, d->resident, d->b->config->batches);
    return CN_OK;
}

/* Runs n steps. Each step must generate a token for every request of the batch. */
static cn_status run_batch(decode *d, uint32_t batch, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t n_tokens;
        CN_TRY(count_step(d, &n_tokens));
        if (n_tokens != batch)
            return cn_fail(CN_ERR_ARG, "only %llu of %u requests decode: lower --resident %u, "
                                       "--batches %s or --decode-steps %u",
                           (unsigned long long)n_tokens, batch, d->resident,
                           d->b->config->batches, d->b->config->decode_steps);
    }
    return CN_OK;
}

/* Number of steps to compute a batch's prompts beside the requests that decode already. */
static uint32_t prefill_steps(const decode *d, uint32_t batch, uint32_t prompt_len)
{
    const uint32_t most = d->b->config->max_num_batched_tokens;
    return (uint32_t)cn_ceil_div((uint64_t)batch * prompt_len, most > batch ? most - batch : 1);
}

/* Whether requests with this prompt are compressed before the timed steps. */
static bool is_capped(const decode *d, uint32_t prompt_len)
{
    const uint32_t cap = cn_engine_cap_blocks(d->b->engine, &d->b->kv);
    return cap > 0 && prompt_len / cn_engine_block_tokens(d->b->engine) >= cap;
}

/* Chooses the tokens of each prompt, so that the requests hold `resident` tokens in the middle of
 * the timed steps. */
static cn_status choose_prompt(const decode *d, uint32_t batch, uint32_t *prompt_len)
{
    const uint32_t steps = d->b->config->decode_steps, resident = d->resident;
    const uint32_t lead = LEAD_STEPS + REFILL_STEPS + 1 + steps / 2 +
                          prefill_steps(d, batch, resident) / 2;
    if (resident <= lead)
        return cn_fail(CN_ERR_ARG,
                       "--resident %u is too small for --batches and --decode-steps: expected "
                       "over %u",
                       resident, lead);
    const uint32_t b = cn_engine_block_tokens(d->b->engine), whole = (resident - lead) / b * b;
    *prompt_len = is_capped(d, whole) ? whole : resident - lead;
    return CN_OK;
}

/* Churns to time: one without --select-churn, or for a request without exchanges. */
static uint32_t n_churns(const decode *d)
{
    return cn_kv_is_away(&d->b->kv) ? cn_max_u32(d->churns.n, 1) : 1;
}

/* Tokens of output until the timed steps have ended. */
static uint32_t output_len_of(const decode *d, uint32_t batch, uint32_t prompt_len)
{
    const uint32_t steps = d->b->config->decode_steps, n = n_churns(d);
    const bool away = cn_kv_is_away(&d->b->kv);
    const uint32_t each = REFILL_STEPS + (away ? 2 : 1) * steps;
    const uint32_t between = (n - 1) * (cn_engine_block_tokens(d->b->engine) + FILL_STEPS);
    return prefill_steps(d, batch, prompt_len) + LEAD_STEPS + (away ? FILL_STEPS : 0) + n * each +
           between + 4;
}

/* A compressed request sits out when it has filled a block, so the timed steps and those that lead
 * to them end before. Requests whose prompts were computed one after another need still fewer. */
static cn_status check_events(const decode *d, uint32_t prompt_len)
{
    enum { OTHERS = LEAD_STEPS + REFILL_STEPS + 1 };
    const uint32_t steps = d->b->config->decode_steps, b = cn_engine_block_tokens(d->b->engine);
    const uint32_t runs = cn_kv_is_away(&d->b->kv) ? 2 : 1;
    const uint32_t most = b > OTHERS ? (b - OTHERS) / runs : 0;
    if (!is_capped(d, prompt_len) || steps <= most) return CN_OK;
    if (most == 0)
        return cn_fail(CN_ERR_ARG, "--block-size %u is too small to time compressed requests "
                                   "between their events: raise it", b);
    return cn_fail(CN_ERR_ARG,
                   "--decode-steps %u: with blocks of %u tokens a compressed request has an event "
                   "within the timed steps; lower it to %u, or raise --block-size",
                   steps, b, most);
}

static cn_status check_batch(const decode *d, uint32_t batch)
{
    uint32_t prompt_len;
    CN_TRY(choose_prompt(d, batch, &prompt_len));
    const uint32_t all = prompt_len + output_len_of(d, batch, prompt_len);
    const uint32_t most = cn_engine_max_model_len(d->b->engine);
    if (all > most)
        return cn_fail(CN_ERR_ARG,
                       "--batches %s: %u requests that hold %u tokens end at %u tokens, beyond the "
                       "context of %u: lower --resident, --batches or --decode-steps, or raise "
                       "--max-model-len",
                       d->b->config->batches, batch, d->resident, all, most);
    const cn_status status =
        cn_engine_check_batch(d->b->engine, batch, prompt_len, all - prompt_len, &d->b->kv);
    if (status == CN_OK) return check_events(d, prompt_len);
    return cn_fail_within(status,
                          "memory cannot hold --resident %u for every batch of --batches %s",
                          d->resident, d->b->config->batches);
}

/* Submits the batch and steps until every request decodes. Request i has the same prompt in every
 * batch, so that most of it is in the prefix cache. The output length covers only the timed steps,
 * because the scheduler keeps a block free for a request that can grow further. Capped requests are
 * compressed first: their prompt ends with a full block. */
static cn_status start_batch(decode *d, uint32_t batch, uint32_t prompt_len)
{
    const bool capped = is_capped(d, prompt_len);
    const uint32_t output_len = output_len_of(d, batch, prompt_len);
    cn_stats before, now;
    cn_engine_stats(d->b->engine, &before);
    for (uint32_t i = 0; i < batch; i++) {
        CN_TRY(cn_bench_random_tokens(d->b, i, prompt_len, &d->tokens));
        CN_TRY(cn_bench_submit(d->b, &d->tokens, output_len, &d->requests[i]));
    }
    for (uint64_t n = 0; n < batch;) {
        CN_TRY(count_step(d, &n));
        cn_engine_stats(d->b->engine, &now);
        if (capped && now.compressions - before.compressions < batch) n = 0;
    }
    return run_batch(d, batch, LEAD_STEPS);
}

/* Runs the timed steps again, with a clock on their exchanges. */
static cn_status time_exchanges(decode *d, uint32_t batch, batch_time *t)
{
    const uint32_t steps = d->b->config->decode_steps;
    cn_engine *e = d->b->engine;
    cn_stats before, after;
    cn_engine_stats(e, &before);
    if (!d->clock) CN_TRY(cn_exchange_clock_create(&d->clock, e));
    const cn_exchange_times began = cn_exchange_clock_times(d->clock);
    cn_exchange_clock_run(d->clock, true);
    CN_TRY(run_batch(d, batch, steps));
    cn_exchange_clock_run(d->clock, false);
    cn_engine_stats(e, &after);
    const cn_exchange_times ended = cn_exchange_clock_times(d->clock);
    const double n = (double)(after.exchanges - before.exchanges);
    const double n_steps = (double)(ended.n_steps - began.n_steps);
    t->is_away = n > 0 && n_steps > 0;
    if (!t->is_away) return CN_OK;
    const double entries = n * cn_engine_exchange_entries(e, &d->b->kv);
    t->attended = (double)(after.selected_tokens - before.selected_tokens) / n;
    t->moved = (double)(after.fetched_entries - before.fetched_entries) / entries;
    t->missed = (double)(after.missed_entries - before.missed_entries) / entries;
    t->moved_entries = (double)(after.fetched_entries - before.fetched_entries) / n;
    t->missed_entries = (double)(after.missed_entries - before.missed_entries) / n;
    t->moved_bytes = (double)(after.fetched_bytes - before.fetched_bytes) / n * batch;
    t->exchange_s = (ended.exchange_s - began.exchange_s) / n_steps;
    t->stall_s = (ended.stall_s - began.stall_s) / n_steps;
    return CN_OK;
}

/* Steps until each request has had its next event and decodes again. So the area follows a churn
 * that has changed, and no event is due in the steps that follow. */
static cn_status pass_events(decode *d, uint32_t batch)
{
    cn_stats before, now;
    uint64_t n = 0, said;
    cn_engine_stats(d->b->engine, &before);
    while (n < batch) {
        CN_TRY(count_step(d, &said));
        cn_engine_stats(d->b->engine, &now);
        n = now.compressions - before.compressions;
    }
    while (said != batch) CN_TRY(count_step(d, &said));
    return CN_OK;
}

static cn_status cancel_batch(decode *d, uint32_t batch)
{
    for (uint32_t i = 0; i < batch; i++) cn_engine_cancel(d->b->engine, d->requests[i]);
    for (bool idle = false; !idle;) CN_TRY(cn_bench_step(d->b, &idle));
    return CN_OK;
}

static void add_exchange(const batch_time *t, json_t *row)
{
    printf("  exchange: %.0f tokens attended, %.1f %% of the area replaced (%.0f entries of a "
           "request), %.1f %% missed (%.0f), %.3f ms per step, stall %.3f ms\n",
           t->attended, 100 * t->moved, t->moved_entries, 100 * t->missed, t->missed_entries,
           t->exchange_s * 1e3, t->stall_s * 1e3);
    json_object_set_new(row, "attended", json_real(t->attended));
    json_object_set_new(row, "moved_share", json_real(t->moved));
    json_object_set_new(row, "missed_share", json_real(t->missed));
    json_object_set_new(row, "moved_entries", json_real(t->moved_entries));
    json_object_set_new(row, "missed_entries", json_real(t->missed_entries));
    json_object_set_new(row, "moved_bytes", json_real(t->moved_bytes));
    json_object_set_new(row, "exchange_ms", json_real(t->exchange_s * 1e3));
    json_object_set_new(row, "stall_ms", json_real(t->stall_s * 1e3));
}

static cn_status report_batch(const decode *d, const batch_time *t, json_t *rows)
{
    const cn_engine *e = d->b->engine;
    const double step_s = t->step_s, replay_s = t->replay_s;
    const double bytes = cn_engine_step_weight_bytes(e, t->batch) +
                         cn_engine_row_bytes(e, &d->b->kv, t->resident) * t->batch;
    const double floor_s = d->read_bytes_s > 0 ? bytes / d->read_bytes_s : 0;
    cn_progress_end(&d->b->progress);
    printf("decode, batch %u, %.0f resident", t->batch, t->resident);
    if (t->arm) printf(", %s", t->arm);
    if (t->churn > 0) printf(", churn %g", (double)t->churn);
    printf(": %.3f ms per step", step_s * 1e3);
    if (floor_s > 0) printf(", floor %.3f ms (%.1f %% of the step)", floor_s * 1e3,
                            100 * floor_s / step_s);
    if (replay_s > 0) printf(", idle %.2f %%", 100 * (1 - replay_s / step_s));
    printf("\n");
    json_t *row = json_pack("{s:I, s:f, s:f, s:f}", "batch", (json_int_t)t->batch, "resident",
                            t->resident, "ms_per_step", step_s * 1e3, "bytes_per_step", bytes);
    if (!row) return cn_fail(CN_ERR_MEMORY, "out of memory for the figures");
    if (t->arm) json_object_set_new(row, "arm", json_string(t->arm));
    if (t->churn > 0) json_object_set_new(row, "churn", json_real((double)t->churn));
    if (floor_s > 0) json_object_set_new(row, "floor_ms", json_real(floor_s * 1e3));
    if (floor_s > 0) json_object_set_new(row, "floor_share", json_real(floor_s / step_s));
    if (replay_s > 0) json_object_set_new(row, "replay_ms", json_real(replay_s * 1e3));
    if (replay_s > 0) json_object_set_new(row, "idle_share", json_real(1 - replay_s / step_s));
    if (t->is_away) add_exchange(t, row);
    return json_array_append_new(rows, row) ? cn_fail(CN_ERR_MEMORY, "out of memory for figures")
                                            : CN_OK;
}

/* Times steps of a batch that decodes. Sets the times, and the tokens that a request said between
 * `began` and the middle of the timed steps. */
static cn_status time_steps(decode *d, const cn_stats *began, batch_time *t, double *said)
{
    const uint32_t steps = d->b->config->decode_steps, batch = t->batch;
    double first_s, last_s; /* replay times before and after the timed steps */
    cn_stats now;
    cn_engine_stats(d->b->engine, &now);
    CN_TRY(cn_engine_replay_time(d->b->engine, steps, &first_s));
    CN_TRY(run_batch(d, batch, REFILL_STEPS));
    const double began_s = cn_now_s();
    CN_TRY(run_batch(d, batch, steps));
    t->step_s = (cn_now_s() - began_s) / steps;
    CN_TRY(cn_engine_replay_time(d->b->engine, steps, &last_s));
    const double middle = (REFILL_STEPS + steps / 2.0) / (REFILL_STEPS + steps);
    t->replay_s = first_s + middle * (last_s - first_s);
    /* Requests that decoded while others' prompts were computed said more. */
    *said = (double)(now.generation_tokens - began->generation_tokens) / batch + REFILL_STEPS +
            steps / 2.0;
    return cn_kv_is_away(&d->b->kv) ? time_exchanges(d, batch, t) : CN_OK;
}

static cn_status time_batch(decode *d, uint32_t batch, const char *arm, json_t *rows)
{
    uint32_t prompt_len;
    CN_TRY(choose_prompt(d, batch, &prompt_len));
    cn_stats began;
    cn_engine_stats(d->b->engine, &began);
    const bool forced = d->churns.n > 0 && cn_kv_is_away(&d->b->kv);
    if (forced) cn_engine_force_churn(d->b->engine, d->churns.at[0]);
    CN_TRY(start_batch(d, batch, prompt_len));
    for (uint32_t i = 0; i < n_churns(d); i++) {
        batch_time t = {.batch = batch, .arm = arm, .churn = forced ? d->churns.at[i] : 0};
        double said = 0;
        if (forced) cn_engine_force_churn(d->b->engine, t.churn);
        if (i > 0) CN_TRY(pass_events(d, batch));
        CN_TRY(time_steps(d, &began, &t, &said));
        t.resident = prompt_len + said;
        CN_TRY(report_batch(d, &t, rows));
    }
    CN_TRY(cancel_batch(d, batch));
    if (forced) cn_engine_force_churn(d->b->engine, 0);
    return CN_OK;
}

/* Arm 0, full KV, is left out of a batch that it does not fit, unless --arms names it. */
static bool is_left_out(const decode *d, uint32_t batch, uint32_t i, bool said)
{
    const cn_compare_arms *arms = &d->b->arms;
    if (i > 0 || arms->n == 0 || arms->names_full || check_batch(d, batch) != CN_ERR_ARG)
        return false;
    if (said)
        printf("decode, batch %u, %u resident, %s: left out: %s\n", batch, d->resident,
               arms->arms[i].label, cn_last_error());
    return true;
}

/* Checks or times a batch with the configured `kv`, or with each arm. The first one computes the
 * prompts, the others find them in the prefix cache. rows: NULL checks. */
static cn_status run_arms(decode *d, uint32_t batch, json_t *rows)
{
    const cn_compare_arms *arms = &d->b->arms;
    for (uint32_t i = 0; i < cn_max_u32(arms->n, 1); i++) {
        const cn_compare_arm *arm = arms->n > 0 ? &arms->arms[i] : NULL;
        if (arm) d->b->kv = arm->kv;
        if (is_left_out(d, batch, i, rows != NULL)) continue;
        const cn_status status =
            rows ? time_batch(d, batch, arm ? arm->label : NULL, rows) : check_batch(d, batch);
        if (status == CN_ERR_ARG && arm) return cn_fail_within(status, "arm %s", arm->label);
        CN_TRY(status);
    }
    return CN_OK;
}

/* Checks or times all batches. rows: NULL checks. */
static cn_status run_batches(decode *d, const cn_bench_numbers *batches, json_t *rows)
{
    for (uint32_t i = 0; i < batches->n; i++) {
        d->resident = batches->resident[i];
        CN_TRY(run_arms(d, batches->at[i], rows));
    }
    return CN_OK;
}

static cn_status parse_batches(const cn_bench *b, cn_bench_numbers *out)
{
    return cn_bench_parse_numbers(out, "batches", b->config->batches, b->config->max_num_seqs,
                                  b->config->resident);
}

static cn_status parse_churns(decode *d)
{
    const char *text = d->b->config->select_churn;
    return text ? cn_bench_parse_shares(&d->churns, "select-churn", text) : CN_OK;
}

static cn_status time_decode(cn_bench *b, json_t *json)
{
    decode d = {.b = b};
    cn_bench_numbers batches;
    CN_TRY(parse_batches(b, &batches));
    CN_TRY(parse_churns(&d));
    CN_TRY(cn_engine_read_bandwidth(b->engine, &d.read_bytes_s));
    if (d.read_bytes_s > 0) printf("read bandwidth: %.1f GB/s\n", d.read_bytes_s / 1e9);
    d.requests = cn_calloc(b->config->max_num_seqs, sizeof *d.requests);
    json_t *rows = json_array();
    const cn_status status = d.requests && rows
                                 ? run_batches(&d, &batches, rows)
                                 : cn_fail(CN_ERR_MEMORY, "out of memory for the requests");
    cn_tokens_free(&d.tokens);
    cn_free(d.requests);
    cn_exchange_clock_free(d.clock);
    json_object_set_new(json, "decode", rows);
    json_object_set_new(json, "weight_bytes",
                        json_integer((json_int_t)cn_engine_step_weight_bytes(
                            b->engine, b->config->max_num_seqs)));
    json_object_set_new(json, "read_bytes_per_second", json_real(d.read_bytes_s));
    return status;
}

/* ---- prefill ---- */

/* Tokens of output: a request with a home needs more than a block, or it would end before it uses
 * its home. */
static uint32_t prefill_output(const cn_bench *b)
{
    return cn_kv_is_away(&b->kv) ? cn_engine_block_tokens(b->engine) + 2 : 1;
}

/* Times a prompt to its first token, and drops the rest of the output. Sets the bytes that went
 * home meanwhile. */
static cn_status time_prompt(cn_bench *b, uint64_t stream, uint32_t n, cn_tokens *tokens,
                             double *seconds, uint64_t *put_bytes)
{
    uint64_t request;
    cn_stats before, now;
    bool idle = false;
    CN_TRY(cn_bench_random_tokens(b, stream, n, tokens));
    CN_TRY(cn_bench_submit(b, tokens, prefill_output(b), &request));
    cn_engine_stats(b->engine, &before);
    const double began_s = cn_now_s();
    do {
        CN_TRY(cn_bench_step(b, &idle));
        cn_engine_stats(b->engine, &now);
    } while (now.generation_tokens == before.generation_tokens && !idle);
    *seconds = cn_now_s() - began_s;
    *put_bytes = now.put_bytes - before.put_bytes;
    cn_engine_cancel(b->engine, request);
    while (!idle) CN_TRY(cn_bench_step(b, &idle));
    return CN_OK;
}

static cn_status time_length(cn_bench *b, uint32_t n, cn_tokens *tokens, json_t *rows)
{
    double best_s = 0, products_s = 0;
    uint64_t put_bytes;
    for (uint32_t i = 0; i <= PREFILL_ROUNDS; i++) { /* the first round warms up */
        double s;
        CN_TRY(time_prompt(b, PREFILL_STREAM + (uint64_t)n * 8 + i, n, tokens, &s, &put_bytes));
        if (i == 1 || (i > 1 && s < best_s)) best_s = s;
    }
    CN_TRY(cn_engine_products_time(b->engine, n, &products_s));
    cn_progress_end(&b->progress);
    printf("prefill of %u tokens: %.2f ms, its matrix products alone %.2f ms, ratio %.3f", n,
           best_s * 1e3, products_s * 1e3, best_s / products_s);
    if (put_bytes > 0) printf(", %.1f MiB went home meanwhile", cn_gib(put_bytes) * 1024);
    printf("\n");
    json_t *row = json_pack("{s:I, s:f, s:f, s:f, s:I}", "tokens", (json_int_t)n, "ms",
                            best_s * 1e3, "products_ms", products_s * 1e3, "ratio",
                            best_s / products_s, "put_bytes", (json_int_t)put_bytes);
    return row && json_array_append_new(rows, row) == 0
               ? CN_OK
               : cn_fail(CN_ERR_MEMORY, "out of memory for the figures");
}

static cn_status parse_lengths(const cn_bench *b, cn_bench_numbers *out)
{
    const uint32_t longest = cn_engine_max_model_len(b->engine), output = prefill_output(b);
    const uint32_t most = longest > output ? longest - output : 1;
    return cn_bench_parse_numbers(out, "prefill", b->config->prefill, most, 0);
}

static cn_status time_prefill(cn_bench *b, json_t *json)
{
    cn_bench_numbers lengths;
    CN_TRY(parse_lengths(b, &lengths));
    cn_tokens tokens = {0};
    json_t *rows = json_array();
    cn_status status = rows ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for the figures");
    for (uint32_t i = 0; status == CN_OK && i < lengths.n; i++)
        status = time_length(b, lengths.at[i], &tokens, rows);
    cn_tokens_free(&tokens);
    json_object_set_new(json, "prefill", rows);
    return status;
}

cn_status cn_bench_check_steps(cn_bench *b)
{
    decode d = {.b = b};
    cn_bench_numbers list;
    if (b->config->resident) {
        CN_TRY(parse_batches(b, &list));
        CN_TRY(parse_churns(&d));
        CN_TRY(run_batches(&d, &list, NULL));
    }
    return b->config->prefill ? parse_lengths(b, &list) : CN_OK;
}

cn_status cn_bench_steps(cn_bench *b, json_t **json)
{
    *json = json_object();
    if (!*json) return cn_fail(CN_ERR_MEMORY, "out of memory for the figures");
    if (b->config->resident) CN_TRY(time_decode(b, *json));
    return b->config->prefill ? time_prefill(b, *json) : CN_OK;
}
