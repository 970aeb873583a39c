/* op_cases.h - tests of the GPU's ops against their CPU twins: a table of cases, each drawn anew
 * for every seed, inputs that both sides hold exactly (bf16 values), and one figure for the error.
 *
 * A test file has a table and hands it to op_cases_main. Without a GPU, or without cinch-cuda.so,
 * all cases are skipped and the reason is printed. Arguments: [PATTERN [N]], a pattern of case
 * names and the most seeds of each (sanitizers are slow). Thread: main. */
#ifndef CN_TEST_OP_CASES_H
#define CN_TEST_OP_CASES_H

#include "engine/ops.h"
#include "tests/lib/paged_batch.h"

typedef struct op_env {
    cn_backend *cpu, *cuda;
    cn_stream *cpu_stream, *cuda_stream; /* of priority HIGH */
    cn_stream *cuda_side;                /* of priority LOW */
    test_rng rng;                        /* of the seed */
    char shape[160];                     /* the case says here what it drew */
    /* Of the whole run: choices between scores that were compared, and those where the GPU took the
     * other of two nearly equal scores. A case says what nearly equal is, counts both, and fails by
     * itself on any other difference. op_cases_main fails the run above OP_MOST_NEAR_TIES. */
    uint64_t n_decisions, n_near_ties;
} op_env;

#define OP_MOST_NEAR_TIES 1e-3 /* of the decisions */

typedef struct op_case {
    const char *name; /* the op, and what is special */
    uint32_t n_seeds;
    double tolerance; /* of the error that run returns; 0: exact */
    /* Draws shapes and inputs from e->rng, runs the op on both sides, returns the error. Frees what
     * it took. */
    double (*run)(op_env *e, uint32_t seed);
    cn_cuda_gemm_kind gemm; /* how the backend is to be opened */
    bool batch_invariant, portable;
} op_case;

int op_cases_main(const op_case *cases, size_t n, int argc, char **argv);

/* An array on both sides. floats: f32 on the CPU, `dtype` on the GPU. words: the same on both. */
typedef struct op_tensor {
    size_t n;
    cn_dtype dtype; /* on the GPU */
    void *cpu, *cuda;
} op_tensor;

op_tensor op_random(op_env *e, size_t n);              /* bf16 values in (-1, 1) */
op_tensor op_random_f32(op_env *e, size_t n);          /* f32 on both sides, in (-1, 1) */
op_tensor op_poison(op_env *e, size_t n, cn_dtype d);  /* NaN: outputs */
op_tensor op_floats(op_env *e, const float *values, size_t n, cn_dtype d); /* rounded to d */
op_tensor op_words(op_env *e, const void *words, size_t n); /* 32-bit */
void op_tensor_free(op_env *e, op_tensor *t);

/* Writes the CPU's side to the GPU's again. */
void op_send(op_env *e, const op_tensor *t);
/* Reads the GPU's side as f32 into out[n]. */
void op_read(op_env *e, const op_tensor *t, float *out);
/* The GPU's side as it is stored there. Free with cn_free. */
void *op_take(op_env *e, const op_tensor *t);

/* How far the GPU's side is from the CPU's: the larger of ||gpu - cpu|| / ||cpu|| and a tenth of
 * max |gpu - cpu| / rms(cpu). NaN equals NaN; on one side alone it is infinitely far. */
double op_error(op_env *e, const op_tensor *t);
/* The same of two arrays of the host. */
double op_error_of(const float *got, const float *want, size_t n);
/* Of the rows of d values, the largest ||gpu - cpu|| / ||cpu||; e->shape then names the row. NaN is
 * infinitely far from everything. */
double op_rows_error(op_env *e, const op_tensor *t, uint32_t d);
/* The same of one row of two arrays of the host. */
double op_row_error_of(const float *got, const float *want, uint32_t d);
/* 0 when the words of both sides are equal, else infinite. */
double op_words_error(op_env *e, const op_tensor *t);

/* A paged batch's arrays on the GPU (its pool is an op_tensor of the test's own). */
typedef struct op_batch {
    cn_batch_view view; /* device pointers */
    void *memory;
} op_batch;
op_batch op_batch_upload(op_env *e, const paged_batch *b);
void op_batch_free(op_env *e, op_batch *b);

/* Fails the test with cn_last_error() unless the call was CN_OK. */
#define OP_OK(call) op_ok((call), #call)
void op_ok(cn_status status, const char *call);

#endif
