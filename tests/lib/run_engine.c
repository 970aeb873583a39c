/* run_engine.c - see run_engine.h. */
#include "tests/lib/run_engine.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/options/options.h"

static void check(cn_status status)
{
    if (status != CN_OK) fail_msg("%s: %s", cn_status_name(status), cn_last_error());
}

void run_set_option(cn_config *c, const char *name, const char *value)
{
    char all[256] = "";
    const cn_option *o = cn_option_find(name);
    if (strcmp(value, "*") == 0) {
        assert_true(o && o->type == CN_OPTION_SET && strlen(o->values) < sizeof all);
        const char *from = o->values;
        if (strncmp(from, "none|", 5) == 0) from += 5;
        for (size_t i = 0; from[i]; i++) all[i] = from[i] == '|' ? ',' : from[i];
        value = all;
    }
    check(cn_config_set(c, name, value));
}

void run_open(run *r, const char *const *options)
{
    memset(r, 0, sizeof *r);
    cn_config *c = cn_config_create();
    assert_non_null(c);
    check(cn_config_set(c, "model", "examples/tiny-reasoner"));
    check(cn_config_set(c, "check-invariants", "true"));
    for (; options && options[0]; options += 2) run_set_option(c, options[0], options[1]);
    check(cn_engine_create(&r->engine, c));
    cn_config_free(c);
}

run *run_new(const char *const *options, const char *const *more)
{
    const char *all[128];
    size_t n = 0;
    for (const char *const *o = options; o && *o; o++) all[n++] = *o;
    for (const char *const *o = more; o && *o; o++) all[n++] = *o;
    assert_true(n < sizeof all / sizeof *all);
    all[n] = NULL;
    run *r = malloc(sizeof *r);
    assert_non_null(r);
    run_open(r, all);
    return r;
}

cn_request_params run_params(const run *r, const char *chat_user_text, cn_message *message,
                             uint32_t max_tokens)
{
    *message = (cn_message){.role = "user", .content = chat_user_text};
    cn_request_params p = {.messages = message, .n_messages = 1, .enable_thinking = -1};
    cn_engine_default_sampling(r->engine, &p.sampling);
    cn_engine_default_kv(r->engine, &p.kv);
    p.sampling.max_tokens = max_tokens;
    p.klass = CN_CLASS_BATCH;
    return p;
}

static void keep_tokens(run_sample *s, const cn_event *ev)
{
    if (ev->n_tokens == 0) return; /* the event has only the end */
    while (s->n_tokens + ev->n_tokens > s->cap) {
        s->cap = s->cap ? 2 * s->cap : 2048;
        s->tokens = realloc(s->tokens, s->cap * sizeof *s->tokens);
        assert_non_null(s->tokens);
    }
    memcpy(s->tokens + s->n_tokens, ev->tokens, ev->n_tokens * sizeof *s->tokens);
    s->n_tokens += ev->n_tokens;
    for (uint32_t i = 0; ev->logprobs && i < ev->n_tokens; i++) {
        const float logprob = ev->logprobs[i].chosen.logprob;
        s->logprob_hash = cn_hash64(s->logprob_hash, &logprob, sizeof logprob);
    }
}

static void on_event(void *user, const cn_event *ev)
{
    struct run_slot *slot = user;
    run_sample *s = &slot->run->samples[slot->request][ev->sample];
    uint64_t allocs = cn_alloc_count();
    assert_int_equal(s->finish, CN_FINISH_NONE);
    slot->run->n_begun += s->n_tokens == 0 && ev->n_tokens > 0;
    keep_tokens(s, ev);
    check(cn_buf_add(&s->text, ev->text, ev->text_len));
    check(cn_buf_add(&s->reasoning, ev->reasoning, ev->reasoning_len));
    s->finish = ev->finish;
    if (ev->finish != CN_FINISH_NONE) s->usage = *ev->usage;
    if (ev->stop_reason) strncpy(s->stop_reason, ev->stop_reason, sizeof s->stop_reason - 1);
    if (ev->error) strncpy(s->error, ev->error, sizeof s->error - 1);
    if (ev->param) strncpy(s->param, ev->param, sizeof s->param - 1);
    s->invalid = ev->invalid;
    if (ev->last) slot->run->n_done++;
    slot->run->callback_allocs += cn_alloc_count() - allocs;
}

uint32_t run_submit(run *r, const cn_request_params *p)
{
    uint32_t i = r->n_requests++;
    assert_true(i < RUN_MAX_REQUESTS && p->sampling.n <= RUN_MAX_SAMPLES);
    r->slots[i] = (struct run_slot){r, i};
    check(cn_engine_submit(r->engine, p, on_event, &r->slots[i], &r->ids[i]));
    return i;
}

void run_steps(run *r, uint32_t n)
{
    bool idle;
    for (uint32_t i = 0; i < n; i++) check(cn_engine_step(r->engine, &idle));
    cn_engine_stats(r->engine, &r->stats);
}

void run_finish(run *r)
{
    for (bool idle = false; !idle;) {
        uint32_t done = r->n_done, begun = r->n_begun;
        uint64_t allocs = cn_alloc_count() - r->callback_allocs;
        check(cn_engine_step(r->engine, &idle));
        cn_engine_stats(r->engine, &r->stats);
        if (r->n_done == done && r->n_begun == begun)
            r->step_allocs += cn_alloc_count() - r->callback_allocs - allocs;
        r->peak_running = cn_max_u32(r->peak_running, r->stats.running);
    }
    assert_int_equal(r->n_done, r->n_requests);
    assert_int_equal(r->stats.blocks_used, 0);
}

void run_close(run *r)
{
    cn_engine_free(r->engine);
    for (uint32_t i = 0; i < r->n_requests; i++)
        for (uint32_t s = 0; s < RUN_MAX_SAMPLES; s++) {
            free(r->samples[i][s].tokens);
            cn_buf_free(&r->samples[i][s].text);
            cn_buf_free(&r->samples[i][s].reasoning);
        }
}

void run_free(run *r)
{
    run_close(r);
    free(r);
}

void run_assert_same(const run *x, uint32_t a, const run *y, uint32_t b, uint32_t s)
{
    const run_sample *p = &x->samples[a][s], *q = &y->samples[b][s];
    uint32_t n = cn_min_u32(p->n_tokens, q->n_tokens);
    for (uint32_t i = 0; i < n; i++)
        if (p->tokens[i] != q->tokens[i])
            fail_msg("requests %u and %u, sample %u: token %u is %u and %u", a, b, s, i,
                     p->tokens[i], q->tokens[i]);
    assert_int_equal(p->n_tokens, q->n_tokens);
    assert_int_equal(p->finish, q->finish);
}

void run_assert_same_bits(const run *x, uint32_t a, const run *y, uint32_t b, uint32_t s)
{
    run_assert_same(x, a, y, b, s);
    const uint64_t hash = x->samples[a][s].logprob_hash;
    assert_true(hash != 0);
    if (hash != y->samples[b][s].logprob_hash)
        fail_msg("requests %u and %u, sample %u: other log-probabilities", a, b, s);
}

void run_assert_accounts(const run *r)
{
    cn_stats sum = {0};
    const cn_stats *reported = &r->stats;
    for (uint32_t i = 0; i < r->n_requests; i++)
        for (uint32_t s = 0; s < RUN_MAX_SAMPLES; s++) {
            const cn_usage *u = &r->samples[i][s].usage;
            sum.compressions += u->kv.compressions;
            sum.evicted_tokens += u->kv.evicted;
            sum.freed_bytes += u->kv.freed_bytes;
            sum.preemptions += u->preemptions;
            sum.recomputed_tokens += u->recomputed_tokens;
            sum.generation_tokens += u->completion_tokens;
            sum.selected_steps += u->kv.selected_steps;
            sum.selected_tokens += u->kv.selected_tokens;
            sum.candidate_tokens += u->kv.candidate_tokens;
            sum.exchanges += u->kv.exchanges;
            sum.fetched_entries += u->kv.fetched_entries;
            sum.missed_entries += u->kv.missed_entries;
        }
    assert_int_equal(sum.compressions, reported->compressions);
    assert_int_equal(sum.evicted_tokens, reported->evicted_tokens);
    assert_int_equal(sum.freed_bytes, reported->freed_bytes);
    assert_int_equal(sum.preemptions, reported->preemptions);
    assert_int_equal(sum.recomputed_tokens, reported->recomputed_tokens);
    assert_int_equal(sum.generation_tokens, reported->generation_tokens);
    assert_int_equal(sum.selected_steps, reported->selected_steps);
    assert_int_equal(sum.selected_tokens, reported->selected_tokens);
    assert_int_equal(sum.candidate_tokens, reported->candidate_tokens);
    assert_int_equal(sum.exchanges, reported->exchanges);
    assert_int_equal(sum.fetched_entries, reported->fetched_entries);
    assert_int_equal(sum.missed_entries, reported->missed_entries);
}

static void assert_error_has(const char *text)
{
    if (!strstr(cn_last_error(), text)) fail_msg("'%s' lacks '%s'", cn_last_error(), text);
}

void run_assert_refused(const run *r, const cn_request_params *p, const char *text)
{
    assert_int_equal(cn_engine_submit(r->engine, p, NULL, NULL, NULL), CN_ERR_ARG);
    assert_error_has(text);
}

void run_assert_invalid(run *r, const cn_request_params *p, const char *param, const char *text)
{
    const run_sample *s = r->samples[run_submit(r, p)];
    run_finish(r);
    assert_int_equal(s->finish, CN_FINISH_ERROR);
    if (!s->invalid || strcmp(s->param, param) != 0 || !strstr(s->error, text))
        fail_msg("invalid %d, param '%s', '%s'; expected '%s', '%s'", s->invalid, s->param,
                 s->error, param, text);
}

void run_assert_kv_refused(const run *r, const cn_kv_params *kv, const char *text)
{
    static const uint32_t prompt[] = {65, 66};
    cn_request_params p = {.tokens = prompt, .n_tokens = 2, .kv = *kv};
    cn_engine_default_sampling(r->engine, &p.sampling);
    p.sampling.max_tokens = 300;
    run_assert_refused(r, &p, text);
}

void run_assert_start_refused(const char *const *options, const char *text)
{
    cn_config *c = cn_config_create();
    assert_non_null(c);
    check(cn_config_set(c, "model", "examples/tiny-reasoner"));
    check(cn_config_set(c, "device", "cpu"));
    for (const char *const *o = options; *o; o += 2) check(cn_config_set(c, o[0], o[1]));
    cn_engine *e = NULL;
    assert_int_equal(cn_engine_create(&e, c), CN_ERR_ARG);
    assert_error_has(text);
    assert_null(e);
    cn_config_free(c);
}

uint32_t run_load_prompts(const char *task, const char **prompts, const char **answers, uint32_t n)
{
    char path[256], line[65536];
    snprintf(path, sizeof path, "examples/tiny-reasoner/prompts/%s.jsonl", task);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    uint32_t got = 0;
    while (got < n && fgets(line, sizeof line, f)) {
        json_t *row = json_loads(line, 0, NULL);
        assert_non_null(row);
        prompts[got] = strdup(json_string_value(json_object_get(row, "prompt")));
        if (answers) answers[got] = strdup(json_string_value(json_object_get(row, "answer")));
        got++;
        json_decref(row);
    }
    fclose(f);
    return got;
}
