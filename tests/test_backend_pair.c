/* test_backend_pair.c - two CPU backends. The second one is threaded and acts as a second device.
 * Blocks are copied to it and back. Only fences order the copies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/backend_rig.h"

enum { LAYERS = 3, BLOCKS = 12, HEADS = 2, BLOCK_TOKENS = 64, DIM = 32, SLOTS = 2, WINDOW = 4 };

/* A backend and pools that have every plane. */
typedef struct device {
    cn_backend *be;
    cn_stream *stream;
    cn_pools pools;
    cn_planes planes;
} device;

static void *take(device *d, size_t bytes)
{
    void *p = NULL;
    if (d->be->mem_alloc(d->be, bytes, &p) != CN_OK) fail_msg("%s", cn_last_error());
    return p;
}

static device open_device(bool threaded)
{
    const cn_cpu_backend_opts o = {.n_threads = 2, .threaded = threaded};
    device d = {0};
    assert_int_equal(cn_backend_cpu_open(&d.be, &o), CN_OK);
    assert_int_equal(d.be->async, threaded);
    assert_int_equal(d.be->stream_create(d.be, CN_PRIORITY_HIGH, &d.stream), CN_OK);
    cn_kv_layout l = cn_kv_layout_make(LAYERS, BLOCKS, HEADS, BLOCK_TOKENS, DIM, CN_F32);
    l.draft_dim = l.draft_state = DIM;
    d.pools = (cn_pools){.layout = l,
                         .kv = take(&d, cn_kv_pool_bytes(&l)),
                         .score = take(&d, cn_kv_side_elems(&l) * sizeof(float)),
                         .origin = take(&d, cn_kv_side_elems(&l) * sizeof(uint32_t)),
                         .n_query_slots = SLOTS,
                         .window = WINDOW,
                         .n_heads = HEADS,
                         .act_dtype = CN_F32};
    d.pools.q_window = take(&d, (size_t)LAYERS * SLOTS * WINDOW * HEADS * DIM * sizeof(float));
    cn_digest *g = &d.pools.digest;
    g->labels = take(&d, BLOCKS * LAYERS * cn_block_plane_bytes(&l, CN_PLANE_LABELS));
    g->scales = take(&d, BLOCKS * LAYERS * cn_block_plane_bytes(&l, CN_PLANE_SCALES));
    g->bounds_16 = take(&d, BLOCKS * LAYERS * cn_block_plane_bytes(&l, CN_PLANE_BOUNDS_16));
    g->bounds_64 = take(&d, BLOCKS * LAYERS * cn_block_plane_bytes(&l, CN_PLANE_BOUNDS_64));
    d.pools.draft = take(&d, BLOCKS * cn_block_plane_bytes(&l, CN_PLANE_DRAFT));
    d.pools.state = take(&d, BLOCKS * cn_block_plane_bytes(&l, CN_PLANE_STATE));
    d.planes = cn_pools_planes(&d.pools);
    return d;
}

static void close_device(device *d)
{
    assert_int_equal(d->be->stream_sync(d->stream), CN_OK);
    d->be->stream_free(d->stream);
    for (int i = 0; i < CN_N_BLOCK_PLANES; i++) d->be->mem_free(d->be, d->planes.block[i].base);
    d->be->mem_free(d->be, d->pools.q_window);
    d->be->close(d->be);
}

/* Writes to every float of a block a number that encodes the block and a generation. */
static void fill_block(device *d, uint32_t block, uint32_t generation)
{
    for (int p = 0; p < CN_N_BLOCK_PLANES; p++)
        for (uint32_t layer = 0; layer < d->planes.block[p].n_layers; layer++) {
            const cn_plane *plane = &d->planes.block[p];
            float *x = (float *)(void *)cn_plane_at(plane, layer, block);
            for (size_t i = 0; i < plane->item_bytes / sizeof *x; i++)
                x[i] = (float)(generation * 1000 + block);
        }
}

static void expect_block(const device *d, uint32_t at, uint32_t block, uint32_t generation)
{
    for (int p = 0; p < CN_N_BLOCK_PLANES; p++)
        for (uint32_t layer = 0; layer < d->planes.block[p].n_layers; layer++) {
            const cn_plane *plane = &d->planes.block[p];
            const float *x = (const float *)(void *)cn_plane_at(plane, layer, at);
            for (size_t i = 0; i < plane->item_bytes / sizeof *x; i++)
                assert_true(x[i] == (float)(generation * 1000 + block));
        }
}

/* Each round writes a block, copies it to the second backend, and copies it from there to another
 * block of the first. A copy that ran before its fence would copy the content of an older round. */
static void blocks_go_to_the_pair_and_come_back(void **state)
{
    (void)state;
    enum { ROUNDS = 200 };
    device here = open_device(false), pair = open_device(true);
    cn_stream *back = NULL;
    cn_fence *written = NULL, *put = NULL, *fetched = NULL;
    assert_int_equal(here.be->stream_create(here.be, CN_PRIORITY_LOW, &back), CN_OK);
    assert_int_equal(here.be->fence_create(here.be, &written), CN_OK);
    assert_int_equal(pair.be->fence_create(pair.be, &put), CN_OK);
    assert_int_equal(here.be->fence_create(here.be, &fetched), CN_OK);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t block = round % 4;
        fill_block(&here, block, round);
        assert_int_equal(here.be->fence_record(written, here.stream), CN_OK);
        assert_int_equal(pair.be->fence_wait(pair.stream, written), CN_OK);
        cn_block_copy copy = {block, 11 - block};
        cn_copy_args a = {here.planes, pair.planes, {.blocks = &copy, .n_blocks = 1}};
        assert_int_equal(pair.be->copy_blocks(pair.stream, &a), CN_OK);
        copy = (cn_block_copy){99, 99}; /* the list may change once the call returns */
        assert_int_equal(pair.be->fence_record(put, pair.stream), CN_OK);
        assert_int_equal(here.be->fence_wait(back, put), CN_OK);
        cn_block_copy home = {11 - block, 4 + block};
        a = (cn_copy_args){pair.planes, here.planes, {.blocks = &home, .n_blocks = 1}};
        assert_int_equal(here.be->copy_blocks(back, &a), CN_OK);
        assert_int_equal(here.be->fence_record(fetched, back), CN_OK);
        assert_int_equal(here.be->fence_sync(fetched), CN_OK);
        expect_block(&here, 4 + block, block, round);
    }
    here.be->fence_free(fetched);
    pair.be->fence_free(put);
    here.be->fence_free(written);
    here.be->stream_free(back);
    close_device(&pair);
    close_device(&here);
}

static void check_item(const cn_plane *plane, uint32_t layer, uint32_t block, float value)
{
    const float *x = (const float *)(void *)cn_plane_at(plane, layer, block);
    for (size_t i = 0; i < plane->item_bytes / sizeof *x; i++) assert_true(x[i] == value);
}

/* A home space has K and V, and digests of its own. The plane of the dense layers has the first
 * layers only. */
static void puts_copy_k_and_v_and_the_layers_of_the_source(void **state)
{
    (void)state;
    enum { DENSE = 2, HOME_BLOCKS = 5 };
    device here = open_device(false), pair = open_device(true);
    const cn_kv_layout l =
        cn_kv_layout_make(DENSE, HOME_BLOCKS, HEADS, BLOCK_TOKENS, DIM, CN_F32);
    const cn_pools dense = {.layout = l, .kv = take(&here, cn_kv_pool_bytes(&l))};
    const cn_planes plane = cn_pools_planes(&dense);
    for (uint32_t b = 0; b < BLOCKS; b++) fill_block(&here, b, 1);
    for (uint32_t b = 0; b < BLOCKS; b++) fill_block(&pair, b, 2);
    const cn_block_copy puts[] = {{3, 4}, {7, 0}};
    const cn_copy_list list = {.blocks = puts, .n_blocks = 2};
    const cn_copy_args put = {cn_planes_kv(&here.planes, LAYERS), pair.planes, list};
    const cn_copy_args to_plane = {cn_planes_kv(&here.planes, DENSE), plane, list};
    assert_int_equal(pair.be->copy_blocks(pair.stream, &put), CN_OK);
    assert_int_equal(here.be->copy_blocks(here.stream, &to_plane), CN_OK);
    assert_int_equal(pair.be->stream_sync(pair.stream), CN_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t b = 0; b < BLOCKS; b++)
            for (int p = 0; p < CN_N_BLOCK_PLANES; p++) {
                const float put_here = b == 4 ? 1003 : b == 0 ? 1007 : (float)(2000 + b);
                if (layer >= pair.planes.block[p].n_layers) continue;
                check_item(&pair.planes.block[p], layer, b,
                             p == CN_PLANE_KV ? put_here : (float)(2000 + b));
            }
    for (uint32_t layer = 0; layer < DENSE; layer++)
        for (uint32_t b = 0; b < HOME_BLOCKS; b++)
            check_item(&plane.block[CN_PLANE_KV], layer, b, b == 4 ? 1003 : b == 0 ? 1007 : 0);
    here.be->mem_free(here.be, dense.kv);
    close_device(&pair);
    close_device(&here);
}

/* The list has more copies than one queue entry holds. They run in the order of the list. */
static void a_long_list_runs_in_order(void **state)
{
    (void)state;
    enum { COPIES = 150 };
    device pair = open_device(true);
    cn_block_copy chain[COPIES];
    fill_block(&pair, 0, 7);
    for (uint32_t i = 0; i < COPIES; i++)
        chain[i] = (cn_block_copy){i % BLOCKS, (i + 1) % BLOCKS};
    const cn_copy_args a = {pair.planes, pair.planes, {.blocks = chain, .n_blocks = COPIES}};
    assert_int_equal(pair.be->copy_blocks(pair.stream, &a), CN_OK);
    assert_int_equal(pair.be->stream_sync(pair.stream), CN_OK);
    for (uint32_t b = 0; b < BLOCKS; b++) expect_block(&pair, b, 0, 7);
    close_device(&pair);
}

static void there_are_as_many_streams_as_workers(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    cn_stream *streams[16];
    uint32_t n = 0;
    while (n < 16 && be->stream_create(be, CN_PRIORITY_LOW, &streams[n]) == CN_OK) n++;
    assert_in_range(n, 4, 15);
    assert_non_null(strstr(cn_last_error(), "streams"));
    be->stream_free(streams[1]);
    assert_int_equal(be->stream_create(be, CN_PRIORITY_LOW, &streams[1]), CN_OK);
    while (n > 0) be->stream_free(streams[--n]);
    backend_rig_close(be);
}

/* The engine reuses its host arrays as soon as mem_write on a HIGH stream has returned. */
static void host_memory_may_change_after_a_write(void **state)
{
    (void)state;
    device d = open_device(true);
    enum { N = 1 << 20 };
    uint32_t *host = cn_calloc(N, sizeof *host);
    uint32_t *memory = take(&d, N * sizeof *memory);
    for (uint32_t round = 1; round <= 8; round++) {
        for (uint32_t i = 0; i < N; i++) host[i] = round;
        assert_int_equal(d.be->mem_write(d.stream, memory, host, N * sizeof *host), CN_OK);
        memset(host, 0, N * sizeof *host);
        assert_int_equal(d.be->stream_sync(d.stream), CN_OK);
        for (uint32_t i = 0; i < N; i++) assert_int_equal(memory[i], round);
    }
    d.be->mem_free(d.be, memory);
    cn_free(host);
    close_device(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_go_to_the_pair_and_come_back),
        cmocka_unit_test(puts_copy_k_and_v_and_the_layers_of_the_source),
        cmocka_unit_test(a_long_list_runs_in_order),
        cmocka_unit_test(there_are_as_many_streams_as_workers),
        cmocka_unit_test(host_memory_may_change_after_a_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
