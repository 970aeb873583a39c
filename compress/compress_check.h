/* compress_check.h - the checks of a compression event that every backend makes before it runs one.
 * The backends share these checks, so that all give the same errors. Stage 3 of the path of a
 * request; thread: the engine's. */
#pragma once

#include "engine/ops.h"

CN_BEGIN_C

/* Checks shapes that do not depend on the request. CN_ERR_SHAPE when no event can run in p. */
cn_status cn_compress_check_shape(const cn_pools *p);

/* Checks one request of an event that needs scratch_bytes of scratch. CN_ERR_ARG names field and
 * value. */
cn_status cn_compress_check_request(const cn_compress_args *a, const cn_compress_req *r,
                                    size_t scratch_bytes);

CN_END_C
