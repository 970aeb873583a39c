/* compress_request.h - random requests of compression events, for tests of ops. Thread: any. */
#pragma once

#include "engine/ops.h"
#include "tests/lib/paged_batch.h"

/* Returns request i of an event on these pools, with n_blocks source blocks: any policy that has
 * events, any rule and valid parameters. The caller sets table and target. */
cn_compress_req compress_request_draw(test_rng *r, const cn_pools *p, uint32_t i,
                                      uint32_t n_blocks);
