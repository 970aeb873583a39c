/* test_lengths.c - the length of an output: from the body of a request, and in the engine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/api/api_request.h"
#include "tests/lib/run_engine.h"

/* A length that nobody sent is a default, which is cut to the room in the context. */
static void only_a_sent_length_is_not_cut(void **state)
{
    (void)state;
    static const struct {
        cn_api_endpoint endpoint;
        const char *length;
        uint32_t max_tokens;
        bool is_default, no_output;
    } cases[] = {
        {CN_API_CHAT, "\"max_tokens\": null", 0, true, false},
        {CN_API_CHAT, "\"max_tokens\": 7", 7, false, false},
        {CN_API_CHAT, "\"max_tokens\": 0", 0, false, true},
        {CN_API_CHAT, "\"max_tokens\": 0, \"max_completion_tokens\": 3", 3, false, false},
        {CN_API_CHAT, "\"max_completion_tokens\": 0, \"max_tokens\": 3", 3, false, true},
        {CN_API_COMPLETION, "\"min_tokens\": 3", CN_API_DEFAULT_COMPLETION_TOKENS, true, false},
        {CN_API_COMPLETION, "\"max_tokens\": 0", 0, false, true},
        {CN_API_COMPLETION, "\"max_tokens\": 20", 20, false, false},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const size_t k = i / 2;
        const bool chat = cases[k].endpoint == CN_API_CHAT, cap = i % 2;
        char text[160];
        snprintf(text, sizeof text, "{%s, %s}",
                 chat ? "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]"
                      : "\"prompt\": \"a\"", cases[k].length);
        cn_api_request r;
        const cn_api_defaults defaults = {.sampling = {.n = 1}, .cap_max_tokens = cap};
        json_t *body = json_loads(text, 0, NULL);
        assert_int_equal(cn_api_request_parse(&r, cases[k].endpoint, body, &defaults), CN_OK);
        json_decref(body);
        assert_int_equal(r.params.sampling.max_tokens, cases[k].max_tokens);
        assert_int_equal(r.params.cut_max_tokens, cases[k].is_default || cap);
        assert_int_equal(r.params.no_output, cases[k].no_output);
        cn_api_request_free(&r);
    }
}

enum { REFUSED = -1 };

/* p: the prompt and what is special. expected: tokens of output, or REFUSED. */
static void check_length(run *r, cn_request_params p, uint32_t max_tokens, uint32_t min_tokens,
                         int expected)
{
    cn_engine_default_sampling(r->engine, &p.sampling);
    cn_engine_default_kv(r->engine, &p.kv);
    p.sampling.ignore_eos = true;
    p.sampling.max_tokens = max_tokens;
    p.sampling.min_tokens = min_tokens;
    if (expected == REFUSED) {
        assert_int_equal(cn_engine_submit(r->engine, &p, NULL, NULL, NULL), CN_ERR_ARG);
        return;
    }
    const run_sample *s = r->samples[run_submit(r, &p)];
    run_finish(r);
    assert_int_equal(s->n_tokens, expected);
    assert_int_equal(s->finish, CN_FINISH_LENGTH);
}

/* A length is cut if the request allows it. Without output the prompt may fill the context. */
static void lengths_fit_the_context(void **state)
{
    (void)state;
    enum { CONTEXT = 32 };
    static const struct {
        uint32_t n_prompt, max_tokens, min_tokens;
        bool cut, no_output;
        int expected;
    } cases[] = {
        {20, 12, 0, false, false, 12},     {20, 13, 0, false, false, REFUSED},
        {20, 13, 0, true, false, 12},      {20, 1000, 12, true, false, 12},
        {20, 1000, 13, true, false, REFUSED}, {20, 0, 13, false, false, REFUSED},
        {31, 16, 0, true, false, 1},       {32, 16, 0, true, false, REFUSED},
        {32, 0, 0, false, true, 0},        {32, 0, 1, false, true, REFUSED},
        {33, 0, 0, true, true, REFUSED},   {20, 16, 0, false, true, 0},
    };
    static const uint32_t prompt[CONTEXT + 1] = {0};
    run r;
    run_open(&r, (const char *[]){"max-model-len", "32", "block-size", "16",
                                  "kv-cache-memory-bytes", "16M", NULL});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_length(&r,
                     (cn_request_params){.tokens = prompt,
                                         .n_tokens = cases[i].n_prompt,
                                         .cut_max_tokens = cases[i].cut,
                                         .no_output = cases[i].no_output},
                     cases[i].max_tokens, cases[i].min_tokens, cases[i].expected);
    run_close(&r);
}

/* A length that nobody sent, or that may be cut, is cut to the pool; not that of a batch. */
static void lengths_fit_the_pool(void **state)
{
    (void)state;
    enum { ASKED = CN_CLASS_INTERACTIVE, BATCH = CN_CLASS_BATCH };
    static const struct {
        uint32_t n_prompt, max_tokens, min_tokens;
        bool cut;
        int klass;
        int expected; /* tokens of output */
    } cases[] = {
        {20, 0, 0, true, ASKED, 29},  {20, 100, 0, true, ASKED, 29},
        {20, 0, 29, true, ASKED, 29}, {20, 0, 30, true, ASKED, REFUSED},
        {48, 0, 0, true, ASKED, 1},   {49, 0, 0, true, ASKED, REFUSED},
        {20, 12, 0, true, ASKED, 12}, {20, 30, 0, false, ASKED, REFUSED},
        {20, 0, 0, true, BATCH, REFUSED},   {20, 29, 0, true, BATCH, 29},
    };
    static const uint32_t prompt[64] = {0};
    run r;
    run_open(&r, (const char *[]){"max-model-len", "128", "block-size", "16",
                                  "num-gpu-blocks-override", "3", NULL});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_length(&r,
                     (cn_request_params){.tokens = prompt,
                                         .n_tokens = cases[i].n_prompt,
                                         .klass = (cn_class)cases[i].klass,
                                         .cut_max_tokens = cases[i].cut},
                     cases[i].max_tokens, cases[i].min_tokens, cases[i].expected);
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_sent_length_is_not_cut),
        cmocka_unit_test(lengths_fit_the_context),
        cmocka_unit_test(lengths_fit_the_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
