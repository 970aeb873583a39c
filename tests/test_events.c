/* test_events.c - compression events in flight, over a backend that only counts: what is enqueued
 * in which order, when events are reported, and that a full ring waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "compress/events.h"

/* A record gives a fence a number. A fence is done when its number is at most `ran` of its
 * device. Streams 1 and 3 are the event streams of devices 0 and 1. */
struct cn_fence {
    uint32_t number, device;
};
struct cn_stream {
    uint32_t index;
};

typedef struct fake {
    cn_backend be;
    cn_stream streams[4];
    uint32_t second_recorded, second_ran; /* of device 1 */
    uint32_t recorded, ran; /* batches enqueued, batches that the device has finished */
    uint32_t n_fences, n_syncs, n_waits_for_model;
    uint32_t batch_sizes[64];
    bool fails;
    uint32_t reported[64], n_reported;
} fake;

static fake f;

static cn_status fence_create(cn_backend *be, cn_fence **out)
{
    (void)be;
    *out = cn_calloc(1, sizeof **out);
    f.n_fences++;
    return *out ? CN_OK : CN_ERR_MEMORY;
}

static void fence_free(cn_fence *fence)
{
    f.n_fences--;
    cn_free(fence);
}

static cn_status fence_record(cn_fence *fence, cn_stream *s)
{
    fence->device = s->index / 2;
    if (s->index % 2 == 1) fence->number = fence->device ? f.second_recorded : f.recorded;
    return CN_OK;
}

static cn_status fence_wait(cn_stream *s, cn_fence *fence)
{
    (void)fence;
    assert_int_equal(s->index % 2, 1);
    f.n_waits_for_model += s->index == 1;
    return CN_OK;
}

static cn_status fence_done(cn_fence *fence, bool *done)
{
    *done = fence->number <= (fence->device ? f.second_ran : f.ran);
    return CN_OK;
}

static cn_status stream_sync(cn_stream *s)
{
    if (s->index == 3) {
        f.second_ran = f.second_recorded;
        return CN_OK;
    }
    assert_int_equal(s->index, 1);
    f.n_syncs++;
    f.ran = f.recorded;
    return CN_OK;
}

static cn_status compress(cn_stream *s, const cn_compress_args *a)
{
    if (s->index == 3) {
        assert_int_equal(a->n_reqs, f.batch_sizes[f.second_recorded++]);
        return CN_OK;
    }
    assert_int_equal(s->index, 1);
    assert_int_equal(f.n_waits_for_model, f.recorded + 1); /* waits for the model's stream */
    if (f.fails) return cn_fail(CN_ERR_DEVICE, "the device is gone");
    f.batch_sizes[f.recorded++] = a->n_reqs;
    return CN_OK;
}

static void done(void *ctx, void *user)
{
    assert_ptr_equal(ctx, &f);
    f.reported[f.n_reported++] = *(const uint32_t *)user;
}

enum { MAX_BATCH_EVENTS = 3 };

static cn_events *create_on(uint32_t n_devices)
{
    f = (fake){.streams = {{0}, {1}, {2}, {3}},
               .be = {.fence_create = fence_create,
                      .fence_free = fence_free,
                      .fence_record = fence_record,
                      .fence_wait = fence_wait,
                      .fence_done = fence_done,
                      .stream_sync = stream_sync,
                      .compress = compress}};
    const cn_events_opts o = {
        .devices = {{.backend = &f.be, .model_stream = &f.streams[0], .stream = &f.streams[1]},
                    {.backend = &f.be, .model_stream = &f.streams[2], .stream = &f.streams[3]}},
        .n_devices = n_devices,
        .max_batch_events = MAX_BATCH_EVENTS,
        .done = done,
        .ctx = &f};
    cn_events *v = NULL;
    assert_int_equal(cn_events_create(&v, &o), CN_OK);
    return v;
}

static cn_events *create(void) { return create_on(1); }

static void destroy(cn_events *v)
{
    cn_events_free(v);
    assert_int_equal(f.n_fences, 0);
}

static const uint32_t names[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                   12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23,
                                   24, 25, 26, 27, 28, 29, 30, 31};

static void add(cn_events *v, uint32_t name)
{
    const cn_compress_req req = {.n_blocks = name};
    cn_events_add(v, &req, (void *)(uintptr_t)&names[name]);
}

static void a_batch_is_reported_when_its_fence_is_done(void **state)
{
    (void)state;
    cn_events *v = create();
    assert_int_equal(cn_events_start(v, 5), CN_OK); /* nothing was added */
    assert_false(cn_events_in_flight(v));
    assert_int_equal(f.recorded, 0);

    add(v, 1);
    add(v, 2);
    assert_int_equal(cn_events_start(v, 5), CN_OK);
    add(v, 3);
    assert_int_equal(cn_events_start(v, 6), CN_OK);
    assert_int_equal(f.batch_sizes[0], 2);
    assert_int_equal(f.batch_sizes[1], 1);

    assert_int_equal(cn_events_poll(v, 7), CN_OK);
    assert_int_equal(f.n_reported, 0);
    f.ran = 1;
    assert_int_equal(cn_events_poll(v, 8), CN_OK);
    assert_int_equal(f.n_reported, 2);
    assert_int_equal(f.reported[0], 1);
    assert_int_equal(f.reported[1], 2);
    assert_true(cn_events_in_flight(v));
    assert_int_equal(f.n_syncs, 0); /* polling never waits */

    assert_int_equal(cn_events_wait(v, 9), CN_OK);
    assert_int_equal(f.n_reported, 3);
    assert_false(cn_events_in_flight(v));
    const cn_event_stats *stats = cn_events_stats(v);
    assert_int_equal(stats->missed[3], 3); /* steps 5 to 8 for two, 6 to 9 for one */
    destroy(v);
}

static void a_full_ring_waits_for_the_oldest(void **state)
{
    (void)state;
    cn_events *v = create();
    for (uint32_t i = 0; i < 30; i++) {
        add(v, i);
        assert_int_equal(cn_events_start(v, i), CN_OK);
    }
    assert_int_equal(f.n_syncs, 1); /* only waiting finished an event */
    assert_int_equal(cn_events_wait(v, 100), CN_OK);
    assert_int_equal(f.n_reported, 30);
    for (uint32_t i = 0; i < 30; i++) assert_int_equal(f.reported[i], i);
    assert_int_equal(cn_events_stats(v)->missed[CN_MISSED_STEPS_MAX], 14);
    destroy(v);
}

/* An event is done when all ranks of a split model have run it. */
static void an_event_waits_for_all_devices(void **state)
{
    (void)state;
    for (uint32_t late = 0; late < 2; late++) {
        cn_events *v = create_on(2);
        add(v, 1);
        assert_int_equal(cn_events_start(v, 0), CN_OK);
        add(v, 2);
        assert_int_equal(cn_events_start(v, 0), CN_OK);
        *(late ? &f.ran : &f.second_ran) = 2;
        assert_int_equal(cn_events_poll(v, 1), CN_OK);
        assert_int_equal(f.n_reported, 0);
        *(late ? &f.second_ran : &f.ran) = 1;
        assert_int_equal(cn_events_poll(v, 2), CN_OK);
        assert_int_equal(f.n_reported, 1);
        assert_int_equal(cn_events_wait(v, 3), CN_OK);
        assert_int_equal(f.n_reported, 2);
        assert_int_equal(f.second_recorded, 2);
        destroy(v);
    }
}

static void a_failing_device_is_an_error(void **state)
{
    (void)state;
    cn_events *v = create();
    f.fails = true;
    add(v, 1);
    assert_int_equal(cn_events_start(v, 0), CN_ERR_DEVICE);
    destroy(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_is_reported_when_its_fence_is_done),
        cmocka_unit_test(a_full_ring_waits_for_the_oldest),
        cmocka_unit_test(an_event_waits_for_all_devices),
        cmocka_unit_test(a_failing_device_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
