/* run_engine.c - see run_engine.h. */
#include "tests/lib/run_engine.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void check(cn_status status)
{
    if (status != CN_OK) fail_msg("%s: %s", cn_status_name(status), cn_last_error());
}

void run_open(run *r, const char *const *options)
{
    memset(r, 0, sizeof *r);
    cn_config *c = cn_config_create();
    assert_non_null(c);
    check(cn_config_set(c, "model", "examples/tiny-reasoner"));
    check(cn_config_set(c, "check-invariants", "true"));
    for (; options && options[0]; options += 2) check(cn_config_set(c, options[0], options[1]));
    check(cn_engine_create(&r->engine, c));
    cn_config_free(c);
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
