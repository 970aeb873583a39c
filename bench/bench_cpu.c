/* bench_cpu.c - compares the CPU's ops with the speed of the machine, both measured in one run.
 *
 *   build/bench/bench_cpu [--threads N] [--batch 32] [--kv 4096] [--repeats 31]
 *
 * GEMMs of the bundled model's shapes at one batch size, compared with plain sgemm of the same
 * shapes with as many threads as OpenBLAS prefers. Every layer has its own weights, as in a pass.
 * Decode attention over long contexts, compared with reading the same memory with the same threads.
 * The two sides of a ratio alternate and their medians are compared, so other load on the machine
 * affects both. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_util.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_simd.h"

enum { LAYERS = 6, HEADS = 8, KV_HEADS = 2, HEAD_DIM = 64, BLOCK_TOKENS = 64, MAX_REPEATS = 1001 };

typedef struct bench {
    cn_backend *be;
    cn_stream *stream;
    uint32_t threads, batch, kv_tokens, repeats;
} bench;

/* ---- GEMM ---- */

typedef struct gemm_shape {
    const char *name;
    uint32_t n, k, layers;
} gemm_shape;

static void run_ours(const bench *b, const gemm_shape *g, const float *x, const float *w,
                     float *out)
{
    for (uint32_t layer = 0; layer < g->layers; layer++) {
        cn_gemm_args a = {.out = out,
                          .x = x,
                          .weight = {.data = w + (size_t)layer * g->n * g->k},
                          .n_tokens = b->batch,
                          .n = g->n,
                          .k = g->k};
        bench_must(b->be->gemm(b->stream, &a));
    }
}

static void run_plain(const bench *b, const gemm_shape *g, const float *x, const float *w,
                      float *out)
{
    for (uint32_t layer = 0; layer < g->layers; layer++)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)b->batch, (blasint)g->n,
                    (blasint)g->k, 1.0f, x, (blasint)g->k, w + (size_t)layer * g->n * g->k,
                    (blasint)g->k, 0.0f, out, (blasint)g->n);
}

/* Adds the medians to total[0] (cinch) and total[1] (plain sgemm). */
static void bench_gemm(const bench *b, const gemm_shape *g, double total[2])
{
    static double ours[MAX_REPEATS], plain[MAX_REPEATS];
    float *x = bench_floats((size_t)b->batch * g->k, 1, 0.5f);
    float *out = bench_floats((size_t)b->batch * g->n, 2, 0.5f);
    float *w = bench_floats((size_t)g->layers * g->n * g->k, 3, 0.5f);
    for (uint32_t i = 0; i < b->repeats + 2; i++) { /* two rounds warm up */
        double start = cn_now_s();
        run_ours(b, g, x, w, out);
        double middle = cn_now_s();
        openblas_set_num_threads((int)b->threads);
        double resume = cn_now_s();
        run_plain(b, g, x, w, out);
        double end = cn_now_s();
        openblas_set_num_threads(1);
        if (i < 2) continue;
        ours[i - 2] = middle - start;
        plain[i - 2] = end - resume;
    }
    double flops = 2.0 * b->batch * g->n * g->k * g->layers;
    double t_ours = bench_median(ours, b->repeats), t_plain = bench_median(plain, b->repeats);
    printf("gemm %-8s %4u x %4u   %7.1f GFLOP/s   plain sgemm %7.1f   ratio %.2f\n", g->name, g->n,
           g->k, flops / t_ours * 1e-9, flops / t_plain * 1e-9, t_plain / t_ours);
    total[0] += t_ours;
    total[1] += t_plain;
    cn_free(w);
    cn_free(out);
    cn_free(x);
}

/* ---- attention ---- */

typedef struct read_job {
    const float *data;
    size_t n;
    uint32_t n_tasks;
    float *sums; /* [n_tasks]; without them the loads would be optimised away */
} read_job;

static void read_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    read_job *job = ctx;
    size_t step = 8 * CN_VEC, chunk = job->n / job->n_tasks / step * step;
    const float *p = job->data + task * chunk;
    cn_vec sum[8] = {0};
    for (size_t i = 0; i < chunk; i += step)
        for (size_t j = 0; j < 8; j++) sum[j] += cn_vec_load(p + i + j * CN_VEC);
    for (size_t j = 1; j < 8; j++) sum[0] += sum[j];
    job->sums[task] = cn_vec_sum(sum[0]);
}

typedef struct attn_bench {
    cn_batch_view view;
    cn_attn_args args;
    float *kv, *q, *out;
    size_t kv_elems;
    uint32_t *tables, *q_start, *kv_len;
} attn_bench;

static attn_bench make_attention(const bench *b)
{
    uint32_t per_seq = (uint32_t)cn_ceil_div(b->kv_tokens, BLOCK_TOKENS);
    attn_bench a = {0};
    cn_kv_layout layout =
        cn_kv_layout_make(1, b->batch * per_seq, KV_HEADS, BLOCK_TOKENS, HEAD_DIM, CN_F32);
    a.kv_elems = cn_kv_pool_elems(&layout);
    a.kv = bench_floats(a.kv_elems, 1, 0.5f);
    a.q = bench_floats((size_t)b->batch * HEADS * HEAD_DIM, 2, 0.5f);
    a.out = bench_floats((size_t)b->batch * HEADS * HEAD_DIM, 2, 0.5f);
    a.tables = cn_calloc((size_t)b->batch * per_seq, sizeof *a.tables);
    a.q_start = cn_calloc(b->batch + 1, sizeof *a.q_start);
    a.kv_len = cn_calloc(b->batch, sizeof *a.kv_len);
    for (uint32_t s = 0; s < b->batch; s++) {
        for (uint32_t i = 0; i < per_seq; i++) a.tables[s * per_seq + i] = i * b->batch + s;
        a.q_start[s + 1] = s + 1;
        a.kv_len[s] = b->kv_tokens;
    }
    a.view = (cn_batch_view){.n_tokens = b->batch,
                             .n_seqs = b->batch,
                             .n_decode = b->batch,
                             .q_start = a.q_start,
                             .kv_len = a.kv_len,
                             .tables = a.tables,
                             .table_stride = per_seq,
                             .max_q = 1,
                             .max_kv = b->kv_tokens};
    a.args = (cn_attn_args){
        .out = a.out, .q = a.q, .kv = a.kv, .layout = layout, .n_heads = HEADS, .scale = 0.125f};
    return a;
}

static double bench_attention(const bench *b)
{
    static double attention[MAX_REPEATS], reading[MAX_REPEATS];
    attn_bench a = make_attention(b);
    a.args.batch = &a.view;
    cn_stream *s = b->stream;
    read_job job = {a.kv, a.kv_elems, 8 * b->threads, bench_floats(8 * b->threads, 1, 0.5f)};
    for (uint32_t i = 0; i < b->repeats + 2; i++) {
        double start = cn_now_s();
        bench_must(b->be->attn_decode(s, &a.args));
        double middle = cn_now_s();
        cn_cpu_parallel(s, job.n_tasks, read_task, &job);
        double end = cn_now_s();
        if (i < 2) continue;
        attention[i - 2] = middle - start;
        reading[i - 2] = end - middle;
    }
    double bytes = (double)a.kv_elems * sizeof(float);
    double t_attention = bench_median(attention, b->repeats);
    double t_reading = bench_median(reading, b->repeats);
    printf(
        "attn decode   batch %u, %u tokens, %.0f MB   %6.2f GB/s   plain read %6.2f   ratio %.2f\n",
        b->batch, b->kv_tokens, bytes * 1e-6, bytes / t_attention * 1e-9, bytes / t_reading * 1e-9,
        t_reading / t_attention);
    cn_free(job.sums);
    cn_free(a.kv_len);
    cn_free(a.q_start);
    cn_free(a.tables);
    cn_free(a.out);
    cn_free(a.q);
    cn_free(a.kv);
    return t_reading / t_attention;
}

/* ---- arguments ---- */

static void read_options(bench *b, int argc, char **argv)
{
    const struct {
        const char *name;
        uint32_t *value, max;
    } options[] = {
        {"--threads", &b->threads, 1024},
        {"--batch", &b->batch, 4096},
        {"--kv", &b->kv_tokens, 1 << 20},
        {"--repeats", &b->repeats, MAX_REPEATS},
    };
    for (int i = 1; i < argc; i += 2) {
        bool known = false;
        for (size_t j = 0; j < sizeof options / sizeof *options; j++) {
            if (strcmp(argv[i], options[j].name) != 0 || i + 1 == argc) continue;
            unsigned long value = strtoul(argv[i + 1], NULL, 10);
            known = value >= 1 && value <= options[j].max;
            *options[j].value = (uint32_t)value;
        }
        if (!known) {
            fprintf(stderr, "usage: bench_cpu [--threads N] [--batch N] [--kv N] [--repeats N]\n");
            exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    bench b = {.threads = cn_cpu_count(), .batch = 32, .kv_tokens = 4096, .repeats = 31};
    read_options(&b, argc, argv);
    bench_must(cn_backend_cpu_open(&b.be, &(cn_cpu_backend_opts){.n_threads = b.threads}));
    bench_must(b.be->stream_create(b.be, CN_PRIORITY_HIGH, &b.stream));
    printf("%s on %s, %u threads, batch %u, medians of %u\n", openblas_get_config(),
           openblas_get_corename(), b.threads, b.batch, b.repeats);
    const gemm_shape shapes[] = {
        {"qkv", 768, 384, LAYERS},   {"o", 384, 512, LAYERS},   {"gate_up", 2048, 384, LAYERS},
        {"down", 384, 1024, LAYERS}, {"lm_head", 2048, 384, 1},
    };
    double total[2] = {0, 0};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) bench_gemm(&b, &shapes[i], total);
    double attention = bench_attention(&b);
    printf("gemm of a pass / plain sgemm %.2f (expected at least 0.70)\n", total[1] / total[0]);
    printf("attention / plain read %.2f (expected at least 0.50)\n", attention);
    b.be->stream_free(b.stream);
    b.be->close(b.be);
    return 0;
}
