/* bench_throughput.c - `cinch bench throughput`: all requests at once, none streamed, and how long
 * the whole takes. Output lengths are fixed (ignore_eos), so that a run's work does not depend on
 * what the model says. Prompts are tokenised and the model is loaded before the clock starts. */
#include <jansson.h>
#include <string.h>

#include "engine/bench_dataset.h"
#include "engine/command.h"

typedef struct tally {
    uint64_t done, failed, prompt_tokens, output_tokens;
} tally;

typedef struct figures {
    tally tally;
    cn_stats stats;
    double elapsed_s;
} figures;

static void on_event(void *user, const cn_event *ev)
{
    tally *t = user;
    if (ev->usage) {
        t->output_tokens += ev->usage->completion_tokens;
        if (ev->last) t->prompt_tokens += ev->usage->prompt_tokens;
    }
    if (ev->finish == CN_FINISH_ERROR) t->failed++;
    if (ev->last) t->done++;
}

static cn_status submit(cn_engine *e, const cn_bench_prompt *prompt, tally *t)
{
    cn_request_params p = {.tokens = prompt->tokens.ids, .n_tokens = prompt->tokens.len,
                           .klass = CN_CLASS_BATCH};
    cn_engine_default_sampling(e, &p.sampling);
    cn_engine_default_kv(e, &p.kv);
    p.sampling.ignore_eos = true;
    p.sampling.max_tokens = prompt->output_len;
    return cn_engine_submit(e, &p, on_event, t, NULL);
}

/* Keeps the engine's queue full until all is done. */
static cn_status run(cn_engine *e, const cn_bench_dataset *d, figures *f)
{
    const double began_s = cn_now_s();
    uint32_t next = 0;
    while (f->tally.done < d->n) {
        while (next < d->n) {
            cn_status status = submit(e, &d->prompts[next], &f->tally);
            if (status == CN_ERR_BUSY) break;
            CN_TRY(status);
            next++;
        }
        bool idle;
        CN_TRY(cn_engine_step(e, &idle));
    }
    f->elapsed_s = cn_now_s() - began_s;
    cn_engine_stats(e, &f->stats);
    if (f->tally.failed)
        return cn_fail(CN_ERR_DEVICE, "%llu requests failed", (unsigned long long)f->tally.failed);
    return CN_OK;
}

static json_t *figures_json(const figures *f, const cn_config *c)
{
    const tally *t = &f->tally;
    const cn_stats *s = &f->stats;
    const uint64_t total = t->prompt_tokens + t->output_tokens;
    return json_pack(
        "{s:f, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}",
        "elapsed_time", f->elapsed_s, "num_requests", (json_int_t)t->done, "total_num_tokens",
        (json_int_t)total, "requests_per_second", (double)t->done / f->elapsed_s,
        "tokens_per_second", (double)total / f->elapsed_s, "output_tokens_per_second",
        (double)t->output_tokens / f->elapsed_s, "total_input_tokens",
        (json_int_t)t->prompt_tokens, "total_output_tokens", (json_int_t)t->output_tokens,
        "model_id", c->model, "backend", "cinch " CINCH_VERSION, "steps", (json_int_t)s->steps,
        "cached_tokens", (json_int_t)s->cached_tokens, "preemptions", (json_int_t)s->preemptions,
        "recomputed_tokens", (json_int_t)s->recomputed_tokens, "compressions",
        (json_int_t)s->compressions, "evicted_tokens", (json_int_t)s->evicted_tokens);
}

static cn_status report(const figures *f, const cn_config *c)
{
    const tally *t = &f->tally;
    const double s = f->elapsed_s;
    printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n",
           (double)t->done / s, (double)(t->prompt_tokens + t->output_tokens) / s,
           (double)t->output_tokens / s);
    printf("%llu requests, %llu prompt tokens, %llu output tokens in %.2f s, %llu steps, "
           "%llu preemptions\n",
           (unsigned long long)t->done, (unsigned long long)t->prompt_tokens,
           (unsigned long long)t->output_tokens, s, (unsigned long long)f->stats.steps,
           (unsigned long long)f->stats.preemptions);
    if (!c->output_json) return CN_OK;
    json_t *json = figures_json(f, c);
    const int failed =
        json ? json_dump_file(json, c->output_json, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : -1;
    json_decref(json);
    return failed ? cn_fail(CN_ERR_IO, "%s: the figures could not be written", c->output_json)
                  : CN_OK;
}

static cn_status bench(const cn_config *c)
{
    cn_engine *e = NULL;
    cn_bench_dataset d = {0};
    figures f = {0};
    cn_status status = cn_engine_create(&e, c);
    if (status == CN_OK) status = cn_bench_dataset_load(&d, c, e);
    if (status == CN_OK) status = run(e, &d, &f);
    if (status == CN_OK) status = report(&f, c);
    cn_bench_dataset_free(&d);
    cn_engine_free(e);
    return status;
}

int cn_cmd_bench(int argc, char **argv)
{
    int first, exit_code;
    cn_config *c = cn_command_begin(argc, argv, &first, &exit_code);
    if (!c) return exit_code;
    cn_status status = argc - first == 1 && strcmp(argv[first], "throughput") == 0
                           ? bench(c)
                           : cn_fail(CN_ERR_ARG, "want one word, throughput");
    cn_config_free(c);
    if (status == CN_OK && fflush(stdout) == 0) return CN_EXIT_OK;
    cn_log(CN_LOG_ERROR, "cinch bench: %s", cn_last_error());
    return CN_EXIT_FAILED;
}
