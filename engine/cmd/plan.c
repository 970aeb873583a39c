/* plan.c - `cinch plan`: how much memory a model needs and how many requests run at once, from
 * config.json and the options alone, on the device that would run it. Reads no weights and
 * allocates no KV memory. A tokenizer that is there is checked.
 *
 * Expected tokens/s is an upper bound from two measurements of a fraction of a second. One is how
 * fast the backend's GEMM reads a weight matrix for one row. The other is how fast it multiplies
 * the matrix for as many rows as requests run at once. The model of a step is the GEMMs of all
 * parameters, plus one read at the first speed of all resident K and V, or of what the default
 * selector reads instead (engine/select/select_cost.h). Copies from a home are not counted. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "compress/policy.h"
#include "engine/checkpoint/quant.h"
#include "engine/checkpoint/retrieval_file.h"
#include "engine/cmd/command.h"
#include "engine/cmd/plan_gpu.h"
#include "engine/cmd/plan_home.h"
#include "engine/cmd/plan_select.h"
#include "engine/cmd/plan_shards.h"
#include "engine/engine_memory.h"
#include "engine/home/home.h"
#include "engine/text/tokenizer.h"

typedef struct plan_report {
    const cn_config *config;
    cn_model_config model;
    cn_start_plan start;
    cn_memory_plan memory; /* of start */
    cn_dtype matrix_dtype;
    uint32_t max_model_len;
    cn_kv_params kv;          /* of a request by default, as the engine completes it */
    uint32_t running;         /* such requests at once */
    uint32_t mean_tokens;     /* of such a request that has run half of its way */
    uint32_t resident_tokens; /* of these, on the device */
    cn_plan_selection selection;
    cn_device_choice device;
    cn_plan_home homes[CN_N_HOMES];
    double step_weight_bytes; /* that a step of `running` requests reads */
    double read_bytes_per_s, flops_per_s, tokens_per_s;
    cn_plan_shards shards;
} plan_report;

/* ---- measuring ---- */

/* 64 MiB in f32, on a device 512 MiB in bf16: more than any cache holds, and long enough that the
 * time to start a GEMM does not matter. */
enum { PROBE_COLS = 2048, PROBE_ROWS = 8192, PROBE_DEVICE_ROWS = 131072 };

/* Bytes of device memory for the weight, and n_rows rows of x and out, all in bf16. */
static uint64_t probe_bytes(uint32_t n_rows)
{
    const uint64_t elems = (uint64_t)PROBE_DEVICE_ROWS * PROBE_COLS +
                           (uint64_t)n_rows * (PROBE_DEVICE_ROWS + PROBE_COLS);
    return elems * sizeof(uint16_t) + 4096; /* the three arrays are aligned */
}

typedef struct probe {
    cn_backend *be;
    cn_stream *stream;
    uint32_t n_rows; /* of the weight */
    void *weight, *x, *out;
} probe;

/* Measures one GEMM of n_tokens rows: the best of three, after one that warms up. */
static cn_status time_gemm(const probe *p, uint32_t n_tokens, double *seconds)
{
    const cn_gemm_args a = {.out = p->out, .x = p->x, .weight = {.data = p->weight},
                            .n_tokens = n_tokens, .n = p->n_rows, .k = PROBE_COLS};
    cn_stream *s = p->stream;
    for (int i = 0; i < 4; i++) {
        const double began_s = cn_now_s();
        CN_TRY(p->be->gemm(s, &a));
        CN_TRY(p->be->stream_sync(s));
        const double took_s = cn_now_s() - began_s;
        if (i == 1 || (i > 1 && took_s < *seconds)) *seconds = took_s;
    }
    return CN_OK;
}

static cn_status measure_with(probe *p, plan_report *r)
{
    const size_t act_bytes = cn_dtype_bytes(p->be->act_dtype);
    const size_t weight_bytes =
        (size_t)p->n_rows * PROBE_COLS * cn_dtype_bytes(p->be->matrix_dtype);
    const uint32_t rows = cn_max_u32(r->running, 1);
    CN_TRY(p->be->mem_alloc(p->be, weight_bytes, &p->weight));
    CN_TRY(p->be->mem_alloc(p->be, rows * PROBE_COLS * act_bytes, &p->x));
    CN_TRY(p->be->mem_alloc(p->be, (size_t)rows * p->n_rows * act_bytes, &p->out));
    double one_s = 0, all_s = 0;
    CN_TRY(time_gemm(p, 1, &one_s));
    CN_TRY(time_gemm(p, rows, &all_s));
    r->read_bytes_per_s = (double)weight_bytes / one_s;
    r->flops_per_s = 2.0 * p->n_rows * PROBE_COLS * rows / all_s;
    return CN_OK;
}

static cn_status measure_plan(cn_backend *be, cn_stream *s, plan_report *r)
{
    probe p = {.be = be, .stream = s, .n_rows = be->mem_avail ? PROBE_DEVICE_ROWS : PROBE_ROWS};
    cn_status status = measure_with(&p, r);
    void *const memory[] = {p.weight, p.x, p.out};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (memory[i]) be->mem_free(be, memory[i]);
    CN_TRY(status);
    const double kv_bytes = cn_select_row_bytes(&r->selection.shape, &r->kv, r->mean_tokens) *
                            r->running;
    const double params = (double)cn_model_config_n_read(&r->model, 1); /* of a token */
    double weights_s = 2 * params * r->running / r->flops_per_s;
    /* An expert has so few rows that it is read for longer than it is multiplied. */
    if (r->model.experts.router.n_experts > 0)
        weights_s = fmax(weights_s, r->step_weight_bytes / r->read_bytes_per_s);
    r->tokens_per_s = r->running / (weights_s + kv_bytes / r->read_bytes_per_s);
    return CN_OK;
}

/* ---- the report ---- */

static uint32_t budget_tokens(const plan_report *r)
{
    return (uint32_t)cn_round_up(r->config->kv.budget_tokens, r->memory.block_tokens);
}

static cn_status load_plan_config(plan_report *r)
{
    const cn_config *c = r->config;
    cn_model_config *m = &r->model;
    CN_TRY(cn_model_config_load(m, c->model));
    CN_TRY(cn_quant_choose(m, c));
    CN_TRY(cn_retrieval_describe(m, c));
    CN_TRY(cn_start_check_model(c, m));
    r->max_model_len = cn_start_max_model_len(c, m);
    return CN_OK;
}

/* A plan does not need a tokenizer.json, but an engine would reject one that is not supported. */
static cn_status check_tokenizer(const cn_config *c)
{
    cn_tokenizer *tokenizer;
    cn_buf path = {0};
    CN_TRY(cn_buf_addf(&path, "%s/tokenizer.json", c->model));
    const bool is_there = access(path.data, F_OK) == 0;
    cn_buf_free(&path);
    if (!is_there && !c->tokenizer) return CN_OK;
    CN_TRY(cn_tokenizer_load(&tokenizer, c->tokenizer ? c->tokenizer : c->model));
    cn_tokenizer_free(tokenizer);
    return CN_OK;
}

/* Rejects what an engine would reject although its memory can be planned. Completes r->kv. */
static cn_status check_start(plan_report *r)
{
    cn_config known = *r->config; /* borrows the strings */
    known.max_model_len = r->max_model_len;
    CN_TRY(cn_config_validate(&known, CN_SECTION_ENGINE));
    CN_TRY(cn_start_check_selectors(&known, &r->model, r->memory.block_tokens));
    CN_TRY(cn_home_check_start(&known));
    r->kv = known.kv;
    return cn_home_check_kv(&known, &r->kv, r->memory.block_tokens,
                            cn_policy_most_queries(&r->kv));
}

/* How many requests run at once by default, and how much of each is resident. */
static void count_plan_requests(plan_report *r)
{
    const cn_memory_plan *m = &r->memory;
    const bool away = cn_kv_is_away(&r->kv);
    const bool capped = cn_policy_of(r->kv.policy)->keep != CN_KEEP_ALL;
    const uint32_t n_max = cn_away_n_max(&r->kv, m->block_tokens);
    /* A request whose KV is all kept holds half its final length on average. */
    const uint32_t half_tokens = cn_max_u32(m->max_request_tokens / 2, 1);
    r->running = capped ? m->concurrency_capped : m->concurrency_full;
    if (away)
        r->running =
            cn_min_u32(r->running, cn_plan_home_longest(m, r->kv.home, r->max_model_len));
    r->running = cn_max_u32(r->running, 1);
    r->resident_tokens = half_tokens;
    if (capped) r->resident_tokens = cn_min_u32((n_max - 1) * m->block_tokens, r->max_model_len);
    if (away) r->resident_tokens = cn_min_u32(r->resident_tokens, half_tokens);
    r->mean_tokens = away ? half_tokens : r->resident_tokens;
}

/* s NULL: nothing is measured. */
static cn_status fill_plan(plan_report *r, cn_backend *be, cn_stream *s)
{
    const cn_config *c = r->config;
    CN_TRY(cn_engine_plan_make(&r->start, c, &r->model, be, NULL));
    r->memory = r->start.kv;
    CN_TRY(check_start(r));
    count_plan_requests(r);
    r->step_weight_bytes = (double)cn_planner_weight_bytes(&r->model, be, r->running);
    r->matrix_dtype = be->matrix_dtype;
    cn_plan_selection_make(&r->selection, c, &r->model, &r->start, be);
    if (s) CN_TRY(measure_plan(be, s, r));
    for (int h = 0; h < CN_N_HOMES; h++)
        cn_plan_home_make(&r->homes[h], c, &r->model, &r->start, (cn_kv_home)h, be,
                          r->read_bytes_per_s);
    return CN_OK;
}

static void print_bytes(const char *what, uint64_t n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)n;
    size_t u = 0;
    for (; x >= 1024 && u + 1 < sizeof units / sizeof *units; u++) x /= 1024;
    printf("%-12s %.*f %s", what, u ? 1 : 0, x, units[u]);
}

static void print_concurrency(const plan_report *r)
{
    const cn_memory_plan *p = &r->memory;
    printf("%-12s %u requests of %u tokens at once, full KV, without preemption",
           "concurrency", p->concurrency_full, r->max_model_len);
    if (p->max_request_tokens < r->max_model_len)
        printf("; the longest request that fits alone has %u tokens", p->max_request_tokens);
    printf("\n");
    if (p->n_max_blocks && cn_config_away(r->config))
        printf("%-12s %u requests of any output length with the largest cap (%u blocks each)\n", "",
               p->concurrency_capped, p->n_max_blocks);
    else if (p->n_max_blocks)
        printf("%-12s %u requests of any output length at budget %u (%u blocks each)\n", "",
               p->concurrency_capped, budget_tokens(r), p->n_max_blocks);
    if (r->tokens_per_s <= 0) return;
    printf("%-12s about %.0f tokens/s at most, %u requests of %u resident tokens\n", "expected",
           r->tokens_per_s, r->running, r->resident_tokens);
    printf("%-12s measured now: reading %.1f GB/s, multiplying %.1f GFLOP/s\n", "",
           r->read_bytes_per_s / 1e9, r->flops_per_s / 1e9);
}

/* Bytes of device memory except weights and KV. */
static uint64_t workspace_bytes(const plan_report *r)
{
    return cn_start_part_bytes(&r->start, CN_PART_WORKSPACE) +
           cn_start_part_bytes(&r->start, CN_PART_STEPS);
}

static uint32_t n_layers_with_experts(const cn_model_config *m)
{
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < m->n_layers; layer++)
        n += cn_model_config_layer(m, layer).mlp == CN_MLP_EXPERTS;
    return n;
}

static void print_experts(const plan_report *r)
{
    const cn_model_config *m = &r->model;
    const cn_router *router = &m->experts.router;
    if (router->n_experts == 0) return;
    printf("%-12s %u of %u for a token in %u layers, %.1f M parameters of a token; a step of %u "
           "requests reads %.1f of them, %.1f GiB of weights\n",
           "experts", router->n_used, router->n_experts, n_layers_with_experts(m),
           (double)cn_model_config_n_read(m, 1) / 1e6, r->running,
           cn_model_config_experts_read(m, r->running),
           r->step_weight_bytes / (1024.0 * 1024 * 1024));
}

/* null for a model without experts. */
static json_t *experts_json(const plan_report *r)
{
    const cn_model_config *m = &r->model;
    const cn_router *router = &m->experts.router;
    if (router->n_experts == 0) return json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "experts",
                     (json_int_t)router->n_experts, "experts_per_token",
                     (json_int_t)router->n_used, "layers", (json_int_t)n_layers_with_experts(m),
                     "parameters_per_token", (json_int_t)cn_model_config_n_read(m, 1), "requests",
                     (json_int_t)r->running, "experts_read",
                     cn_model_config_experts_read(m, r->running), "step_weight_bytes",
                     r->step_weight_bytes);
}

static void print_table(const plan_report *r)
{
    const cn_model_config *m = &r->model;
    const cn_memory_plan *p = &r->memory;
    printf("%-12s %s, %.1f M parameters: %u layers, hidden %u, %u query and %u kv heads of %u\n",
           "model", m->architecture, (double)cn_model_config_n_params(m) / 1e6, m->n_layers,
           m->hidden, m->n_heads, m->n_kv_heads, m->head_dim);
    print_experts(r);
    printf("%-12s %s\n", "device", r->device.why);
    print_bytes("weights", cn_start_part_bytes(&r->start, CN_PART_WEIGHTS));
    printf(" in %s%s\n", m->quant.fp8 ? "e4m3 (layers) and " : "",
           r->matrix_dtype == CN_F32 ? "f32" : "bf16");
    print_bytes("workspace", workspace_bytes(r));
    printf(", steps of %u tokens and %u requests\n", r->config->max_num_batched_tokens,
           r->config->max_num_seqs);
    print_bytes("kv cache", p->n_blocks * p->block_bytes);
    printf(", N_total = %u blocks of %u tokens, %llu bytes each\n", p->n_blocks, p->block_tokens,
           (unsigned long long)p->block_bytes);
    if (p->n_query_slots) {
        print_bytes("queries", p->n_query_slots * p->query_slot_bytes);
        printf(", M = %u slots of %u queries, %llu bytes each\n", p->n_query_slots,
               p->window_tokens, (unsigned long long)p->query_slot_bytes);
    }
    print_bytes("total", cn_start_plan_bytes(&r->start));
    printf("\n");
    if (p->swap_bytes) {
        print_bytes("swap space", p->swap_bytes);
        printf(" of host memory, %u blocks and %u windows: %u requests at budget %u\n",
               p->n_swap_blocks, p->n_swap_windows, p->n_swap_requests, budget_tokens(r));
    }
    print_concurrency(r);
    cn_plan_selection_print(&r->selection);
    for (int h = 0; h < CN_N_HOMES; h++) cn_plan_home_print(&r->homes[h]);
    cn_plan_batches_print(p, r->max_model_len, r->config->max_num_seqs);
    cn_plan_auto_print(p, r->max_model_len, r->config->max_num_seqs);
    cn_plan_shards_print(&r->shards, r->config);
}

/* null when nothing was measured. */
static json_t *measured_json(double x) { return x > 0 ? json_real(x) : json_null(); }

/* The declared homes besides the device. */
static json_t *homes_json(const plan_report *r)
{
    json_t *list = json_array();
    for (int h = 0; h < CN_N_HOMES; h++)
        if (r->homes[h].plan.n_blocks > 0)
            json_array_append_new(list, cn_plan_home_json(&r->homes[h]));
    return list;
}

static cn_status print_json(const plan_report *r)
{
    const cn_model_config *m = &r->model;
    const cn_memory_plan *p = &r->memory;
    json_t *json = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "architecture", m->architecture, "parameters", (json_int_t)cn_model_config_n_params(m),
        "weight_bytes", (json_int_t)cn_start_part_bytes(&r->start, CN_PART_WEIGHTS),
        "workspace_bytes", (json_int_t)workspace_bytes(r), "kv_bytes",
        (json_int_t)p->kv_bytes, "block_size", (json_int_t)p->block_tokens, "block_bytes",
        (json_int_t)p->block_bytes, "num_blocks", (json_int_t)p->n_blocks, "query_slots",
        (json_int_t)p->n_query_slots, "query_slot_bytes",
        (json_int_t)p->query_slot_bytes, "max_blocks_per_request", (json_int_t)p->n_max_blocks,
        "max_model_len", (json_int_t)r->max_model_len, "max_request_tokens",
        (json_int_t)p->max_request_tokens, "concurrency_full", (json_int_t)p->concurrency_full,
        "concurrency_capped", (json_int_t)p->concurrency_capped, "swap_bytes",
        (json_int_t)p->swap_bytes, "swap_requests", (json_int_t)p->n_swap_requests,
        "read_bytes_per_s",
        measured_json(r->read_bytes_per_s), "flops_per_s", measured_json(r->flops_per_s),
        "expected_tokens_per_s", measured_json(r->tokens_per_s), "selection",
        cn_plan_selection_json(&r->selection), "homes", homes_json(r),
        "home_batches", cn_plan_batches_json(p, r->max_model_len, r->config->max_num_seqs),
        "home_auto", cn_plan_auto_json(p, r->max_model_len, r->config->max_num_seqs),
        "experts", experts_json(r), "shards", cn_plan_shards_json(&r->shards));
    char *text = json ? json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(json);
    if (!text) return cn_fail(CN_ERR_MEMORY, "out of memory for the plan");
    puts(text);
    free(text);
    return CN_OK;
}

/* A plan for a GPU that is not here. Nothing can be measured. */
static cn_status plan_elsewhere(plan_report *r)
{
    const cn_config *c = r->config;
    cn_plan_gpu gpu;
    uint64_t cache_bytes;
    char cache[64] = "";
    CN_TRY(cn_home_check_start(c));
    cn_plan_gpu_init(&gpu, c, &r->model);
    CN_TRY(cn_plan_gpu_take_cache(&gpu, c, &r->model, &cache_bytes));
    if (cache_bytes > 0)
        snprintf(cache, sizeof cache, ", %.1f GiB of that for the cache device",
                 cn_gib(cache_bytes));
    snprintf(r->device.why, sizeof r->device.why,
             "a GPU of %.1f GiB (--gpu-memory), %.0f %% of it used%s, %d MiB assumed for the "
             "driver; not measured",
             cn_gib(c->gpu_memory), 100 * (double)c->gpu_memory_utilization, cache,
             CN_PLAN_CONTEXT_MIB);
    CN_TRY(cn_backend_check_kv(&gpu.backend, c, &r->model));
    CN_TRY(cn_backend_check_fp8(&gpu.backend, &r->model));
    CN_TRY(cn_backend_check_latent(&gpu.backend, &r->model));
    return fill_plan(r, &gpu.backend, NULL);
}

/* What an engine opens before it plans, in the same order: all of it takes device memory. */
typedef struct devices {
    cn_homes homes;
    cn_backend *be;
    cn_stream *stream, *event_stream;
} devices;

static cn_status open_devices(devices *d, plan_report *r)
{
    const cn_config *c = r->config;
    CN_TRY(cn_home_check_start(c));
    CN_TRY(cn_home_open(&d->homes, c, &r->model));
    CN_TRY(cn_engine_open_backend(&d->be, c, &r->model, probe_bytes(c->max_num_seqs),
                                  &r->device));
    CN_TRY(d->be->stream_create(d->be, CN_PRIORITY_HIGH, &d->stream));
    CN_TRY(d->be->stream_create(d->be, CN_PRIORITY_LOW, &d->event_stream));
    return cn_home_open_beside(&d->homes, c, d->be);
}

static void close_devices(devices *d)
{
    cn_home_free(&d->homes);
    if (d->event_stream) d->be->stream_free(d->event_stream);
    if (d->stream) d->be->stream_free(d->stream);
    cn_home_close(&d->homes, d->be);
    if (d->be) d->be->close(d->be);
}

static cn_status plan_here(plan_report *r)
{
    devices d = {0};
    cn_status status = open_devices(&d, r);
    if (status == CN_OK) status = fill_plan(r, d.be, d.stream);
    close_devices(&d);
    return status;
}

/* The time of a step as measured, or about that of an 8B model with 2,048 tokens a request on an
 * H200. */
static cn_status plan_shards(plan_report *r)
{
    enum { START_S = 90 };
    cn_shard_model *m = &r->shards.model;
    if (r->config->plan_lines == 0) return CN_OK;
    *m = (cn_shard_model){.slots = cn_min_u32(r->running, r->config->max_num_seqs),
                          .base_s = 6e-3, .each_s = 75e-6, .start_s = START_S};
    if (r->tokens_per_s > 0) {
        const double step_s = r->running / r->tokens_per_s;
        m->base_s = fmin(r->step_weight_bytes / r->read_bytes_per_s, step_s);
        m->each_s = (step_s - m->base_s) / r->running;
        m->measured = true;
    }
    return cn_plan_shards_make(&r->shards, r->config, r->max_model_len);
}

static cn_status print_plan(plan_report *r)
{
    const cn_config *c = r->config;
    CN_TRY(load_plan_config(r));
    CN_TRY(check_tokenizer(c));
    CN_TRY(c->gpu_memory ? plan_elsewhere(r) : plan_here(r));
    CN_TRY(plan_shards(r));
    if (c->json) return print_json(r);
    print_table(r);
    return CN_OK;
}

static cn_status plan(const cn_config *c)
{
    plan_report r = {.config = c};
    const cn_status status = print_plan(&r);
    cn_plan_shards_free(&r.shards);
    return status;
}

int cn_cmd_plan(int argc, char **argv)
{
    int exit_code;
    cn_config *c = cn_command_begin(argc, argv, NULL, &exit_code);
    if (!c) return exit_code;
    cn_status status = plan(c);
    cn_config_free(c);
    return cn_command_end("plan", status);
}
