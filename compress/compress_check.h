/* compress_check.h - the checks of a compression event that every backend makes before it runs one.
 * A leaf shared by the backends, so that all give the same errors. Stage 5 of a request's way;
 * thread: the engine's. */
#ifndef CN_COMPRESS_CHECK_H
#define CN_COMPRESS_CHECK_H

#include "engine/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CN_ERR_SHAPE when no event can run in these pools. */
cn_status cn_compress_check_shape(const cn_pools *p);

/* CN_ERR_ARG with the field and its value. Such a request needs scratch_bytes of scratch. */
cn_status cn_compress_check_request(const cn_compress_args *a, const cn_compress_req *r,
                                    size_t scratch_bytes);

#ifdef __cplusplus
}
#endif
#endif
