/* sched_rig.h - drives a scheduler step by step, for tests of single decisions. Checks every
 * invariant before and after every step; a violation fails the test. */
#pragma once

#include "scheduler/scheduler.h"

enum { B = 4, WINDOW = 2, BLOCK_BYTES = 1000 }; /* of rig_options */

typedef struct rig {
    cn_scheduler *s;
    cn_begin_plan begin;
    cn_plan plan;
    bool hold_events; /* events do not end: asynchronous and slow */
    bool lag;         /* the caller appends the tokens */
} rig;

/* 32 blocks of 4 tokens, 4 query slots, every feature on. */
cn_sched_opts rig_options(void);

rig rig_make(cn_sched_opts o);
void rig_check(const rig *r);
cn_stats rig_stats(const rig *r);
void rig_done(rig *r); /* checks and frees */

cn_kv_params rig_full(void);
cn_kv_params rig_zip(uint32_t budget);
cn_kv_params rig_window(uint32_t budget);

/* Adds a request of n samples with the prompt tokens base, base+1, ... */
cn_status rig_try_add(rig *r, uint32_t base, uint32_t n_prompt, uint32_t n_out, uint32_t n,
                      cn_kv_params kv, cn_seq **seqs);
cn_seq *rig_add(rig *r, uint32_t base, uint32_t n_prompt, uint32_t n_out, cn_kv_params kv);
cn_seq *rig_add_of_class(rig *r, cn_class klass, uint32_t base, uint32_t n_prompt, uint32_t n_out,
                         cn_kv_params kv);

/* Runs one step. Without lag, appends sampled tokens at once and finishes ended sequences. */
void rig_step(rig *r);
void rig_steps(rig *r, int n);

/* Returns the row of a sequence in the last plan, or NULL. */
const cn_plan_row *rig_row(const rig *r, const cn_seq *q);
