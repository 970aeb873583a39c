/* test_kv_params.c - a member of a kv object that neither the policy nor the selector of a request
 * names in `params` has no effect on its answer. Reports print the named members alone. What a
 * request leaves open has the default of its rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/api/api_request.h"
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

/* The options that were given hold with any rule, and so do the members of the request. */
static void a_request_has_the_defaults_of_its_rule(void **state)
{
    (void)state;
    static const struct {
        const char *kv;
        uint32_t window;
        float alpha;
    } cases[] = {
        {"{\"policy\": \"zip\"}", 16, 0.5f},
        {"{\"policy\": \"zip\", \"rule\": \"peak\"}", 48, 0.5f}, /* all that the engine keeps */
        {"{\"rule\": \"peak\", \"policy\": \"zip\", \"budget\": 128}", 32, 0.5f},
        {"{\"window\": 20, \"policy\": \"zip\", \"rule\": \"peak\"}", 20, 0.5f},
        {"{\"policy\": \"zip\", \"rule\": \"peak\", \"alpha\": 0.7, \"window\": null}", 48, 0.7f},
        {"{\"policy\": \"zip\", \"rule\": \"follow\"}", 16, 0.5f},
    };
    cn_config *c = cn_config_create();
    assert_non_null(c);
    assert_int_equal(cn_config_set(c, "kv-alpha", "0.5"), CN_OK);
    assert_int_equal(cn_config_set(c, "kv-observe", "48"), CN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_api_defaults of_engine = {.kv = c->kv, .config = c};
        char text[512];
        cn_api_request r;
        snprintf(text, sizeof text, "{\"prompt\": \"a\", \"kv\": %s}", cases[i].kv);
        json_t *body = json_loads(text, 0, NULL);
        assert_int_equal(cn_api_request_parse(&r, CN_API_COMPLETION, body, &of_engine), CN_OK);
        const cn_kv_params *kv = &r.params.kv;
        assert_int_equal(kv->window_tokens, cases[i].window);
        assert_true(kv->alpha == cases[i].alpha);
        assert_int_equal(kv->pooling,
                         kv->rule == CN_RULE_PEAK ? CN_POOLING_NEVER : CN_POOLING_FIRST);
        assert_true(kv->recent == (kv->rule == CN_RULE_FOLLOW ? 0.5f : 0.125f));
        assert_int_equal(kv->observe_tokens, 48);
        cn_api_request_free(&r);
        json_decref(body);
    }
    cn_config_free(c);
}

/* A warning names the rule that does not read a member. */
static void a_member_that_the_rule_does_not_read_brings_a_warning(void **state)
{
    (void)state;
    const char *const members[] = {"observe", "recent", "sinks"};
    cn_api_unknown unknown;
    cn_api_unknown_init(&unknown, false);
    for (uint32_t i = 0; i < 3 * CN_N_RULES; i++) {
        const char *member = members[i / CN_N_RULES];
        const char *rule = cn_rule_of((cn_kv_rule)(i % CN_N_RULES))->name;
        const bool own_queries = i % CN_N_RULES == CN_RULE_FOLLOW; /* those of its window */
        const bool is_read =
            i % CN_N_RULES != CN_RULE_ZIPAGE && !(own_queries && strcmp(member, "observe") == 0);
        const cn_api_defaults accepting = {.kv = {.budget_tokens = 64}, .unknown = &unknown};
        char text[256];
        cn_api_request r;
        json_t *body = json_pack("{s:s, s:{s:s, s:s, s:i}}", "prompt", "a", "kv", "policy", "zip",
                                 "rule", rule, member, 8);
        assert_int_equal(cn_api_request_parse(&r, CN_API_COMPLETION, body, &accepting), CN_OK);
        snprintf(text, sizeof text,
                 "kv.%s: no effect with policy zip, rule %s, select none and "
                 "home device, ignored",
                 member, rule);
        assert_int_equal(json_array_size(r.warnings), !is_read);
        if (!is_read) assert_string_equal(json_string_value(json_array_get(r.warnings, 0)), text);
        cn_api_request_free(&r);
        json_decref(body);
    }
    cn_api_unknown_destroy(&unknown);
}

/* So does the member that leaves another one without effect. */
static void a_member_that_another_silences_brings_a_warning(void **state)
{
    (void)state;
    static const struct {
        const char *kv, *warning;
    } cases[] = {
        {"{\"policy\": \"zip\", \"redundancy\": \"none\", \"lambda\": 0.5}",
         "kv.lambda: no effect with redundancy none, ignored"},
        {"{\"policy\": \"zip\", \"redundancy\": \"flash\", \"lambda\": 0.5}", NULL},
        {"{\"policy\": \"zip\", \"combine\": \"subtract\", \"redundancy\": \"none\"}",
         "kv.combine: no effect with redundancy none, ignored"},
        {"{\"policy\": \"zip\", \"global\": false, \"alpha\": 0.5}",
         "kv.alpha: no effect with global false, ignored"},
        {"{\"policy\": \"zip\", \"rule\": \"peak\", \"global\": false, \"alpha\": 0.5}", NULL},
        {"{\"policy\": \"zip\", \"rule\": \"follow\", \"lambda\": 0.5}",
         "kv.lambda: no effect with policy zip, rule follow, select none and home device, ignored"},
    };
    cn_api_unknown unknown;
    cn_api_unknown_init(&unknown, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const cn_api_defaults accepting = {.kv = {.budget_tokens = 64, .global_score = true},
                                           .unknown = &unknown};
        char text[256];
        cn_api_request r;
        snprintf(text, sizeof text, "{\"prompt\": \"a\", \"kv\": %s}", cases[i].kv);
        json_t *body = json_loads(text, 0, NULL);
        assert_int_equal(cn_api_request_parse(&r, CN_API_COMPLETION, body, &accepting), CN_OK);
        assert_int_equal(json_array_size(r.warnings), cases[i].warning != NULL);
        if (cases[i].warning)
            assert_string_equal(json_string_value(json_array_get(r.warnings, 0)), cases[i].warning);
        cn_api_request_free(&r);
        json_decref(body);
    }
    cn_api_unknown_destroy(&unknown);
}

/* An answer does not depend on what the member silences. */
static void what_is_silenced_has_no_effect(void **state)
{
    (void)state;
    run *r = open_run();
    for (uint32_t i = 0; i < 2 * CN_N_RULES; i++) {
        cn_kv_params kv;
        cn_buf names = {0};
        cn_engine_default_kv(r->engine, &kv);
        kv.policy = CN_KV_ZIP;
        kv.rule = (cn_kv_rule)(i / 2);
        if (i % 2) kv.global_score = false;
        else kv.redundancy = CN_REDUNDANCY_NONE;
        submit(r, &kv);
        change_unread(&kv, &names);
        assert_true(i == 2 * CN_RULE_PEAK + 1 ||
                    strstr(names.data, i % 2 ? "kv.alpha" : "kv.lambda"));
        submit(r, &kv);
        cn_buf_free(&names);
    }
    run_finish(r);
    for (uint32_t i = 0; i < 4 * CN_N_RULES; i += 2)
        assert_int_equal(r->samples[i][0].logprob_hash, r->samples[i + 1][0].logprob_hash);
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
        cmocka_unit_test(a_request_has_the_defaults_of_its_rule),
        cmocka_unit_test(a_member_that_the_rule_does_not_read_brings_a_warning),
        cmocka_unit_test(a_member_that_another_silences_brings_a_warning),
        cmocka_unit_test(what_is_silenced_has_no_effect),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
