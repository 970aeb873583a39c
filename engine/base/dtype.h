/* dtype.h - element types of tensors. A leaf, shared by C and CUDA C++. */
#pragma once

#include <stddef.h>

#ifdef __CUDACC__
#define CN_DTYPE_FN __host__ __device__ static inline
#else
#define CN_DTYPE_FN static inline
#endif

/* CN_E4M3: 1 sign, 4 exponent and 3 mantissa bits, no infinities; the largest value is 448. */
typedef enum cn_dtype { CN_F32, CN_BF16, CN_F16, CN_U32, CN_U8, CN_E4M3 } cn_dtype;

/* Bytes of one element. No default case: the compiler names a type that is missing here. */
CN_DTYPE_FN size_t cn_dtype_bytes(cn_dtype t)
{
    switch (t) {
    case CN_F32:
    case CN_U32: return 4;
    case CN_BF16:
    case CN_F16: return 2;
    case CN_U8:
    case CN_E4M3: return 1;
    }
    return 0;
}
