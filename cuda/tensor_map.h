/* tensor_map.h - tensor maps, which describe an array of bf16 to the bulk copies of compute
 * capability 9.0. A copy reads a box of the array into shared memory, in rows of CN_BOX_COLS values
 * in the 128-byte swizzle (attn_common.cuh, hopper.cuh). Thread: the engine's. */
#pragma once

#include <cuda.h>

#include "engine/base/base.h"

CN_BEGIN_C

enum {
    CN_BOX_COLS = 64,   /* bf16 values of a row of a box */
    CN_ROW_BYTES = 128, /* the same in bytes */
    CN_MAP_DIMS = 5     /* most dimensions */
};

/* An array of bf16, dimension 0 contiguous. Counts are of elements. */
typedef struct cn_map_shape {
    uint32_t n_dims; /* 2 to CN_MAP_DIMS */
    uint64_t size[CN_MAP_DIMS];
    uint64_t stride[CN_MAP_DIMS]; /* of dimensions from 1 on; [0] is not read */
    uint32_t box[CN_MAP_DIMS];    /* size of the box of a copy; [0] is CN_BOX_COLS */
} cn_map_shape;

/* Finds the driver's encoder. Call once at start. CN_ERR_DEVICE if the driver lacks it. */
cn_status cn_map_open(void);

/* Encodes the map of the array at `base`, which may be filled later. Call after cn_map_open. */
cn_status cn_map_encode(CUtensorMap *map, const void *base, const cn_map_shape *s);

CN_END_C
