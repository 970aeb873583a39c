/* tensor_map.c - encodes tensor maps. See tensor_map.h. The encoder is a function of the driver. It
 * is looked up through the runtime, so that nothing links against libcuda. */
#include "cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "cuda/cuda_ops.h"

static PFN_cuTensorMapEncodeTiled_v12000 encode_tiled;

cn_status cn_map_open(void)
{
    void *entry = NULL;
    enum cudaDriverEntryPointQueryResult found;
    CN_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                             cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || !entry)
        return cn_fail(CN_ERR_DEVICE, "the NVIDIA driver has no cuTensorMapEncodeTiled: update it");
    memcpy(&encode_tiled, &entry, sizeof entry);
    return CN_OK;
}

cn_status cn_map_encode(CUtensorMap *map, const void *base, const cn_map_shape *s)
{
    static const cuuint32_t steps[CN_MAP_DIMS] = {1, 1, 1, 1, 1};
    cuuint64_t stride_bytes[CN_MAP_DIMS - 1];
    CN_ASSERT(encode_tiled && s->n_dims >= 2 && s->n_dims <= CN_MAP_DIMS);
    for (uint32_t i = 1; i < CN_MAP_DIMS; i++)
        stride_bytes[i - 1] = s->stride[i] * sizeof(uint16_t);
    const CUresult result = encode_tiled(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, s->n_dims, (void *)(uintptr_t)base, s->size,
        stride_bytes, s->box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS) return CN_OK;
    return cn_fail(CN_ERR_DEVICE, "tensor map of %llu x %llu at %p: CUDA driver error %d",
                   (unsigned long long)s->size[1], (unsigned long long)s->size[0], base,
                   (int)result);
}
