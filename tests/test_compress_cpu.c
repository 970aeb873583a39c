/* test_compress_cpu.c - compression events on the CPU: every score and whole events compared with
 * golden references (tests/golden/compress), selection, moves between tables, faulty requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "compress/rule.h"
#include "engine/base/base.h"
#include "engine/cpu/cpu_compress.h"
#include "tests/lib/compress_placement.h"
#include "tests/lib/fp8_pool.h"

#define GOLDEN "tests/golden/compress/"
enum { MAX_BLOCKS = 32, N_STAGES = 5, N_MOVES = 2, QUERY_SLOTS = 3, CANARY_BYTES = 64 };
void openblas_set_num_threads(int n_threads);

/* ---- a case: an event, its inputs from a seed, its expected stages ---- */
typedef struct golden_case {
    const char *name;
    cn_compress_req req;
    uint32_t layers, heads, kv_heads, d, b, n, ring, n_kept;
    uint64_t seed;
    float query_scale;
    const float *stages; /* per (layer, kv head): N_STAGES * n floats, N_MOVES * n_kept uint32 */
} golden_case;

static json_t *golden_json;
static float *golden_data;
static golden_case *cases;
static size_t n_cases;

static uint32_t get_u32(const json_t *o, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(o, key));
}

static float get_f32(const json_t *o, const char *key)
{
    return (float)json_number_value(json_object_get(o, key));
}

static bool get_is(const json_t *o, const char *key, const char *value)
{
    return strcmp(json_string_value(json_object_get(o, key)), value) == 0;
}

static bool get_bool(const json_t *o, const char *key)
{
    return json_is_true(json_object_get(o, key));
}

static cn_kv_params params_read(const json_t *o)
{
    return (cn_kv_params){
        .policy = CN_KV_ZIP,
        .budget_tokens = get_u32(o, "n_target") * get_u32(o, "block"),
        .window_tokens = get_u32(o, "window"),
        .sink_tokens = get_u32(o, "sinks"),
        .observe_tokens = get_u32(o, "observe"),
        .recent = get_f32(o, "recent"),
        .rule = get_is(o, "rule", "peak")     ? CN_RULE_PEAK
                : get_is(o, "rule", "follow") ? CN_RULE_FOLLOW
                : get_is(o, "rule", "scaled") ? CN_RULE_SCALED
                                              : CN_RULE_ZIPAGE,
        .head_rule = get_is(o, "head_rule", "mean") ? CN_HEADS_MEAN : CN_HEADS_MAX,
        .global_score = get_bool(o, "global"),
        .alpha = get_f32(o, "alpha"),
        .pooling = get_is(o, "pooling", "first")    ? CN_POOLING_FIRST
                   : get_is(o, "pooling", "always") ? CN_POOLING_ALWAYS
                                                    : CN_POOLING_NEVER,
        .redundancy = get_is(o, "redundancy", "lightning") ? CN_REDUNDANCY_LIGHTNING
                      : get_is(o, "redundancy", "flash")   ? CN_REDUNDANCY_FLASH
                                                           : CN_REDUNDANCY_NONE,
        .redundancy_p = get_f32(o, "p"),
        .redundancy_tau = get_f32(o, "tau"),
        .lambda = get_f32(o, "lambda"),
        .combine = get_is(o, "combine", "convex") ? CN_COMBINE_CONVEX : CN_COMBINE_SUBTRACT,
    };
}

static golden_case case_read(const json_t *o)
{
    golden_case c = {
        .name = json_string_value(json_object_get(o, "name")),
        .layers = get_u32(o, "layers"),
        .heads = get_u32(o, "heads"),
        .kv_heads = get_u32(o, "kv_heads"),
        .d = get_u32(o, "head_dim"),
        .b = get_u32(o, "block"),
        .ring = get_u32(o, "ring"),
        .seed = get_u32(o, "seed"),
        .query_scale = get_f32(o, "query_scale"),
        .stages = golden_data + get_u32(o, "offset") / sizeof(float),
        .req = {.params = params_read(o),
                .n_blocks = get_u32(o, "n_blocks"),
                .n_target = get_u32(o, "n_target"),
                .query_slot = 1,
                .position_end = get_u32(o, "position_end"),
                .first_event = get_bool(o, "first"),
                .n_history = get_u32(o, "n_history")},
    };
    c.n = c.b * c.req.n_blocks;
    c.n_kept = c.b * c.req.n_target;
    return c;
}

static int golden_load(void **state)
{
    (void)state;
    openblas_set_num_threads(1);
    json_error_t error;
    golden_json = json_load_file(GOLDEN "cases.json", 0, &error);
    FILE *f = fopen(GOLDEN "expect.bin", "rb");
    if (!golden_json || !f) return -1;
    fseek(f, 0, SEEK_END);
    size_t bytes = (size_t)ftell(f);
    rewind(f);
    golden_data = cn_calloc_aligned(bytes, 1);
    size_t got = fread(golden_data, 1, bytes, f);
    fclose(f);
    n_cases = json_array_size(golden_json);
    cases = cn_calloc(n_cases, sizeof *cases);
    for (size_t i = 0; i < n_cases; i++) cases[i] = case_read(json_array_get(golden_json, i));
    return got == bytes && n_cases > 0 ? 0 : -1;
}

static int golden_free(void **state)
{
    (void)state;
    json_decref(golden_json);
    cn_free(golden_data);
    cn_free(cases);
    return 0;
}

static const float *case_stage(const golden_case *c, uint32_t layer, uint32_t head, uint32_t stage)
{
    size_t per_head = (size_t)N_STAGES * c->n + N_MOVES * (size_t)c->n_kept;
    return c->stages + (layer * c->kv_heads + head) * per_head + (size_t)stage * c->n;
}

/* Returns the slot that each target slot receives, by the case's move. */
static const uint32_t *case_kept(const golden_case *c, uint32_t layer, uint32_t head)
{
    const uint32_t *lists = (const uint32_t *)case_stage(c, layer, head, N_STAGES);
    return lists + (c->req.params.move == CN_MOVE_FILL ? c->n_kept : 0);
}

/* Uniform in [-1, 1): the same as draw() in make_compress.py. */
static float draw(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint64_t z = index * UINT64_C(0x9E3779B97F4A7C15) + seed * UINT64_C(0xD1B54A32D192ED03) +
                 (stream << 56);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31;
    return (float)(z >> 40) * 0x1p-23f - 1.0f;
}

enum { CENTRE = 1, CENTRE_KEY, NOISE_KEY, QUERY, HISTORY, VALUE, JUNK };

static float case_key(const golden_case *c, uint64_t row, uint32_t j)
{
    uint64_t centre = (uint64_t)((draw(c->seed, CENTRE, row) + 1) * 4);
    return draw(c->seed, CENTRE_KEY, centre * 256 + j) +
           0.5f * draw(c->seed, NOISE_KEY, row * c->d + j);
}

static uint32_t origin_of(const golden_case *c, uint64_t row)
{
    return (uint32_t)((draw(c->seed, VALUE, row) + 1) * 0x1p23f);
}

/* ---- pools that hold one case's request ---- */
typedef struct world {
    cn_pools pools;
    unsigned char *scratch;
    size_t scratch_bytes;
} world;

static float *junk(size_t n, uint64_t seed)
{
    float *p = cn_calloc_aligned(n, sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = draw(seed, JUNK, i);
    return p;
}

static void store_rows(const world *w, const golden_case *c, const uint32_t *table, uint32_t layer,
                       uint32_t head)
{
    const cn_pools *p = &w->pools;
    const cn_kv_layout *l = &p->layout;
    for (uint32_t v = 0; v < c->n; v++) {
        uint64_t row = (uint64_t)(layer * c->kv_heads + head) * c->n + v;
        uint32_t block = table[v / c->b], slot = v % c->b;
        float *k = (float *)p->kv + cn_kv_row(l, layer, block, head, slot, CN_KV_K);
        float *val = (float *)p->kv + cn_kv_row(l, layer, block, head, slot, CN_KV_V);
        for (uint32_t j = 0; j < c->d; j++) {
            k[j] = case_key(c, row, j);
            val[j] = draw(c->seed, VALUE, row * c->d + j);
        }
        size_t side = cn_kv_side(l, layer, block, head, slot);
        p->score[side] = (draw(c->seed, HISTORY, row) + 1) / 128;
        p->origin[side] = origin_of(c, row);
    }
}

static void store_queries(const world *w, const golden_case *c, uint32_t query_slot)
{
    const uint32_t window = cn_rule_queries(&c->req.params);
    for (uint32_t layer = 0; layer < c->layers; layer++)
        for (uint32_t u = 0; u < window; u++)
            for (uint32_t h = 0; h < c->heads; h++) {
                uint64_t pos = c->req.position_end - window + u;
                uint64_t row = (pos * c->layers + layer) * c->heads + h;
                float *q = (float *)w->pools.q_window +
                           cn_query_row(QUERY_SLOTS, c->ring, c->heads, c->d, layer, query_slot,
                                        (uint32_t)(pos % window), h);
                for (uint32_t j = 0; j < c->d; j++)
                    q[j] = c->query_scale * draw(c->seed, QUERY, row * c->d + j);
            }
}

static void case_store(const world *w, const golden_case *c, const uint32_t *table,
                       uint32_t query_slot)
{
    for (uint32_t layer = 0; layer < c->layers; layer++)
        for (uint32_t head = 0; head < c->kv_heads; head++) store_rows(w, c, table, layer, head);
    store_queries(w, c, query_slot);
}

/* Makes pools full of junk, and scratch of exactly the requested size with a canary behind it. */
static world world_make(const golden_case *c, uint32_t n_blocks)
{
    world w = {.pools = {.layout = cn_kv_layout_make(c->layers, n_blocks, c->kv_heads, c->b, c->d,
                                                     CN_F32),
                         .n_query_slots = QUERY_SLOTS, .window = c->ring, .n_heads = c->heads}};
    cn_pools *p = &w.pools;
    p->kv = junk(cn_kv_pool_elems(&p->layout), 1);
    p->score = junk(cn_kv_side_elems(&p->layout), 2);
    p->origin = (uint32_t *)junk(cn_kv_side_elems(&p->layout), 3);
    p->q_window = junk((size_t)c->layers * QUERY_SLOTS * c->ring * c->heads * c->d, 4);
    w.scratch_bytes = cn_cpu_compress_scratch_bytes(NULL, p, c->n);
    w.scratch = cn_calloc_aligned(w.scratch_bytes + CANARY_BYTES, 1);
    assert_non_null(w.scratch);
    memset(w.scratch, 0xA5, w.scratch_bytes + CANARY_BYTES);
    return w;
}

static void world_free(world *w)
{
    for (size_t i = 0; i < CANARY_BYTES; i++)
        assert_int_equal(w->scratch[w->scratch_bytes + i], 0xA5);
    cn_free(w->pools.kv);
    cn_free(w->pools.score);
    cn_free(w->pools.origin);
    cn_free(w->pools.q_window);
    cn_free(w->scratch);
}

static cn_status world_compress(const world *w, const cn_compress_req *reqs, uint32_t n_reqs)
{
    cn_compress_args a = {w->pools, reqs, n_reqs, w->scratch, w->scratch_bytes};
    return cn_cpu_compress(NULL, &a);
}

/* ---- tables ---- */
/* Source blocks are a permutation of the blocks 0 .. n_blocks-1. New blocks have higher numbers. */
static void tables_make(compress_placement how, uint32_t n_blocks, uint32_t n_target,
                        uint64_t seed, uint32_t *table, uint32_t *target)
{
    uint32_t pick[2 * MAX_BLOCKS], fresh[MAX_BLOCKS];
    for (uint32_t i = 0; i < n_blocks; i++) table[i] = i;
    for (uint32_t i = n_blocks; i-- > 1;) {
        uint32_t j = (uint32_t)((draw(seed, JUNK, i) + 1) / 2 * (float)(i + 1));
        uint32_t t = table[i];
        table[i] = table[j];
        table[j] = t;
    }
    for (uint32_t i = 0; i < 2 * n_blocks; i++) pick[i] = i;
    for (uint32_t i = 2 * n_blocks; i-- > 1;) {
        uint32_t j = (uint32_t)((draw(seed, JUNK, 1000 + i) + 1) / 2 * (float)(i + 1));
        uint32_t t = pick[i];
        pick[i] = pick[j];
        pick[j] = t;
    }
    for (uint32_t i = 0; i < n_blocks; i++) fresh[i] = n_blocks + i;
    for (uint32_t j = 0; j < n_target; j++)
        target[j] = compress_place(how, table, n_blocks, fresh, pick, n_target, j);
}

/* ---- golden ---- */
static void assert_close(const golden_case *c, const char *what, const float *got,
                         const float *want, uint32_t n, double scale)
{
    for (uint32_t v = 0; v < n; v++) {
        double tolerance = 5e-6 * (fabs((double)want[v]) + scale);
        if (!(fabs((double)got[v] - (double)want[v]) <= tolerance))
            fail_msg("%s: %s[%u]: expected %.9g, got %.9g", c->name, what, v, (double)want[v],
                     (double)got[v]);
    }
}

/* Redundancy and final scores are about 1/n, so they are compared with that scale. Attention is
 * compared relatively. */
static void check_rows(const golden_case *c, const cn_score_job *job)
{
    size_t n_rows;
    const cn_score *rows = cn_score_table(&n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        if (!rows[i].applies(job->req)) continue;
        rows[i].cpu(job);
        const char *name = rows[i].name;
        if (strcmp(name, "scale") == 0) continue; /* the final score shows it */
        bool redundancy = strcmp(name, "lightning") == 0 || strcmp(name, "flash") == 0;
        uint32_t stage = strcmp(name, "attention") == 0 ? 0
                         : strcmp(name, "global") == 0  ? 1
                         : strcmp(name, "pooling") == 0 ? 2
                         : strcmp(name, "follow") == 0  ? 2
                         : redundancy                   ? 3
                                                        : 4;
        assert_close(c, name, redundancy ? job->redundancy : job->score,
                     case_stage(c, job->layer, job->kv_head, stage), c->n,
                     stage >= 3 ? 1.0 / c->n : 1e-9);
    }
    assert_close(c, "final", job->score, case_stage(c, job->layer, job->kv_head, 4), c->n,
                 1.0 / c->n);
}

static void every_score_agrees_with_its_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_cases; i++) {
        golden_case c = cases[i];
        uint32_t table[MAX_BLOCKS], target[MAX_BLOCKS];
        tables_make(ALL_NEW, c.req.n_blocks, c.req.n_target, i, table, target);
        world w = world_make(&c, 2 * c.req.n_blocks);
        case_store(&w, &c, table, c.req.query_slot);
        c.req.table = table;
        c.req.target = target;
        float *memory = cn_calloc_aligned(
            (size_t)c.n * (c.d + 2) + cn_score_work_floats(&w.pools, c.n), sizeof *memory);
        for (uint32_t layer = 0; layer < c.layers; layer++)
            for (uint32_t head = 0; head < c.kv_heads; head++) {
                cn_score_job job = {.pools = &w.pools, .req = &c.req, .layer = layer,
                                    .kv_head = head, .n = c.n, .score = memory,
                                    .redundancy = memory + c.n, .keys_t = memory + 2 * c.n,
                                    .work = memory + (size_t)c.n * (c.d + 2)};
                cn_cpu_gather_keys(&w.pools, &c.req, layer, head, memory + 2 * c.n);
                check_rows(&c, &job);
            }
        cn_free(memory);
        world_free(&w);
    }
}

/* DESIGN.md section 2, rule follow, one slot after the other. */
static void follow_naively(const float *s, uint32_t n, uint32_t sinks, float *out)
{
    for (uint32_t v = 0; v < n; v++) {
        out[v] = s[v];
        for (uint32_t j = sinks; j < v; j++) {
            const float x = s[j] * (1.0f - (float)(v - j) / 256.0f);
            if (v - j <= 128 && x > out[v]) out[v] = x;
        }
    }
}

/* Scores on which the maximum depends on every distance, and odd ones. */
static float follow_input(uint32_t kind, uint32_t v)
{
    static const float odd[] = {0.0f, INFINITY, -INFINITY, NAN, 1e-42f, 1, 2};
    const float x = draw(5, JUNK, v);
    switch (kind) {
    case 0: return (x + 1) / 2;
    case 1: return v % 129 == 0 ? 1.0f : 0.0f; /* each counts as far as it reaches */
    case 2: return x > 0.98f ? x : 0.0f;
    default: return odd[(uint32_t)((x + 1) / 2 * 7)];
    }
}

/* The bits agree: fewer slots than a score reaches, one slot, and sinks up to all slots. */
static void what_follows_a_slot_counts_with_it(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 16, 127, 128, 129, 130, 400};
    static const uint32_t sinks[] = {0, 1, 4, 127, 128, 300, 500};
    float score[400], work[400], in[400], want[400];
    size_t n_rows;
    const cn_score *row = &cn_score_table(&n_rows)[CN_SCORE_FOLLOW];
    for (uint32_t i = 0; i < 8 * 7 * 4; i++) {
        const uint32_t n = sizes[i % 8], n_sinks = sinks[i / 8 % 7];
        const cn_compress_req req = {
            .params = {.policy = CN_KV_ZIP, .rule = CN_RULE_FOLLOW, .sink_tokens = n_sinks}};
        const cn_score_job job = {.req = &req, .n = n, .score = score, .work = work};
        for (uint32_t v = 0; v < n; v++) score[v] = in[v] = follow_input(i / 56, v);
        assert_true(row->applies(&req));
        row->cpu(&job);
        follow_naively(in, n, n_sinks, want);
        assert_memory_equal(score, want, n * sizeof *score);
    }
}

/* P of a source slot after the event. */
static uint32_t new_origin(const golden_case *c, uint64_t row)
{
    const uint32_t slot = (uint32_t)(row % c->n);
    if (c->req.first_event) return slot;
    return slot < c->req.n_history ? origin_of(c, row) : c->req.position_end - c->n + slot;
}

/* Target slot i of (layer, head) must hold K and V of slot kept[i] of the case, its position, and
 * its new F. */
static void check_moved(const world *w, const golden_case *c, uint32_t layer, uint32_t head,
                        const uint32_t *kept)
{
    const cn_kv_layout *l = &w->pools.layout;
    const float *f_new = case_stage(c, layer, head, 1);
    bool global = c->req.params.policy == CN_KV_ZIP && cn_rule_keeps_scores(&c->req.params);
    for (uint32_t i = 0; i < c->n_kept; i++) {
        uint32_t block = c->req.target[i / c->b], slot = i % c->b;
        uint64_t row = (uint64_t)(layer * c->kv_heads + head) * c->n + kept[i];
        const float *k = (float *)w->pools.kv + cn_kv_row(l, layer, block, head, slot, CN_KV_K);
        const float *v = (float *)w->pools.kv + cn_kv_row(l, layer, block, head, slot, CN_KV_V);
        for (uint32_t j = 0; j < c->d; j++)
            if (k[j] != case_key(c, row, j) || v[j] != draw(c->seed, VALUE, row * c->d + j))
                fail_msg("%s: target slot %u does not hold slot %u", c->name, i, kept[i]);
        size_t side = cn_kv_side(l, layer, block, head, slot);
        assert_int_equal(w->pools.origin[side], new_origin(c, row));
        float want = global ? f_new[kept[i]] : (draw(c->seed, HISTORY, row) + 1) / 128;
        assert_close(c, "moved global score", &w->pools.score[side], &want, 1, 1e-9);
    }
}

static void events_keep_and_move_what_the_reference_keeps(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_cases; i++)
        for (int how = 0; how < N_PLACEMENTS * N_MOVES; how++) {
            golden_case c = cases[i];
            c.req.params.move = how < N_PLACEMENTS ? CN_MOVE_ORDER : CN_MOVE_FILL;
            uint32_t table[MAX_BLOCKS], target[MAX_BLOCKS];
            tables_make((compress_placement)(how % N_PLACEMENTS), c.req.n_blocks, c.req.n_target,
                        i, table, target);
            world w = world_make(&c, 2 * c.req.n_blocks);
            case_store(&w, &c, table, c.req.query_slot);
            c.req.table = table;
            c.req.target = target;
            assert_int_equal(world_compress(&w, &c.req, 1), CN_OK);
            for (uint32_t layer = 0; layer < c.layers; layer++)
                for (uint32_t head = 0; head < c.kv_heads; head++)
                    check_moved(&w, &c, layer, head, case_kept(&c, layer, head));
            world_free(&w);
        }
}

/* ---- moves ---- */
static const golden_case *case_named(const char *name)
{
    for (size_t i = 0; i < n_cases; i++)
        if (strcmp(cases[i].name, name) == 0) return &cases[i];
    fail_msg("no golden case %s", name);
    return NULL;
}

static void moves_are_right_for_any_tables(void **state)
{
    (void)state;
    golden_case c = *case_named("head 16, block 16");
    c.req.params.policy = CN_KV_WINDOW;
    for (uint64_t seed = 0; seed < 300; seed++) {
        c.req.params.sink_tokens = (uint32_t)(seed * 7 % 50);
        c.req.n_target = 1 + (uint32_t)(seed % c.req.n_blocks);
        c.n_kept = c.req.n_target * c.b;
        uint32_t table[MAX_BLOCKS], target[MAX_BLOCKS], kept[MAX_BLOCKS * 16];
        tables_make(seed % 3 ? SHUFFLED : OWN_REVERSED, c.req.n_blocks, c.req.n_target, seed, table,
                    target);
        world w = world_make(&c, 2 * c.req.n_blocks);
        case_store(&w, &c, table, 1);
        c.req.table = table;
        c.req.target = target;
        assert_int_equal(world_compress(&w, &c.req, 1), CN_OK);
        for (uint32_t i = 0; i < c.n_kept; i++)
            kept[i] = i < c.req.params.sink_tokens ? i : c.n - c.n_kept + i;
        for (uint32_t head = 0; head < c.kv_heads; head++) check_moved(&w, &c, 0, head, kept);
        world_free(&w);
    }
}

static void blocks_of_other_requests_are_unchanged(void **state)
{
    (void)state;
    golden_case c = *case_named("block 16, flash");
    uint32_t table[MAX_BLOCKS], target[MAX_BLOCKS];
    tables_make(PREFIX_SAFE, c.req.n_blocks, c.req.n_target, 5, table, target);
    world w = world_make(&c, 2 * c.req.n_blocks), before = world_make(&c, 2 * c.req.n_blocks);
    case_store(&w, &c, table, 1);
    case_store(&before, &c, table, 1);
    c.req.table = table;
    c.req.target = target;
    assert_int_equal(world_compress(&w, &c.req, 1), CN_OK);
    size_t block_bytes = w.pools.layout.block_bytes;
    uint32_t n_changed = 0;
    for (uint32_t block = 0; block < 2 * c.req.n_blocks; block++) {
        size_t at = cn_kv_row(&w.pools.layout, 0, block, 0, 0, CN_KV_K);
        bool is_target = false;
        for (uint32_t j = 0; j < c.req.n_target; j++) is_target |= target[j] == block;
        const float *now = (float *)w.pools.kv + at, *then = (float *)before.pools.kv + at;
        bool same = memcmp(now, then, block_bytes) == 0;
        assert_true(same || is_target);
        n_changed += !same;
    }
    assert_int_equal(n_changed, c.req.n_target);
    world_free(&w);
    world_free(&before);
}

/* Two requests with different parameters in one event must leave the same bits as two events. */
static void requests_of_an_event_are_independent(void **state)
{
    (void)state;
    golden_case a = *case_named("first event above the cap"), b = a;
    b.seed++;
    b.req.first_event = false;
    b.req.n_history = 128;
    b.req.query_slot = 2;
    b.req.n_target = 3;
    b.req.params.window_tokens = 7;
    b.req.params.redundancy = CN_REDUNDANCY_FLASH;
    b.req.params.combine = CN_COMBINE_SUBTRACT;
    uint32_t n = a.req.n_blocks, tables[2][MAX_BLOCKS];
    for (uint32_t i = 0; i < n; i++) {
        tables[0][i] = 2 * i;
        tables[1][i] = 2 * i + 1;
    }
    a.req.table = a.req.target = tables[0];
    b.req.table = b.req.target = tables[1];
    cn_compress_req both[2] = {a.req, b.req};
    world together = world_make(&a, 2 * n), apart = world_make(&a, 2 * n);
    const world *each[2] = {&together, &apart};
    for (int i = 0; i < 2; i++) {
        case_store(each[i], &a, tables[0], 1);
        case_store(each[i], &b, tables[1], 2);
    }
    assert_int_equal(world_compress(&together, both, 2), CN_OK);
    memset(apart.scratch, 0x5A, apart.scratch_bytes);
    assert_int_equal(world_compress(&apart, &both[1], 1), CN_OK);
    assert_int_equal(world_compress(&apart, &both[0], 1), CN_OK);
    assert_memory_equal(together.pools.kv, apart.pools.kv,
                        cn_kv_pool_elems(&together.pools.layout) * sizeof(float));
    assert_memory_equal(together.pools.score, apart.pools.score,
                        cn_kv_side_elems(&together.pools.layout) * sizeof(float));
    world_free(&together);
    world_free(&apart);
}

/* Rows in eight bits are scored as their values are, and move whole. */
static void rows_in_eight_bits_are_kept_as_their_values_are(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_cases; i++) {
        golden_case c = cases[i];
        uint32_t table[MAX_BLOCKS], target[MAX_BLOCKS];
        tables_make((compress_placement)(i % N_PLACEMENTS), c.req.n_blocks, c.req.n_target, i,
                    table, target);
        c.req.table = table;
        c.req.target = target;
        world w = world_make(&c, 2 * c.req.n_blocks), w8 = world_make(&c, 2 * c.req.n_blocks);
        case_store(&w, &c, table, c.req.query_slot);
        case_store(&w8, &c, table, c.req.query_slot);
        fp8_pool pool = fp8_pool_make(&w.pools.layout, w.pools.kv);
        cn_free(w8.pools.kv);
        w8.pools.layout = pool.layout;
        w8.pools.kv = pool.kv;
        assert_int_equal(world_compress(&w, &c.req, 1), CN_OK);
        assert_int_equal(world_compress(&w8, &c.req, 1), CN_OK);
        fp8_pool_assert_equal(&pool, &w.pools.layout, w.pools.kv);
        const size_t side = cn_kv_side_elems(&w.pools.layout) * sizeof(float);
        assert_memory_equal(w8.pools.score, w.pools.score, side);
        assert_memory_equal(w8.pools.origin, w.pools.origin, side);
        world_free(&w);
        world_free(&w8);
    }
}

static void events_work_without_side_arrays(void **state)
{
    (void)state;
    golden_case c = *case_named("attention alone");
    uint32_t table[MAX_BLOCKS], target[MAX_BLOCKS];
    tables_make(OWN_REVERSED, c.req.n_blocks, c.req.n_target, 9, table, target);
    world w = world_make(&c, 2 * c.req.n_blocks), bare;
    case_store(&w, &c, table, 1);
    c.req.table = table;
    c.req.target = target;
    bare = w;
    bare.pools.score = NULL;
    bare.pools.origin = NULL;
    assert_int_equal(world_compress(&bare, &c.req, 1), CN_OK);
    const uint32_t *kept = case_kept(&c, 0, 0);
    for (uint32_t i = 0; i < c.n_kept; i++) {
        size_t at = cn_kv_row(&w.pools.layout, 0, target[i / c.b], 0, i % c.b, CN_KV_K);
        assert_float_equal(((float *)w.pools.kv)[at], case_key(&c, kept[i], 0), 0);
    }
    world_free(&w);
}

static void an_event_allocates_nothing(void **state)
{
    (void)state;
    golden_case c = *case_named("bundled later event");
    uint32_t table[MAX_BLOCKS], target[MAX_BLOCKS];
    tables_make(IN_PLACE, c.req.n_blocks, c.req.n_target, 1, table, target);
    world w = world_make(&c, 2 * c.req.n_blocks);
    case_store(&w, &c, table, 1);
    c.req.table = table;
    c.req.target = target;
    uint64_t before = cn_alloc_count();
    assert_int_equal(world_compress(&w, &c.req, 1), CN_OK);
    assert_int_equal(cn_alloc_count(), before);
    world_free(&w);
}

/* One query attends to one key only: all other weights underflow. None may be NaN or denormal. */
static void concentrated_attention_stays_finite(void **state)
{
    (void)state;
    golden_case c = *case_named("bundled later event");
    c.query_scale = 1e4f;
    uint32_t table[MAX_BLOCKS], target[MAX_BLOCKS];
    tables_make(IN_PLACE, c.req.n_blocks, c.req.n_target, 1, table, target);
    world w = world_make(&c, 2 * c.req.n_blocks);
    case_store(&w, &c, table, 1);
    for (uint32_t j = 0; j < c.d; j++) /* a zero key has no cosine */
        ((float *)w.pools.kv)[cn_kv_row(&w.pools.layout, 0, table[0], 0, 3, CN_KV_K) + j] = 0;
    c.req.table = table;
    c.req.target = target;
    assert_int_equal(world_compress(&w, &c.req, 1), CN_OK);
    for (uint32_t i = 0; i < c.n_kept; i++) {
        float f = w.pools.score[cn_kv_side(&w.pools.layout, 0, target[i / c.b], 0, i % c.b)];
        assert_true(isnormal(f) && f <= 1.0f);
    }
    size_t side = cn_kv_side(&w.pools.layout, 0, target[c.req.n_target - 1], 0, c.b - 1);
    uint64_t newest = c.n - 1;
    assert_int_equal(w.pools.origin[side], new_origin(&c, newest));
    world_free(&w);
}

/* ---- selection ---- */
static bool ranks_before(const float *s, uint32_t a, uint32_t b)
{
    bool a_nan = isnan(s[a]), b_nan = isnan(s[b]);
    if (a_nan || b_nan) return a_nan == b_nan ? a > b : b_nan;
    return s[a] > s[b] || (s[a] == s[b] && a > b);
}

/* For each target: a kept slot stays, else it receives the lowest kept slot behind the targets that
 * is not yet moved. */
static void check_filling(const uint32_t *kept, uint32_t k)
{
    uint32_t got[256], scratch[256], behind = 0;
    while (behind < k && kept[behind] < k) behind++;
    memcpy(got, kept, k * sizeof *got);
    cn_cpu_fill_holes(got, k, scratch);
    for (uint32_t i = 0; i < k; i++) {
        bool stays = false;
        for (uint32_t j = 0; j < k; j++) stays |= kept[j] == i;
        assert_int_equal(got[i], stays ? i : kept[behind++]);
    }
}

static void check_selection(const float *s, uint32_t n, uint32_t k)
{
    uint32_t bits[256], kept[256];
    cn_cpu_select_top(s, n, k, bits, kept);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t n_before = 0;
        for (uint32_t v = 0; v < n; v++) n_before += ranks_before(s, v, kept[i]);
        if (n_before >= k) fail_msg("slot %u is kept, and %u rank before it", kept[i], n_before);
        if (i > 0) assert_true(kept[i] > kept[i - 1]);
    }
    check_filling(kept, k);
}

static void selection_agrees_with_ranking(void **state)
{
    (void)state;
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-42f, -1e-42f, 1, -1};
    enum { N_ODD = sizeof odd / sizeof *odd };
    float s[256];
    for (uint64_t seed = 0; seed < 400; seed++) {
        uint32_t n = 1 + (uint32_t)(seed * 37 % 256);
        for (uint32_t v = 0; v < n; v++) {
            float x = draw(seed, JUNK, v);
            s[v] = seed % 4 == 0   ? x
                   : seed % 4 == 1 ? floorf(x * 3)
                   : seed % 4 == 2 ? odd[(uint32_t)((x + 1) / 2 * N_ODD)]
                                   : 7.0f;
        }
        check_selection(s, n, (uint32_t)(seed * 91 % (n + 1)));
        check_selection(s, n, n);
        check_selection(s, n, 1);
    }
}

static void ties_go_to_the_higher_slot(void **state)
{
    (void)state;
    const float s[8] = {2, 1, 1, 3, 1, 1, 0, -1};
    uint32_t bits[8], kept[8];
    cn_cpu_select_top(s, 8, 4, bits, kept);
    const uint32_t want[4] = {0, 3, 4, 5};
    assert_memory_equal(kept, want, sizeof want);
}

/* ---- table and errors ---- */
static void the_table_names_every_score_once(void **state)
{
    (void)state;
    size_t n_rows;
    const cn_score *rows = cn_score_table(&n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        assert_true(rows[i].applies && rows[i].cpu);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(rows[i].name, rows[j].name);
    }
}

static void assert_refused(const world *w, cn_compress_req r, const char *number)
{
    assert_int_equal(world_compress(w, &r, 1), CN_ERR_ARG);
    if (!strstr(cn_last_error(), number)) fail_msg("%s lacks %s", cn_last_error(), number);
}

static void faulty_requests_are_refused_with_the_numbers(void **state)
{
    (void)state;
    golden_case c = *case_named("bundled later event");
    uint32_t table[MAX_BLOCKS], target[MAX_BLOCKS];
    tables_make(IN_PLACE, c.req.n_blocks, c.req.n_target, 1, table, target);
    world w = world_make(&c, 2 * c.req.n_blocks);
    case_store(&w, &c, table, 1);
    c.req.table = table;
    c.req.target = target;
    const char *numbers[] = {"49",       "window of 0", "15", "slot 3: expected less than 3",
                             "8 target", "0 target",    "449", "tau", "full"};
    enum { N_FAULTS = sizeof numbers / sizeof *numbers };
    cn_compress_req faulty[N_FAULTS];
    for (int i = 0; i < N_FAULTS; i++) faulty[i] = c.req;
    faulty[0].params.window_tokens = 49;
    faulty[1].params.window_tokens = 0;
    faulty[2].position_end = 15;
    faulty[3].query_slot = 3;
    faulty[4].n_target = 8;
    faulty[5].n_target = 0;
    faulty[6].n_history = 449;
    faulty[7].params.redundancy_tau = 0;
    faulty[8].params.policy = CN_KV_FULL;
    for (int i = 0; i < N_FAULTS; i++) assert_refused(&w, faulty[i], numbers[i]);
    world lacking = w;
    lacking.pools.score = NULL;
    assert_refused(&lacking, c.req, "global");
    lacking = w;
    lacking.pools.q_window = NULL;
    assert_refused(&lacking, c.req, "observed queries");
    lacking = w;
    lacking.scratch_bytes--;
    assert_refused(&lacking, c.req, "448 slots");
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_score_agrees_with_its_reference),
        cmocka_unit_test(what_follows_a_slot_counts_with_it),
        cmocka_unit_test(events_keep_and_move_what_the_reference_keeps),
        cmocka_unit_test(moves_are_right_for_any_tables),
        cmocka_unit_test(blocks_of_other_requests_are_unchanged),
        cmocka_unit_test(requests_of_an_event_are_independent),
        cmocka_unit_test(rows_in_eight_bits_are_kept_as_their_values_are),
        cmocka_unit_test(events_work_without_side_arrays),
        cmocka_unit_test(an_event_allocates_nothing),
        cmocka_unit_test(concentrated_attention_stays_finite),
        cmocka_unit_test(selection_agrees_with_ranking),
        cmocka_unit_test(ties_go_to_the_higher_slot),
        cmocka_unit_test(the_table_names_every_score_once),
        cmocka_unit_test(faulty_requests_are_refused_with_the_numbers),
    };
    return cmocka_run_group_tests(tests, golden_load, golden_free);
}
