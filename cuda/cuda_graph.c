/* cuda_graph.c - records the ops of a stream and launches them again as one graph. A recorded
 * launch keeps its programmatic dependency (launch.cuh), so kernels also overlap in a graph. */
#include "cuda/cuda_ops.h"

cn_status cn_cuda_graph_begin(cn_stream *s)
{
    cn_cuda_use(s->cuda);
    CN_CUDA(cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal));
    s->recording = true;
    return CN_OK;
}

cn_status cn_cuda_graph_end(cn_stream *s, cn_graph **out)
{
    *out = NULL;
    s->recording = false;
    cn_cuda_use(s->cuda);
    cudaGraph_t recorded = NULL;
    CN_CUDA(cudaStreamEndCapture(s->handle, &recorded));
    cn_graph *g = cn_calloc(1, sizeof *g);
    cudaError_t error = cudaErrorMemoryAllocation;
    if (g) error = cudaGraphInstantiate(&g->exec, recorded, 0);
    cudaGraphDestroy(recorded);
    if (error == cudaSuccess) error = cudaGraphUpload(g->exec, s->handle);
    if (error != cudaSuccess) {
        cn_cuda_graph_free(g);
        return cn_cuda_failed(error, "instantiating a graph");
    }
    *out = g;
    return CN_OK;
}

cn_status cn_cuda_graph_launch(cn_stream *s, cn_graph *g)
{
    cn_cuda_use(s->cuda);
    CN_CUDA(cudaGraphLaunch(g->exec, s->handle));
    return CN_OK;
}

void cn_cuda_graph_free(cn_graph *g)
{
    if (!g) return;
    if (g->exec) cudaGraphExecDestroy(g->exec);
    cn_free(g);
}
