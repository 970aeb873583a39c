/* history.c - see history.h. */
#include "engine/serve/routes/history.h"

enum { RECENT_POINTS = 180, DAY_POINTS = 288 };

typedef enum series {
    OUTPUT_TOKENS_PER_S,
    PROMPT_TOKENS_PER_S,
    RUNNING,
    WAITING,
    KV_USED,
    KV_SPARED,
    N_SERIES
} series;

static const char *const names[N_SERIES] = {"output_tokens_per_s", "prompt_tokens_per_s",
                                            "running",             "waiting",
                                            "kv_used",             "kv_spared"};

typedef struct point {
    float v[N_SERIES];
} point;

typedef struct ring {
    point *points; /* [capacity] */
    uint32_t capacity;
    uint64_t n; /* written since the start; point i is at i % capacity */
} ring;

struct cn_history {
    ring rings[CN_HISTORY_N_SPANS];
    double sum[N_SERIES]; /* of the samples for the next point of the day ring */
    uint32_t n_summed;
    bool begun;
    cn_stats last;
    double last_s;
};

cn_status cn_history_create(cn_history **out)
{
    static const uint32_t capacity[CN_HISTORY_N_SPANS] = {RECENT_POINTS, DAY_POINTS};
    cn_history *h = *out = cn_calloc(1, sizeof *h);
    if (!h) return cn_fail(CN_ERR_MEMORY, "out of memory for the history");
    for (int i = 0; i < CN_HISTORY_N_SPANS; i++) {
        h->rings[i].capacity = capacity[i];
        h->rings[i].points = cn_calloc(capacity[i], sizeof(point));
        if (h->rings[i].points) continue;
        cn_history_free(h);
        return cn_fail(CN_ERR_MEMORY, "out of memory for the history");
    }
    return CN_OK;
}

void cn_history_free(cn_history *h)
{
    if (!h) return;
    for (int i = 0; i < CN_HISTORY_N_SPANS; i++) cn_free(h->rings[i].points);
    cn_free(h);
}

static void push_history(ring *r, const point *p) { r->points[r->n++ % r->capacity] = *p; }

static void sum_up(cn_history *h, const point *p)
{
    for (int i = 0; i < N_SERIES; i++) h->sum[i] += (double)p->v[i];
    if (++h->n_summed < CN_HISTORY_LONG_STEPS) return;
    point mean;
    for (int i = 0; i < N_SERIES; i++) {
        mean.v[i] = (float)(h->sum[i] / h->n_summed);
        h->sum[i] = 0;
    }
    h->n_summed = 0;
    push_history(&h->rings[CN_HISTORY_DAY], &mean);
}

void cn_history_add(cn_history *h, const cn_stats *s, double now_s)
{
    const double dt = now_s - h->last_s;
    const double blocks = s->blocks_total ? s->blocks_total : 1;
    if (h->begun && dt > 0) {
        const uint64_t output = s->generation_tokens - h->last.generation_tokens;
        const uint64_t prompt = s->prompt_tokens - h->last.prompt_tokens;
        const point p = {{
            [OUTPUT_TOKENS_PER_S] = (float)((double)output / dt),
            [PROMPT_TOKENS_PER_S] = (float)((double)prompt / dt),
            [RUNNING] = (float)s->running,
            [WAITING] = (float)s->waiting,
            [KV_USED] = (float)(s->blocks_used / blocks),
            [KV_SPARED] = (float)((double)s->blocks_spared / blocks),
        }};
        push_history(&h->rings[CN_HISTORY_RECENT], &p);
        sum_up(h, &p);
    }
    h->begun = true;
    h->last = *s;
    h->last_s = now_s;
}

static uint32_t length_history(const ring *r)
{
    return r->n < r->capacity ? (uint32_t)r->n : r->capacity;
}

static json_t *series_json(const ring *r, int which)
{
    json_t *a = json_array();
    const uint32_t n = length_history(r);
    for (uint32_t i = 0; i < n; i++) {
        const float v = r->points[(r->n - n + i) % r->capacity].v[which];
        if (json_array_append_new(a, json_real((double)v)) != 0) {
            json_decref(a);
            return NULL;
        }
    }
    return a;
}

json_t *cn_history_json(const cn_history *h, cn_history_span span)
{
    const ring *r = &h->rings[span];
    const int step_s =
        span == CN_HISTORY_DAY ? CN_HISTORY_STEP_S * CN_HISTORY_LONG_STEPS : CN_HISTORY_STEP_S;
    json_t *o = json_pack("{s:i, s:i}", "step_s", step_s, "points", (int)r->capacity);
    for (int i = 0; i < N_SERIES; i++)
        if (json_object_set_new(o, names[i], series_json(r, i)) != 0) {
            json_decref(o);
            return NULL;
        }
    return o;
}

double cn_history_rate(const cn_history *h, uint32_t n_samples)
{
    const ring *r = &h->rings[CN_HISTORY_RECENT];
    const uint32_t n = cn_min_u32(n_samples, length_history(r));
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)r->points[(r->n - 1 - i) % r->capacity].v[OUTPUT_TOKENS_PER_S];
    return n ? sum / n : 0;
}
