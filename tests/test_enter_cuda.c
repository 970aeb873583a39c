/* test_enter_cuda.c - every function of a CUDA backend makes its own device current: each is called
 * on one backend while the device of another is current. tests/pair_check.sh runs this with the
 * runtime of tests/fake_cuda, which aborts at a call on the wrong device. On two GPUs a kernel on
 * the wrong device fails. Without two GPUs nothing is tested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/cuda_switches.h"
#include "engine/start/device_choice.h"

enum { BYTES = 4096 };
static cn_backend *pair[2];

static cn_status open_on(uint32_t device, cn_backend **out)
{
    const cn_cuda_backend_opts o = {.device = device,
                                    .memory_bytes = 256 << 20,
                                    .n_heads = 8,
                                    .n_kv_heads = 2,
                                    .head_dim = 64,
                                    .max_seqs = 8,
                                    .max_tokens = 64,
                                    .switches = &(cn_cuda_switches){.gemm = CN_CUDA_GEMM_LIBRARY}};
    return cn_backend_cuda_load(out, o);
}

/* Makes the device of the other backend current. */
static void leave(const cn_backend *be)
{
    cn_backend *other = pair[be == pair[0]];
    other->enter(other);
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        leave(be);                                                                                 \
        if ((call) != CN_OK) fail_msg("%s: %s", #call, cn_last_error());                           \
    } while (0)
#define CALL(call)                                                                                 \
    do {                                                                                           \
        leave(be);                                                                                 \
        call;                                                                                      \
    } while (0)

static void use_fences(cn_backend *be, cn_stream *s)
{
    cn_fence *plain = NULL, *from = NULL, *to = NULL;
    bool done = false;
    double seconds = -1;
    OK(be->fence_create(be, &plain));
    OK(be->timed_fence_create(be, &from));
    OK(be->timed_fence_create(be, &to));
    OK(be->fence_record(from, s));
    OK(be->fence_record(plain, s));
    OK(be->fence_record(to, s));
    OK(be->fence_wait(s, plain));
    OK(be->fence_sync(to));
    OK(be->fence_done(plain, &done));
    assert_true(done);
    OK(be->fence_seconds(from, to, &seconds));
    assert_true(seconds >= 0);
    CALL(be->fence_free(to));
    CALL(be->fence_free(from));
    CALL(be->fence_free(plain));
}

static void use_memory(cn_backend *be, cn_stream *s, uint16_t *memory)
{
    uint64_t planned = 0, used = 0;
    void *host = NULL;
    CALL(be->mem_usage(be, &planned, &used));
    assert_true(planned > 0 && used > 0);
    OK(be->host_alloc(be, BYTES, &host));
    memset(host, 7, BYTES);
    OK(be->mem_write(s, memory, host, BYTES));
    memset(host, 0, BYTES);
    OK(be->mem_read(s, host, memory, BYTES));
    OK(be->stream_sync(s));
    assert_int_equal(((char *)host)[BYTES - 1], 7);
    CALL(be->host_free(be, host));
}

/* The macro CUDA_OP makes all ops; one of them stands for the others. */
static void run_kernels(cn_backend *be, cn_stream *s, uint16_t *memory)
{
    const cn_dummy_fill_args fill = {.out = memory, .dtype = CN_BF16, .n = 64, .scale = 1};
    const cn_silu_mul_args op = {
        .out = memory, .gate_up = memory + 512, .n_tokens = 1, .intermediate = 64};
    cn_graph *graph = NULL;
    OK(be->dummy_fill(s, &fill));
    OK(be->mem_sum(s, memory, BYTES / 2, (uint64_t *)(void *)(memory + 1536)));
    OK(be->silu_mul(s, &op));
    OK(be->graph_begin(s));
    OK(be->silu_mul(s, &op));
    OK(be->graph_end(s, &graph));
    OK(be->graph_launch(s, graph));
    OK(be->stream_sync(s));
    CALL(be->graph_free(graph));
}

static void every_call_enters_its_device(void **state)
{
    (void)state;
    if (!pair[1]) return;
    for (uint32_t i = 0; i < 4; i++) {
        cn_backend *be = pair[i % 2];
        cn_stream *s = NULL;
        void *memory = NULL;
        OK(be->stream_create(be, i < 2 ? CN_PRIORITY_HIGH : CN_PRIORITY_LOW, &s));
        OK(be->mem_alloc(be, BYTES, &memory));
        use_fences(be, s);
        use_memory(be, s, memory);
        run_kernels(be, s, memory);
        CALL(be->mem_free(be, memory));
        CALL(be->stream_free(s));
    }
    cn_backend *be = pair[1];
    CALL(be->close(be));
    pair[1] = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_call_enters_its_device)};
    if (open_on(0, &pair[0]) != CN_OK || open_on(1, &pair[1]) != CN_OK)
        print_message("SKIPPED: no two GPUs: %s\n", cn_last_error());
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (pair[1]) pair[1]->close(pair[1]);
    if (pair[0]) pair[0]->close(pair[0]);
    return failed;
}
