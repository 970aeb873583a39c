/* sched_rig.c - see sched_rig.h. */
#include "tests/lib/sched_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

cn_sched_opts rig_options(void)
{
    return (cn_sched_opts){.block_tokens = B,
                           .n_blocks = 32,
                           .n_query_slots = 4,
                           .window_tokens = WINDOW,
                           .max_seqs = 8,
                           .max_batched_tokens = 64,
                           .max_model_len = 100,
                           .block_bytes = BLOCK_BYTES,
                           .prefix_caching = true,
                           .chunked_prefill = true,
                           .hybrid = true};
}

rig rig_make(cn_sched_opts o)
{
    rig r = {0};
    assert_int_equal(cn_scheduler_create(&r.s, &o), CN_OK);
    return r;
}

void rig_check(const rig *r)
{
    const char *broken = cn_scheduler_check(r->s);
    if (broken) fail_msg("%s", broken);
}

cn_stats rig_stats(const rig *r)
{
    cn_stats st;
    cn_scheduler_stats(r->s, &st);
    return st;
}

void rig_done(rig *r)
{
    rig_check(r);
    cn_scheduler_free(r->s);
}

cn_kv_params rig_full(void) { return (cn_kv_params){.policy = CN_KV_FULL}; }

cn_kv_params rig_zip(uint32_t budget)
{
    return (cn_kv_params){.policy = CN_KV_ZIP,
                          .budget_tokens = budget,
                          .window_tokens = WINDOW,
                          .alpha = 0.8f,
                          .redundancy_tau = 0.4f};
}

cn_kv_params rig_window(uint32_t budget)
{
    return (cn_kv_params){.policy = CN_KV_WINDOW, .budget_tokens = budget, .sink_tokens = 1};
}

cn_status rig_try_add(rig *r, uint32_t base, uint32_t n_prompt, uint32_t n_out, uint32_t n,
                      cn_kv_params kv, cn_seq **seqs)
{
    uint32_t prompt[128];
    for (uint32_t i = 0; i < n_prompt && i < 128; i++) prompt[i] = base + i;
    cn_group_params p = {.prompt = prompt,
                         .n_prompt = n_prompt,
                         .max_output = n_out,
                         .n = n,
                         .klass = CN_CLASS_BATCH,
                         .kv = kv};
    return cn_scheduler_add(r->s, &p, NULL, seqs);
}

cn_seq *rig_add(rig *r, uint32_t base, uint32_t n_prompt, uint32_t n_out, cn_kv_params kv)
{
    cn_seq *q = NULL;
    assert_int_equal(rig_try_add(r, base, n_prompt, n_out, 1, kv, &q), CN_OK);
    return q;
}

cn_seq *rig_add_of_class(rig *r, cn_class klass, uint32_t base, uint32_t n_prompt, uint32_t n_out,
                         cn_kv_params kv)
{
    uint32_t prompt[64];
    cn_seq *q = NULL;
    for (uint32_t i = 0; i < n_prompt; i++) prompt[i] = base + i;
    const cn_group_params p = {.prompt = prompt,
                               .n_prompt = n_prompt,
                               .max_output = n_out,
                               .n = 1,
                               .klass = klass,
                               .kv = kv};
    assert_int_equal(cn_scheduler_add(r->s, &p, NULL, &q), CN_OK);
    return q;
}

void rig_step(rig *r)
{
    cn_scheduler_begin(r->s, &r->begin);
    rig_check(r);
    for (uint32_t i = 0; i < r->begin.n_events && !r->hold_events; i++)
        cn_scheduler_event_done(r->s, r->begin.events[i]);
    cn_scheduler_schedule(r->s, &r->plan);
    rig_check(r);
    for (uint32_t i = 0; i < r->plan.n_rows && !r->lag; i++) {
        cn_seq *q = r->plan.rows[i].seq;
        if (!r->plan.rows[i].wants_sample) continue;
        cn_seq_append(q, 1000 + q->n_tokens);
        if (q->n_tokens == q->max_tokens) cn_scheduler_finish(r->s, q);
    }
    for (uint32_t i = 0; i < r->plan.n_forks && !r->lag; i++)
        cn_seq_append(r->plan.forks[i].seq, 2000 + i);
    rig_check(r);
}

const cn_plan_row *rig_row(const rig *r, const cn_seq *q)
{
    for (uint32_t i = 0; i < r->plan.n_rows; i++)
        if (r->plan.rows[i].seq == q) return &r->plan.rows[i];
    return NULL;
}

void rig_steps(rig *r, int n)
{
    for (int i = 0; i < n; i++) rig_step(r);
}
