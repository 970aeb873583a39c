/* test_time_forecast.c - the time left at half of a job's tokens, against simulated jobs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/offline/time_forecast.h"
#include "engine/offline/token_forecast.h"
#include "tests/lib/sanitizer.h"

enum { MAX_LINES = 3000, ROUNDS = 16 };
#define WITHIN 0.25

/* A job, and a machine whose step takes fixed_s, row_s for each row and token_s for each of its
 * tokens in the KV cache. */
typedef struct job {
    const char *name;
    uint32_t n, slots, limit;
    uint32_t length[MAX_LINES];
    double fixed_s, row_s, token_s;
    cn_step_cost cost;
    uint32_t most_kv; /* 0: no bound */
    double prompt_s;  /* for the prompt of each line */
    double warm_s;    /* before the first step */
    double slow_from, slow_to,
        slow; /* shares of the tokens; between them steps take `slow` times */
} job;

static uint64_t state_of_rng = 1;
static double draw(void)
{
    state_of_rng = cn_hash64(7, &state_of_rng, sizeof state_of_rng);
    return (double)(state_of_rng >> 11) / 9007199254740992.0;
}

typedef struct trace {
    const job *j;
    uint32_t so_far[MAX_LINES], begun;
    uint64_t total, done;
    double now_s;
    cn_lengths finished;
} trace;

static cn_batch_work work_of(const trace *t)
{
    cn_unfinished u = {
        .unread = t->j->n - t->begun, .limit = t->j->limit, .most_kv = t->j->cost.most_kv};
    for (uint32_t i = 0; i < t->begun; i++) {
        if (t->so_far[i] == t->j->length[i]) continue;
        cn_lengths_add(&u.running, t->so_far[i]);
        u.limit_sum += t->j->limit;
    }
    const cn_to_come to_come = cn_tokens_to_come(&t->finished, &u);
    return (cn_batch_work){.tokens = t->done,
                           .begun = t->begun - u.running.n[0],
                           .running = u.running.count - u.running.n[0],
                           .to_begin = u.unread + u.running.n[0],
                           .kv = cn_kv_now(&u),
                           .to_come = to_come.tokens,
                           .kv_to_come = to_come.kv,
                           .steps = cn_steps_to_come(&t->finished, &u)};
}

/* One step of the job: each running line gets a token. At most one line begins. */
static void step(trace *t)
{
    const job *j = t->j;
    const double share = (double)t->done / (double)t->total;
    uint32_t running = 0;
    double s = j->fixed_s;
    for (uint32_t i = 0; i < t->begun; i++) running += t->so_far[i] < j->length[i];
    if (running < j->slots && t->begun < j->n) {
        s += j->prompt_s;
        t->begun++;
    }
    for (uint32_t i = 0; i < t->begun; i++) {
        if (t->so_far[i] == j->length[i]) continue;
        t->done++;
        s += j->row_s +
             j->token_s * (j->most_kv ? cn_min_u32(t->so_far[i], j->most_kv) : t->so_far[i]);
        if (++t->so_far[i] == j->length[i]) cn_lengths_add(&t->finished, j->length[i]);
    }
    t->now_s += share >= j->slow_from && share < j->slow_to ? s * j->slow : s;
}

/* The time left that is shown at half of the tokens over what it then takes. */
static double shown_at_half(const job *j)
{
    static trace t;
    t = (trace){.j = j, .now_s = 1000};
    cn_pace pace = {0};
    cn_batch_work w = work_of(&t);
    for (uint32_t i = 0; i < j->n; i++) t.total += j->length[i];
    cn_pace_add(&pace, t.now_s, &j->cost, &w);
    t.now_s += j->warm_s;
    while (2 * t.done < t.total) {
        step(&t);
        if (t.now_s - pace.at_s < 1) continue;
        w = work_of(&t);
        cn_pace_add(&pace, t.now_s, &j->cost, &w);
    }
    const double half_s = t.now_s;
    while (t.done < t.total) step(&t);
    return pace.left_s / (t.now_s - half_s);
}

/* Qwen3-8B on an H100 (docs/BENCH.md, "Steps and prefills"), a model of 1 GB on a CPU that reads 20
 * GB/s, and a small model on a CPU. */
static const struct {
    double fixed_s, row_s, token_s;
    cn_step_cost cost;
} machines[] = {
    {5.4e-3, 1.2e-5, 4.8e-8, {.weights = 15.1e9, .token = 147456, .rows = 320}},
    {5e-2, 2e-3, 5e-6, {.weights = 1e9, .token = 1e5, .rows = 20}},
    {2e-3, 1.5e-4, 3e-7, {.weights = 22e6, .token = 3072, .rows = 20}},
};

static void place(job *j, uint32_t machine)
{
    j->fixed_s = machines[machine].fixed_s;
    j->row_s = machines[machine].row_s;
    j->token_s = machines[machine].token_s;
    j->cost = machines[machine].cost;
    j->cost.most_kv = j->most_kv;
}

/* The first two have few lines: only equal lengths tell half of the job what the other half does.
 */
static const struct {
    uint32_t n, slots;
} sizes[] = {{24, 8}, {160, 160}, {400, 32}, {1500, 64}, {3000, 160}};
enum { N_MACHINES = 3, N_SIZES = BY_SANITIZER(5, 4, 4), FIRST_OF_MANY = 2 };

static void each(const char *name, uint32_t first_size, double (*length)(double), const job *with)
{
    static job j;
    for (uint32_t k = first_size; k < N_SIZES; k++)
        for (uint32_t m = 0; m < N_MACHINES; m++) {
            j = *with;
            j.n = sizes[k].n;
            j.slots = sizes[k].slots;
            place(&j, m);
            for (uint32_t i = 0; i < j.n; i++) j.length[i] = (uint32_t)length(draw());
            const double ratio = shown_at_half(&j);
            if (fabs(ratio - 1) > WITHIN)
                fail_msg("%s, machine %u, %u lines, %u at once: %.2f of the time it took", name, m,
                         j.n, j.slots, ratio);
        }
}

static double equal(double x)
{
    (void)x;
    return 900;
}
static double uniform(double x) { return 100 + 900 * x; }
static double exponential(double x) { return 20 - 500 * log(1 - 0.999 * x); }
/* One line of ten has about six times as many tokens as the others. */
static double long_tail(double x) { return x < 0.9 ? 200 + 200 * x : 1500 + 5000 * (x - 0.9); }

static void steady(void **state)
{
    (void)state;
    static const job steady = {.prompt_s = 0.01, .limit = 900};
    static const job free = {.prompt_s = 0.01, .limit = 16384};
    each("equal lengths", 0, equal, &steady);
    each("lengths from 100 to 1,000", FIRST_OF_MANY, uniform, &free);
}

static void long_outputs(void **state)
{
    (void)state;
    static const job free = {.prompt_s = 0.01, .limit = 16384};
    each("exponential lengths", FIRST_OF_MANY + 1, exponential, &free);
    each("a tenth is long", FIRST_OF_MANY + 2, long_tail, &free);
}

/* A few such jobs differ from another by chance; their mean does not. */
static void the_longest_lines_end_alone(void **state)
{
    (void)state;
    static job j;
    for (uint32_t m = 0; m < N_MACHINES; m++) {
        double sum = 0;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            j = (job){.n = 400, .slots = 64, .prompt_s = 0.01, .limit = 16384};
            place(&j, m);
            for (uint32_t i = 0; i < j.n; i++) j.length[i] = (uint32_t)exponential(draw());
            sum += shown_at_half(&j) / ROUNDS;
        }
        if (fabs(sum - 1) > 0.15) fail_msg("machine %u: %.2f of the time on average", m, sum);
    }
}

/* The second half of such a job attends to three times as many tokens as the first, unless a policy
 * caps them. */
static void contexts_that_grow(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < N_MACHINES; m++)
        for (uint32_t most_kv = 0; most_kv <= 2048; most_kv += 2048) {
            static job j;
            j = (job){.n = 160, .slots = 160, .prompt_s = 0.01, .limit = 6000, .most_kv = most_kv};
            for (uint32_t i = 0; i < j.n; i++) j.length[i] = 6000;
            place(&j, m);
            const double ratio = shown_at_half(&j);
            if (fabs(ratio - 1) > WITHIN)
                fail_msg("machine %u, at most %u tokens of KV: %.2f of the time", m, most_kv,
                         ratio);
        }
}

static void time_before_the_first_token(void **state)
{
    (void)state;
    static const job warm = {.prompt_s = 0.01, .warm_s = 60, .limit = 900};
    each("a minute before the first token", 0, equal, &warm);
}

/* The prompts of the first lines take time that the last lines do not. */
static void long_prompts(void **state)
{
    (void)state;
    static const job prompts = {.prompt_s = 0.25, .limit = 900};
    each("long prompts", 0, equal, &prompts);
    each("long prompts, lengths from 100 to 1,000", FIRST_OF_MANY, uniform, &prompts);
}

static void a_slow_phase(void **state)
{
    (void)state;
    /* Not for the smallest job: it lasts 12 samples. */
    static job slow = {.prompt_s = 0.01, .limit = 900, .slow = 2};
    for (int ends_at = 20; ends_at <= 50; ends_at += 15) { /* percent of the tokens */
        slow.slow_to = ends_at / 100.0;
        slow.slow_from = slow.slow_to - 0.04;
        each("half the speed for a while", 1, equal, &slow);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steady),
        cmocka_unit_test(long_outputs),
        cmocka_unit_test(the_longest_lines_end_alone),
        cmocka_unit_test(contexts_that_grow),
        cmocka_unit_test(time_before_the_first_token),
        cmocka_unit_test(long_prompts),
        cmocka_unit_test(a_slow_phase),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
