/* plan_shards.c - see plan_shards.h. */
#include "engine/cmd/plan_shards.h"

#include <math.h>

#include "engine/base/line_reader.h"
#include "engine/base/philox.h"
#include "engine/offline/batch_line.h"

/* ---- lengths ---- */

/* A number in (0, 1] for each of the two halves of a draw. */
static double uniform_shard(uint32_t x) { return ((double)x + 1) / 4294967296.0; }

/* Output tokens of a line, at least 1. */
static uint32_t shard_length_of(const cn_shard_model *m, uint32_t seed, uint64_t line)
{
    const cn_philox4 counter = {{(uint32_t)line, (uint32_t)(line >> 32), seed, 0}};
    const cn_philox4 x = cn_philox4x32_10(counter, 0, 0);
    if (m->n_lengths > 0) return m->lengths[(uint64_t)x.v[0] * m->n_lengths >> 32];
    const double two_pi = 2 * acos(-1.0);
    const double normal =
        sqrt(-2 * log(uniform_shard(x.v[0]))) * cos(two_pi * uniform_shard(x.v[1]));
    return (uint32_t)fmax(fmin(m->median * exp(normal), m->most), 1);
}

/* ---- the time of a shard ---- */

/* A heap of the steps at which the running requests end; the first end is at the top. */
typedef struct ends {
    uint64_t *at;
    uint32_t n;
} ends;

static void put_top(ends *e, uint64_t end)
{
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < e->n; i = child) {
        if (child + 1 < e->n && e->at[child + 1] < e->at[child]) child++;
        if (end <= e->at[child]) break;
        e->at[i] = e->at[child];
    }
    e->at[i] = end;
}

static void push(ends *e, uint64_t end)
{
    uint32_t i = e->n++;
    for (; i > 0 && e->at[(i - 1) / 2] > end; i = (i - 1) / 2) e->at[i] = e->at[(i - 1) / 2];
    e->at[i] = end;
}

/* Time and tokens of a GPU with n lines, without its start. */
static double run_shard(const cn_shard_model *m, uint32_t seed, uint64_t n, ends *e,
                        uint64_t *tokens)
{
    uint64_t line = 0, step = 0;
    double time_s = 0;
    e->n = 0;
    *tokens = 0;
    for (; line < n && e->n < m->slots; line++) {
        const uint32_t length = shard_length_of(m, seed, line);
        *tokens += length;
        push(e, length);
    }
    while (e->n > 0) {
        const uint64_t end = e->at[0];
        time_s += (double)(end - step) * (m->base_s + m->each_s * e->n);
        step = end;
        if (line < n) {
            const uint32_t length = shard_length_of(m, seed, line++);
            *tokens += length;
            put_top(e, step + length);
        } else {
            e->n--;
            put_top(e, e->at[e->n]);
        }
    }
    return time_s;
}

double cn_shard_loss(const cn_shard_model *m, uint64_t n_lines, double *mean_tokens)
{
    enum { DRAWS = 4 };
    ends e = {.at = cn_calloc(m->slots, sizeof *e.at)};
    double lost = 0, all = 0;
    for (uint32_t seed = 0; e.at && seed < DRAWS; seed++) {
        uint64_t tokens;
        const double took_s = m->start_s + run_shard(m, seed, n_lines, &e, &tokens);
        const double best_s = (double)tokens * (m->base_s / m->slots + m->each_s);
        lost += (1 - best_s / took_s) / DRAWS;
        all += (double)tokens;
    }
    *mean_tokens = all / (double)n_lines / DRAWS;
    cn_free(e.at);
    return lost;
}

/* ---- lengths of an output ---- */

static cn_status take_lengths(cn_shard_model *m, cn_line_reader *reader, const char *path)
{
    for (;;) {
        cn_line line;
        cn_line_state state;
        cn_batch_line_figures f;
        CN_TRY(cn_line_reader_next(reader, -1, &line, &state));
        if (state == CN_LINE_END) break;
        if (state != CN_LINE_READY || cn_batch_line_parse(&f, line.text, line.n) != CN_OK) continue;
        if (f.is_error || f.completion_tokens == 0) continue;
        CN_TRY(CN_ROOM(&m->lengths, m->n_lengths, "the lengths of --lengths"));
        m->lengths[m->n_lengths++] = (uint32_t)f.completion_tokens;
    }
    if (m->n_lengths > 0) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--lengths %s: no line is an answer: give an output of run-batch",
                   path);
}

static cn_status read_lengths(cn_shard_model *m, const char *path)
{
    cn_line_reader *reader;
    CN_TRY(cn_line_reader_open(&reader, path, SIZE_MAX / 4));
    const cn_status status = take_lengths(m, reader, path);
    cn_line_reader_close(reader);
    return status;
}

/* ---- the number of GPUs ---- */

#define MOST_LOST 0.1

/* The fewest lines of a GPU with which at most a tenth is lost, to a hundredth of them; `most` if
 * more is lost even with those. */
static uint64_t fewest_lines(const cn_shard_model *m, uint64_t most)
{
    double mean;
    uint64_t low = 0, high = m->slots; /* low loses more than a tenth */
    while (high < most && cn_shard_loss(m, high, &mean) > MOST_LOST) {
        low = high;
        high *= 2;
    }
    if (high > most) high = most;
    while (high - low > 1 + high / 100) {
        const uint64_t middle = low + (high - low) / 2;
        *(cn_shard_loss(m, middle, &mean) > MOST_LOST ? &low : &high) = middle;
    }
    return high;
}

cn_status cn_plan_shards_make(cn_plan_shards *s, const cn_config *c, uint32_t context)
{
    enum { USUAL_MEDIAN = 4000, MOST_SIMULATED = 1 << 20 };
    cn_shard_model *m = &s->model;
    s->n_lines = c->plan_lines;
    m->most = context;
    m->median = fmin(USUAL_MEDIAN, context / 8.0);
    if (c->plan_lengths) CN_TRY(read_lengths(m, c->plan_lengths));
    const uint64_t most = s->n_lines < MOST_SIMULATED ? s->n_lines : MOST_SIMULATED;
    s->n_lines_of_a_gpu = fewest_lines(m, most);
    s->n_gpus = s->n_lines / s->n_lines_of_a_gpu;
    const uint64_t share = s->n_lines / s->n_gpus;
    s->lost = cn_shard_loss(m, share < MOST_SIMULATED ? share : MOST_SIMULATED, &s->mean_tokens);
    return CN_OK;
}

void cn_plan_shards_print(const cn_plan_shards *s, const cn_config *c)
{
    const cn_shard_model *m = &s->model;
    if (s->n_lines == 0) return;
    if (s->n_gpus == 1 && s->lost > MOST_LOST)
        printf("%-12s %llu lines: one GPU, which loses %.1f %% of its time: more lines would lose "
               "less\n", "shards", (unsigned long long)s->n_lines, 100 * s->lost);
    else
        printf("%-12s %llu lines: at most %llu GPUs, of %llu lines or more; with more, over a "
               "tenth of their time is lost\n",
               "shards", (unsigned long long)s->n_lines, (unsigned long long)s->n_gpus,
               (unsigned long long)s->n_lines_of_a_gpu);
    printf("%-12s %u requests at once, a step of all takes %.1f ms (%s), a start %.0f s "
           "(assumed)\n",
           "", m->slots, 1e3 * (m->base_s + m->each_s * m->slots),
           m->measured ? "measured now" : "assumed", m->start_s);
    if (m->n_lengths > 0)
        printf("%-12s outputs of %.0f tokens on average, as in %s\n", "", s->mean_tokens,
               c->plan_lengths);
    else
        printf("%-12s outputs of %.0f tokens on average are assumed: lognormal, median %.0f, at "
               "most %u; --lengths FILE reads those of an earlier output\n",
               "", s->mean_tokens, m->median, m->most);
}

json_t *cn_plan_shards_json(const cn_plan_shards *s)
{
    if (s->n_lines == 0) return json_null();
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:b}", "lines", (json_int_t)s->n_lines, "gpus",
                     (json_int_t)s->n_gpus, "lines_per_gpu", (json_int_t)s->n_lines_of_a_gpu,
                     "lost", s->lost, "mean_tokens", s->mean_tokens, "assumed_lengths",
                     s->model.n_lengths == 0);
}

void cn_plan_shards_free(cn_plan_shards *s)
{
    cn_free(s->model.lengths);
    s->model.lengths = NULL;
}
