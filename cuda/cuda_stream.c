/* cuda_stream.c - streams, fences, and copies between host and device.
 *
 * mem_write copies through the stream's pinned chunks, in rotation. The caller's memory is free at
 * once, and a transfer overlaps the copy into the next chunk. The event of a chunk is done when the
 * device has read the chunk. With all chunks in flight the caller waits for the oldest; this
 * happens while weights are loaded, not in a step. Each stream has its own chunks, so a copy that
 * is queued behind a compression does not delay copies for the model. */

#include "cuda/cuda_ops.h"

/* ---- opening and closing ---- */

static cn_status staging_open(cn_cuda_staging *st, size_t chunk_bytes)
{
    void *pinned = NULL;
    CN_CUDA(cudaMallocHost(&pinned, CN_CUDA_STAGES * chunk_bytes));
    st->host = pinned;
    st->chunk_bytes = chunk_bytes;
    for (uint32_t i = 0; i < CN_CUDA_STAGES; i++)
        CN_CUDA(cudaEventCreateWithFlags(&st->done[i], cudaEventDisableTiming));
    return CN_OK;
}

static void staging_close(cn_cuda_staging *st)
{
    for (uint32_t i = 0; i < CN_CUDA_STAGES; i++)
        if (st->done[i]) cudaEventDestroy(st->done[i]);
    if (st->host) cudaFreeHost(st->host);
}

/* A backend beside the model's runs no products and no attention. */
static bool runs_model(const cn_cuda *c) { return c->opts.beside == 0; }

size_t cn_cuda_stream_bytes(const cn_cuda *c)
{
    const size_t n_high = c->opts.high_streams > 0 ? c->opts.high_streams : 1;
    const size_t of_model = cn_round_up(CN_CUDA_GEMM_SCRATCH_BYTES, CN_CUDA_ALIGN_BYTES) +
                            cn_round_up(c->attn_scratch_bytes, CN_CUDA_ALIGN_BYTES) +
                            cn_round_up(c->plain_bytes, CN_CUDA_ALIGN_BYTES);
    return (runs_model(c) ? n_high * of_model : 0) +
           (n_high + CN_CUDA_SIDE_STREAMS) *
               cn_round_up(c->select_scratch_bytes, CN_CUDA_ALIGN_BYTES);
}

static cn_status open_stream_parts(cn_stream *s, cn_priority priority)
{
    cn_cuda *c = s->cuda;
    const bool high = priority == CN_PRIORITY_HIGH;
    CN_CUDA(cudaStreamCreateWithPriority(&s->handle, cudaStreamNonBlocking,
                                         c->priority[priority]));
    CN_TRY(staging_open(&s->staging, high ? CN_CUDA_STAGE_BYTES : CN_CUDA_SIDE_STAGE_BYTES));
    CN_TRY(cn_cuda_arena_take(&c->arena, c->select_scratch_bytes, &s->select_scratch));
    CN_CUDA(cudaMemsetAsync(s->select_scratch, 0, c->select_scratch_bytes, s->handle));
    if (!high || !runs_model(c)) return CN_OK;
    CN_TRY(cn_cuda_arena_take(&c->arena, CN_CUDA_GEMM_SCRATCH_BYTES, &s->gemm_scratch));
    CN_TRY(cn_cuda_arena_take(&c->arena, c->attn_scratch_bytes, &s->attn_scratch));
    CN_CUDA(cudaMemsetAsync(s->attn_scratch, 0, c->attn_scratch_bytes, s->handle));
    if (c->plain_bytes > 0) CN_TRY(cn_cuda_arena_take(&c->arena, c->plain_bytes, &s->plain_rows));
    return CN_OK;
}

cn_status cn_cuda_stream_create(cn_backend *be, cn_priority priority, cn_stream **out)
{
    cn_cuda *c = be->ctx;
    *out = NULL;
    cn_stream *s = cn_calloc(1, sizeof *s);
    if (!s) return cn_fail(CN_ERR_MEMORY, "out of memory for a stream");
    s->cuda = c;
    c->n_streams++;
    cn_cuda_use(c);
    cn_status status = open_stream_parts(s, priority);
    if (status != CN_OK) {
        cn_cuda_stream_free(s);
        return status;
    }
    *out = s;
    return CN_OK;
}

void cn_cuda_stream_free(cn_stream *s)
{
    if (!s) return;
    cn_cuda *c = s->cuda;
    cn_cuda_use(c);
    if (s->handle) {
        cudaStreamSynchronize(s->handle);
        cudaStreamDestroy(s->handle);
    }
    staging_close(&s->staging);
    if (s->gemm_scratch) cn_cuda_arena_give(&c->arena, s->gemm_scratch);
    if (s->attn_scratch) cn_cuda_arena_give(&c->arena, s->attn_scratch);
    if (s->plain_rows) cn_cuda_arena_give(&c->arena, s->plain_rows);
    if (s->select_scratch) cn_cuda_arena_give(&c->arena, s->select_scratch);
    c->n_streams--;
    cn_free(s);
}

cn_status cn_cuda_stream_sync(cn_stream *s)
{
    cn_cuda_use(s->cuda);
    CN_CUDA(cudaStreamSynchronize(s->handle));
    return CN_OK;
}

/* ---- fences ---- */

static cn_status create_fence(cn_backend *be, unsigned flags, cn_fence **out)
{
    *out = NULL;
    cn_fence *f = cn_calloc(1, sizeof *f);
    if (!f) return cn_fail(CN_ERR_MEMORY, "out of memory for a fence");
    f->cuda = be->ctx;
    cn_cuda_use(f->cuda);
    cudaError_t error = cudaEventCreateWithFlags(&f->event, flags);
    if (error != cudaSuccess) {
        cn_free(f);
        return cn_cuda_failed(error, "creating a fence");
    }
    *out = f;
    return CN_OK;
}

cn_status cn_cuda_fence_create(cn_backend *be, cn_fence **out)
{
    return create_fence(be, cudaEventDisableTiming, out);
}

cn_status cn_cuda_timed_fence_create(cn_backend *be, cn_fence **out)
{
    return create_fence(be, cudaEventDefault, out);
}

cn_status cn_cuda_fence_seconds(cn_fence *from, cn_fence *to, double *seconds)
{
    float ms = 0;
    cn_cuda_use(from->cuda);
    CN_CUDA(cudaEventElapsedTime(&ms, from->event, to->event));
    *seconds = ms * 1e-3;
    return CN_OK;
}

void cn_cuda_fence_free(cn_fence *f)
{
    if (!f) return;
    cn_cuda_use(f->cuda);
    cudaEventDestroy(f->event);
    cn_free(f);
}

cn_status cn_cuda_fence_record(cn_fence *f, cn_stream *s)
{
    cn_cuda_use(s->cuda);
    CN_CUDA(cudaEventRecord(f->event, s->handle));
    return CN_OK;
}

cn_status cn_cuda_fence_wait(cn_stream *s, cn_fence *f)
{
    cn_cuda_use(s->cuda);
    CN_CUDA(cudaStreamWaitEvent(s->handle, f->event, 0));
    return CN_OK;
}

cn_status cn_cuda_fence_done(cn_fence *f, bool *done)
{
    cn_cuda_use(f->cuda);
    cudaError_t error = cudaEventQuery(f->event);
    *done = error != cudaErrorNotReady;
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return CN_OK;
    }
    return error == cudaSuccess ? CN_OK : cn_cuda_failed(error, "work before a fence");
}

cn_status cn_cuda_fence_sync(cn_fence *f)
{
    cn_cuda_use(f->cuda);
    CN_CUDA(cudaEventSynchronize(f->event));
    return CN_OK;
}

/* ---- copies ---- */

static cn_status refuse_recording(const cn_stream *s, const char *what)
{
    if (!s->recording) return CN_OK;
    return cn_fail(CN_ERR_DEVICE, "%s: not supported while a graph is recorded", what);
}

cn_status cn_cuda_stage_take(cn_stream *s, char **chunk)
{
    cn_cuda_staging *st = &s->staging;
    CN_TRY(refuse_recording(s, "a copy from the host"));
    cn_cuda_use(s->cuda);
    const uint32_t i = st->next % CN_CUDA_STAGES;
    CN_CUDA(cudaEventSynchronize(st->done[i]));
    *chunk = st->host + i * st->chunk_bytes;
    return CN_OK;
}

cn_status cn_cuda_stage_send(cn_stream *s, void *dst, size_t bytes)
{
    cn_cuda_staging *st = &s->staging;
    const uint32_t i = st->next++ % CN_CUDA_STAGES;
    CN_CUDA(cudaMemcpyAsync(dst, st->host + i * st->chunk_bytes, bytes, cudaMemcpyHostToDevice,
                            s->handle));
    CN_CUDA(cudaEventRecord(st->done[i], s->handle));
    return CN_OK;
}

cn_status cn_cuda_mem_write(cn_stream *s, void *dst, const void *host, size_t bytes)
{
    for (size_t at = 0, n; at < bytes; at += n) {
        char *chunk = NULL;
        n = bytes - at < s->staging.chunk_bytes ? bytes - at : s->staging.chunk_bytes;
        CN_TRY(cn_cuda_stage_take(s, &chunk));
        memcpy(chunk, (const char *)host + at, n);
        CN_TRY(cn_cuda_stage_send(s, (char *)dst + at, n));
    }
    return CN_OK;
}

cn_status cn_cuda_mem_read(cn_stream *s, void *host, const void *src, size_t bytes)
{
    CN_TRY(refuse_recording(s, "mem_read"));
    if (bytes == 0) return CN_OK;
    cn_cuda_use(s->cuda);
    CN_CUDA(cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, s->handle));
    return CN_OK;
}
