/* test_kv_params.c - a member of a kv object that neither the policy nor the selector of a request
 * names in `params` has no effect on its answer. Reports print the named members alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/options/options.h"
#include "tests/lib/run_engine.h"

enum { MAX_TOKENS = 96, N_ARMS = CN_N_POLICIES + CN_N_SELECTORS - 1 };
static char prompt[4096];

static run *open_run(void)
{
    const char *const options[] = {"block-size",
                                   "64",
                                   "kv-policies",
                                   "*",
                                   "kv-selectors",
                                   "*",
                                   "max-num-seqs",
                                   "64",
                                   "kv-budget",
                                   "64",
                                   "select-tokens",
                                   "32",
                                   "select-tiles",
                                   "4",
                                   "select-dense-layers",
                                   "1",
                                   "enable-prefix-caching",
                                   "false",
                                   NULL};
    return run_new(options, NULL);
}

static uint32_t submit(run *r, const cn_kv_params *kv)
{
    cn_message m;
    cn_request_params p = run_params(r, prompt, &m, MAX_TOKENS);
    p.kv = *kv;
    p.sampling.ignore_eos = true;
    p.sampling.logprobs = 0;
    return run_submit(r, &p);
}

/* Gives the member of `o` another value, which every policy and selector accepts. */
static void change_member(const cn_option *o, cn_kv_params *kv)
{
    void *field = (char *)kv + (o->offset - offsetof(struct cn_config, kv));
    if (o->type == CN_OPTION_BOOL) {
        *(bool *)field = !*(bool *)field;
    } else if (o->type == CN_OPTION_F32) {
        *(float *)field = *(float *)field / 2 + 0.05f;
    } else if (o->type == CN_OPTION_U32) {
        *(uint32_t *)field = cn_max_u32(1, *(uint32_t *)field / 2);
    } else {
        assert_int_equal(o->type, CN_OPTION_ENUM);
        *(int *)field = *(int *)field == 0;
    }
}

/* Changes all members of kv that it does not read, and appends their names. */
static void change_unread(cn_kv_params *kv, cn_buf *names)
{
    const cn_kv_params before = *kv;
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (!o[i].json || strncmp(o[i].json, "kv.", 3) != 0) continue;
        if (cn_kv_reads(&before, o[i].json + 3)) continue;
        change_member(&o[i], kv);
        assert_int_equal(cn_buf_addf(names, " %s", o[i].json), CN_OK);
    }
}

/* Each policy, then each selector with the policy `full`. */
static void an_answer_depends_on_what_params_name(void **state)
{
    (void)state;
    run *r = open_run();
    cn_buf names[N_ARMS] = {{0}};
    for (uint32_t i = 0; i < N_ARMS; i++) {
        cn_kv_params kv;
        cn_engine_default_kv(r->engine, &kv);
        kv.policy = i < CN_N_POLICIES ? (cn_kv_policy)i : CN_KV_FULL;
        kv.select = i < CN_N_POLICIES ? CN_SELECT_NONE : (cn_kv_select)(i - CN_N_POLICIES + 1);
        submit(r, &kv);
        change_unread(&kv, &names[i]);
        submit(r, &kv);
    }
    run_finish(r);
    for (uint32_t i = 0; i < N_ARMS; i++) {
        const run_sample *as_is = &r->samples[2 * i][0], *changed = &r->samples[2 * i + 1][0];
        const cn_kv_params *kv = &as_is->usage.kv.params;
        assert_int_equal(as_is->n_tokens, MAX_TOKENS);
        assert_true((as_is->usage.kv.compressions > 1) ==
                    (cn_policy_of(kv->policy)->keep != CN_KEEP_ALL));
        assert_true((as_is->usage.kv.selected_steps > 0) == (kv->select != CN_SELECT_NONE));
        if (as_is->logprob_hash != changed->logprob_hash)
            fail_msg(
                "policy %s, selector %s: params does not name a member that the answer depends "
                "on, one of%s",
                cn_kv_policy_name(kv->policy), cn_kv_select_name(kv->select), names[i].data);
        cn_buf_free(&names[i]);
    }
    run_free(r);
}

static int setup(void **state)
{
    (void)state;
    static const char *parts[2];
    assert_int_equal(run_load_prompts("story", parts, NULL, 2), 2);
    snprintf(prompt, sizeof prompt, "%s %s", parts[0], parts[1]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_depends_on_what_params_name),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
