/* test_cpu_sample.c - the random generator compared with known answers, and the sample op with
 * torch (tests/golden/sampling) and with itself: order, batch, statistics, ties, hostile logits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "engine/base/base.h"
#include "engine/cpu/cpu_sample.h"
#include "engine/sample_math.h"
#include "tests/lib/backend_rig.h"

enum { MAX_VOCAB = 4096, MAX_ROWS = 8, MAX_EDITS = 16 };

static cn_sample_row plain_row(void)
{
    return (cn_sample_row){
        .temperature = 1.0f,
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .count_slot = -1,
        .force_token = -1,
        .n_logprobs = -1,
    };
}

/* The arguments of the op and everything they point to. */
typedef struct bench {
    cn_sample_args args;
    cn_sample_row rows[MAX_ROWS];
    float logits[MAX_ROWS * MAX_VOCAB];
    uint16_t counts[MAX_VOCAB];
    uint32_t bans[MAX_EDITS];
    cn_logit_bias biases[MAX_EDITS];
    uint32_t tokens[MAX_ROWS];
    float token_logprobs[MAX_ROWS];
    cn_logprob top[MAX_ROWS * CN_MAX_LOGPROBS];
} bench;

static cn_backend *cpu;

static int open_cpu(void **state)
{
    (void)state;
    cpu = backend_rig_open(2);
    return 0;
}

static int close_cpu(void **state)
{
    (void)state;
    backend_rig_close(cpu);
    return 0;
}

static bench *bench_create(uint32_t n_rows, uint32_t vocab)
{
    bench *b = cn_calloc(1, sizeof *b);
    assert_true(n_rows <= MAX_ROWS && vocab <= MAX_VOCAB);
    size_t bytes = cpu->sample_scratch_bytes(cpu, n_rows, vocab);
    b->args = (cn_sample_args){
        .logits = b->logits,
        .n_rows = n_rows,
        .vocab = vocab,
        .rows = b->rows,
        .bans = b->bans,
        .biases = b->biases,
        .counts = b->counts,
        .tokens = b->tokens,
        .token_logprobs = b->token_logprobs,
        .top = b->top,
        .scratch = cn_calloc_aligned(bytes, 1),
        .scratch_bytes = bytes,
    };
    for (uint32_t i = 0; i < n_rows; i++) b->rows[i] = plain_row();
    return b;
}

static void bench_free(bench *b)
{
    cn_free(b->args.scratch);
    cn_free(b);
}

static cn_status sample(bench *b) { return cpu->sample(backend_rig_stream(cpu), &b->args); }

static uint32_t sample_one(bench *b)
{
    assert_int_equal(sample(b), CN_OK);
    return b->tokens[0];
}

static float noise(uint64_t seed, uint32_t i)
{
    return (float)(cn_philox_u64(seed, 0, i) >> 40) * 0x1p-22f - 2.0f;
}

/* ---- generator and weights ---- */

static void philox_gives_the_known_answers(void **state)
{
    (void)state;
    /* The known-answer vectors of Random123: philox4x32 with 10 rounds. */
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof *kat; i++) {
        cn_philox4 counter;
        memcpy(counter.v, kat[i].counter, sizeof counter.v);
        cn_philox4 got = cn_philox4x32_10(counter, kat[i].key[0], kat[i].key[1]);
        assert_memory_equal(got.v, kat[i].want, sizeof got.v);
    }
}

static void philox_depends_on_each_argument(void **state)
{
    (void)state;
    uint64_t base = cn_philox_u64(1, 2, 3);
    assert_true(base == cn_philox_u64(1, 2, 3));
    assert_true(base != cn_philox_u64(1 + (1ull << 32), 2, 3));
    assert_true(base != cn_philox_u64(2, 2, 3));
    assert_true(base != cn_philox_u64(1, 3, 3));
    assert_true(base != cn_philox_u64(1, 2, 4));
    assert_true(cn_philox_u64(1, 2, 3) != cn_philox_u64(1, 3, 2));
}

static void weights_follow_exp(void **state)
{
    (void)state;
    assert_true(cn_sample_weight(0.0f) == 1ull << CN_WEIGHT_BITS);
    assert_true(cn_sample_weight(-INFINITY) == 0);
    assert_true(cn_sample_weight(NAN) == 0);
    assert_true(cn_sample_weight(-1e30f) == 0);
    for (float x = 0.0f; x > -27.0f; x -= 0.00137f) {
        double want = exp((double)x) * 0x1p40, got = (double)cn_sample_weight(x);
        assert_true(fabs(got - want) <= 3e-7 * want + 1.0);
    }
}

static void keys_keep_the_order_of_floats(void **state)
{
    (void)state;
    static const float rising[] = {-INFINITY, -3e38f, -1.0f, -1e-45f, 0.0f, 1e-45f, 1.0f, INFINITY};
    for (size_t i = 1; i < sizeof rising / sizeof *rising; i++)
        assert_true(cn_sample_key(rising[i - 1]) < cn_sample_key(rising[i]));
    assert_true(cn_sample_key(-0.0f) == cn_sample_key(0.0f));
}

/* ---- golden ---- */

static double number(const json_t *o, const char *name)
{
    return json_number_value(json_object_get(o, name));
}

static uint32_t read_ids(const json_t *list, uint32_t *out)
{
    size_t n = json_array_size(list);
    assert_true(n <= MAX_EDITS);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)n;
}

static void load_case(bench *b, const json_t *c)
{
    const json_t *logits = json_object_get(c, "logits"), *biases = json_object_get(c, "biases");
    for (uint32_t i = 0; i < b->args.vocab; i++)
        b->logits[i] = (float)json_number_value(json_array_get(logits, i));
    cn_sample_row *r = &b->rows[0];
    r->temperature = (float)number(c, "temperature");
    r->top_k = (int32_t)number(c, "top_k");
    r->top_p = (float)number(c, "top_p");
    r->min_p = (float)number(c, "min_p");
    r->presence_penalty = (float)number(c, "presence_penalty");
    r->frequency_penalty = (float)number(c, "frequency_penalty");
    r->repetition_penalty = (float)number(c, "repetition_penalty");
    r->count_slot = 0;
    r->n_logprobs = CN_MAX_LOGPROBS;
    r->n_ban = read_ids(json_object_get(c, "bans"), b->bans);
    r->n_bias = (uint32_t)json_array_size(biases);
    for (uint32_t i = 0; i < r->n_bias; i++) {
        const json_t *pair = json_array_get(biases, i);
        b->biases[i].token = (uint32_t)json_integer_value(json_array_get(pair, 0));
        b->biases[i].bias = (float)json_number_value(json_array_get(pair, 1));
    }
    uint32_t prompt[MAX_EDITS], output[MAX_EDITS];
    cn_count_reset_args reset = {.counts = b->counts, .vocab = b->args.vocab};
    reset.n_prompt = read_ids(json_object_get(c, "prompt"), prompt);
    reset.n_output = read_ids(json_object_get(c, "output"), output);
    reset.prompt = prompt;
    reset.output = output;
    assert_int_equal(cn_cpu_count_reset(NULL, &reset), CN_OK);
}

static void check_distribution(const bench *b, const json_t *c, size_t index)
{
    const json_t *probs = json_object_get(c, "probs");
    cn_cpu_distribution d = cn_cpu_sample_distribution(&b->args, 0, b->args.scratch);
    double total = 0.0;
    for (uint32_t i = 0; i < d.n; i++) total += (double)d.weights[i];
    uint32_t at = 0;
    for (uint32_t id = 0; id < b->args.vocab; id++) {
        bool kept = at < d.n && d.ids[at] == id;
        double got = kept ? (double)d.weights[at++] / total : 0.0;
        double want = json_number_value(json_array_get(probs, id));
        bool agree = kept ? want > 0.0 : want < 1e-11;
        if (!agree || fabs(got - want) > 1e-6)
            fail_msg("case %zu token %u: expected %.9g, got %.9g", index, id, want, got);
    }
    assert_int_equal(at, d.n); /* ids ascend and are in the vocabulary */
}

static void check_logprobs(bench *b, const json_t *c)
{
    const json_t *logprobs = json_object_get(c, "logprobs");
    uint32_t token = sample_one(b);
    double want = json_number_value(json_array_get(logprobs, token));
    assert_true(fabs((double)b->token_logprobs[0] - want) < 1e-6 * (1.0 + fabs(want)));
    uint32_t n = cn_min_u32(b->args.vocab, CN_MAX_LOGPROBS);
    for (uint32_t i = 0; i < n; i++) {
        const cn_logprob *t = &b->top[i];
        want = json_number_value(json_array_get(logprobs, t->token));
        assert_true(fabs((double)t->logprob - want) < 1e-6 * (1.0 + fabs(want)));
        if (i == 0) continue;
        float before = b->logits[t[-1].token], now = b->logits[t->token];
        assert_true(before > now || (before == now && t[-1].token < t->token));
    }
    for (uint32_t id = 0; id < b->args.vocab; id++) { /* nothing better was left out */
        bool listed = false;
        for (uint32_t i = 0; i < n; i++) listed = listed || b->top[i].token == id;
        assert_true(listed || b->logits[id] <= b->logits[b->top[n - 1].token]);
    }
}

static void rows_match_the_reference(void **state)
{
    (void)state;
    json_error_t error;
    json_t *cases = json_load_file("tests/golden/sampling/cases.json", 0, &error);
    if (!cases) fail_msg("cases.json line %d: %s", error.line, error.text);
    assert_true(json_array_size(cases) >= 90);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        bench *b = bench_create(1, (uint32_t)json_array_size(json_object_get(c, "logits")));
        load_case(b, c);
        check_distribution(b, c, i);
        check_logprobs(b, c);
        bench_free(b);
    }
    json_decref(cases);
}

/* ---- the draw ---- */

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    enum { VOCAB = 24, DRAWS = 100000 };
    bench *b = bench_create(1, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++) b->logits[i] = noise(5, i);
    b->rows[0].seed = 99;
    cn_cpu_distribution d = cn_cpu_sample_distribution(&b->args, 0, b->args.scratch);
    assert_int_equal(d.n, VOCAB);
    double total = 0.0, expected[VOCAB];
    for (uint32_t i = 0; i < VOCAB; i++) total += (double)d.weights[i];
    for (uint32_t i = 0; i < VOCAB; i++) expected[i] = (double)d.weights[i] / total * DRAWS;
    uint32_t seen[VOCAB] = {0};
    for (uint32_t t = 0; t < DRAWS; t++) {
        b->rows[0].position = t;
        seen[sample_one(b)]++;
    }
    double chi2 = 0.0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        assert_true(expected[i] > 20.0);
        chi2 += (seen[i] - expected[i]) * (seen[i] - expected[i]) / expected[i];
    }
    assert_true(chi2 < 64.0); /* 23 degrees of freedom: p = 1e-5 */
    assert_true(chi2 > 5.0);  /* a smaller value would not be random: p = 1e-5 */
    bench_free(b);
}

/* Repeats the draw from its definition, with the cumulative sum in another type. */
static void draw_is_the_inverse_of_the_cumulative_sum(void **state)
{
    (void)state;
    enum { VOCAB = 300 };
    bench *b = bench_create(1, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++) b->logits[i] = noise(6, i);
    for (uint32_t t = 0; t < 200; t++) {
        b->rows[0].seed = 7;
        b->rows[0].sample = t % 3;
        b->rows[0].position = t;
        uint32_t token = sample_one(b);
        long double total = 0.0L, below = 0.0L;
        cn_cpu_distribution d = cn_cpu_sample_distribution(&b->args, 0, b->args.scratch);
        for (uint32_t i = 0; i < d.n; i++) {
            total += (long double)d.weights[i];
            if (d.ids[i] < token) below += (long double)d.weights[i];
        }
        long double u = (long double)cn_philox_u64(7, t % 3, t) * 0x1p-64L * total;
        assert_true(below <= u);
        assert_true(u < below + (long double)d.weights[token]);
    }
    bench_free(b);
}

static void a_row_does_not_depend_on_the_batch(void **state)
{
    (void)state;
    enum { VOCAB = 500 };
    bench *batch = bench_create(MAX_ROWS, VOCAB), *alone = bench_create(1, VOCAB);
    for (uint32_t i = 0; i < MAX_ROWS * VOCAB; i++) batch->logits[i] = noise(8, i);
    for (uint32_t r = 0; r < MAX_ROWS; r++) {
        batch->rows[r].seed = r;
        batch->rows[r].top_k = r % 2 ? 40 : 0;
        batch->rows[r].top_p = r % 3 ? 0.9f : 1.0f;
    }
    assert_int_equal(sample(batch), CN_OK);
    for (uint32_t r = 0; r < MAX_ROWS; r++) {
        memcpy(alone->logits, batch->logits + r * VOCAB, VOCAB * sizeof(float));
        alone->rows[0] = batch->rows[r];
        assert_int_equal(sample_one(alone), batch->tokens[r]);
    }
    bench_free(batch);
    bench_free(alone);
}

/* ---- edges ---- */

static uint32_t kept(const bench *b)
{
    return cn_cpu_sample_distribution(&b->args, 0, b->args.scratch).n;
}

static void ties_at_a_threshold_are_all_kept(void **state)
{
    (void)state;
    bench *b = bench_create(1, 6);
    static const float logits[] = {1.0f, 3.0f, 1.0f, -0.0f, 0.0f, 1.0f};
    memcpy(b->logits, logits, sizeof logits);
    b->rows[0].top_k = 2;
    assert_int_equal(kept(b), 4);
    b->rows[0].top_k = 5;
    assert_int_equal(kept(b), 6); /* 0 and -0 are the same value */
    b->rows[0].top_k = 0;
    b->rows[0].top_p = 0.72f; /* 3.0 has the weight 0.650, each 1.0 has 0.088 */
    assert_int_equal(kept(b), 4);
    b->rows[0].top_p = 1e-30f;
    assert_int_equal(kept(b), 1);
    b->rows[0].top_p = 1.0f;
    b->rows[0].min_p = 1.0f;
    assert_int_equal(kept(b), 1);
    b->logits[5] = 3.0f;
    assert_int_equal(kept(b), 2);
    b->rows[0].temperature = 0.0f;
    assert_int_equal(sample_one(b), 1); /* of a tie, the lower id */
    bench_free(b);
}

static void hostile_logits_give_a_token_or_none(void **state)
{
    (void)state;
    bench *b = bench_create(1, 4);
    b->rows[0].n_logprobs = 4;
    for (int greedy = 0; greedy < 2; greedy++) {
        b->rows[0].temperature = greedy ? 0.0f : 0.01f;
        memcpy(b->logits, (float[]){NAN, -INFINITY, 2.0f, NAN}, 4 * sizeof(float));
        assert_int_equal(sample_one(b), 2);
        assert_true(b->token_logprobs[0] == 0.0f);
        assert_int_equal(b->top[0].token, 2);
        memcpy(b->logits, (float[]){0.0f, 3e38f, 2.0f, -3e38f}, 4 * sizeof(float));
        assert_int_equal(sample_one(b), 1);
        memcpy(b->logits, (float[]){0.0f, 3e38f, INFINITY, -3e38f}, 4 * sizeof(float));
        assert_int_equal(sample_one(b), 2);
        memcpy(b->logits, (float[]){NAN, NAN, NAN, NAN}, 4 * sizeof(float));
        assert_int_equal(sample_one(b), CN_NO_TOKEN);
        assert_true(b->token_logprobs[0] == -INFINITY);
        for (int i = 0; i < 4; i++) b->logits[i] = -INFINITY;
        assert_int_equal(sample_one(b), CN_NO_TOKEN);
    }
    bench_free(b);
}

/* As vLLM counts: equal logits have the rank of the last of them. */
static void forced_token_has_a_rank(void **state)
{
    (void)state;
    static const uint32_t want[] = {4, 1, 3, 3, 5};
    uint32_t rank;
    bench *b = bench_create(1, 5);
    b->args.ranks = &rank;
    b->rows[0].n_logprobs = 0;
    for (int32_t i = 0; i < 5; i++) {
        memcpy(b->logits, (float[]){-1.0f, 3.0f, 2.0f, 2.0f, NAN}, 5 * sizeof(float));
        b->rows[0].force_token = i;
        assert_int_equal(sample_one(b), i);
        assert_int_equal(rank, want[i]);
    }
    bench_free(b);
}

static void forced_token_overrides_bans_and_is_counted(void **state)
{
    (void)state;
    bench *b = bench_create(1, 5);
    b->rows[0].force_token = 3;
    b->rows[0].n_ban = 1;
    b->bans[0] = 3;
    b->rows[0].count_slot = 0;
    b->rows[0].n_logprobs = 0;
    assert_int_equal(sample_one(b), 3);
    assert_int_equal(b->counts[3], 1);
    assert_true(fabsf(b->token_logprobs[0] - logf(0.2f)) < 1e-6f);
    bench_free(b);
}

/* The previous token decides: not after the token itself, or only after another one. */
static void a_token_is_forced_by_the_one_before_it(void **state)
{
    (void)state;
    static const struct {
        uint32_t prev, force_after;
        bool forced;
    } cases[] = {{3, 0, false}, {2, 0, true}, {2, 1 + 2, true}, {1, 1 + 2, false}};
    bench *b = bench_create(1, 5);
    b->rows[0].temperature = 0;
    b->rows[0].force_token = 3;
    b->logits[4] = 9;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t prev[] = {0, cases[i].prev};
        b->args.prev_tokens = prev;
        b->rows[0].prev_row = 1;
        b->rows[0].force_after = cases[i].force_after;
        assert_int_equal(sample_one(b), cases[i].forced ? 3 : 4);
    }
    b->rows[0].prev_row = -1;
    b->rows[0].force_after = 0;
    assert_int_equal(sample_one(b), 3);
    bench_free(b);
}

static void mask_bans_the_tokens_without_a_bit(void **state)
{
    (void)state;
    enum { VOCAB = 70, WORDS = 3 };
    bench *b = bench_create(1, VOCAB);
    uint32_t masks[2 * WORDS] = {[WORDS] = 1u << 7, [WORDS + 1] = 1u << 31, [WORDS + 2] = 1u << 5};
    b->args.masks = masks;
    b->rows[0].mask = 2;
    b->logits[63] = 5.0f;
    b->logits[8] = 50.0f;
    b->rows[0].temperature = 0.0f;
    assert_int_equal(sample_one(b), 63);
    b->rows[0].temperature = 2.0f;
    for (uint32_t i = 0; i < 200; i++) {
        b->rows[0].position = i;
        const uint32_t token = sample_one(b);
        assert_true(token == 7 || token == 63 || token == 69);
    }
    b->rows[0].force_token = 8;
    assert_int_equal(sample_one(b), 8);
    bench_free(b);
}

static void counts_saturate_and_keep_the_prompt_mark(void **state)
{
    (void)state;
    bench *b = bench_create(1, 4);
    static const uint32_t prompt[] = {1, 1, 2}, output[] = {2, 3, 3};
    cn_count_reset_args reset = {b->counts, 4, 0, prompt, output, 3, 3};
    b->counts[0] = 77;
    assert_int_equal(cn_cpu_count_reset(NULL, &reset), CN_OK);
    assert_memory_equal(b->counts, ((uint16_t[]){0, 0x8000, 0x8001, 2}), 8);
    b->counts[2] = 0xffff;
    b->rows[0].force_token = 2;
    b->rows[0].count_slot = 0;
    sample_one(b);
    assert_int_equal(b->counts[2], 0xffff);
    reset.vocab = 3;
    assert_int_equal(cn_cpu_count_reset(NULL, &reset), CN_ERR_SHAPE);
    bench_free(b);
}

static void top_k_of_a_large_vocabulary_equals_a_sort(void **state)
{
    (void)state;
    bench *b = bench_create(1, MAX_VOCAB);
    for (uint32_t i = 0; i < MAX_VOCAB; i++) b->logits[i] = noise(11, i);
    static const int32_t ks[] = {1, 2, 50, 999, MAX_VOCAB - 1, MAX_VOCAB};
    for (size_t j = 0; j < sizeof ks / sizeof *ks; j++) {
        b->rows[0].top_k = ks[j];
        cn_cpu_distribution d = cn_cpu_sample_distribution(&b->args, 0, b->args.scratch);
        for (uint32_t i = 0; i < d.n; i++) { /* finds the rank of each kept logit by counting */
            int32_t better = 0;
            for (uint32_t k = 0; k < MAX_VOCAB; k++)
                better += b->logits[k] > b->logits[d.ids[i]];
            assert_true(better < ks[j]);
        }
        assert_true(d.n >= (uint32_t)ks[j]);
    }
    bench_free(b);
}

static void nothing_is_allocated_and_short_scratch_is_refused(void **state)
{
    (void)state;
    bench *b = bench_create(2, 1000);
    b->rows[0].top_p = 0.5f;
    b->rows[1].n_logprobs = 20;
    uint64_t before = cn_alloc_count();
    assert_int_equal(sample(b), CN_OK);
    assert_int_equal(cn_alloc_count(), before);
    b->args.scratch_bytes--;
    assert_int_equal(sample(b), CN_ERR_SHAPE);
    bench_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(philox_depends_on_each_argument),
        cmocka_unit_test(weights_follow_exp),
        cmocka_unit_test(keys_keep_the_order_of_floats),
        cmocka_unit_test(rows_match_the_reference),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(draw_is_the_inverse_of_the_cumulative_sum),
        cmocka_unit_test(a_row_does_not_depend_on_the_batch),
        cmocka_unit_test(ties_at_a_threshold_are_all_kept),
        cmocka_unit_test(hostile_logits_give_a_token_or_none),
        cmocka_unit_test(forced_token_has_a_rank),
        cmocka_unit_test(forced_token_overrides_bans_and_is_counted),
        cmocka_unit_test(a_token_is_forced_by_the_one_before_it),
        cmocka_unit_test(mask_bans_the_tokens_without_a_bit),
        cmocka_unit_test(counts_saturate_and_keep_the_prompt_mark),
        cmocka_unit_test(top_k_of_a_large_vocabulary_equals_a_sort),
        cmocka_unit_test(nothing_is_allocated_and_short_scratch_is_refused),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
