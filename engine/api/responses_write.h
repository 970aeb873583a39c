/* responses_write.h - writes the body of /v1/responses piece by piece. Private to engine/api/.
 * Owner: the caller. Thread: the result's. Stage: 8. */
#pragma once

#include "engine/api/api_response.h"

/* What cn_api_result_write does for a response. */
cn_status cn_responses_write(const cn_api_result *r, cn_api_writer *w, cn_buf *out, size_t n_bytes,
                             bool *done);

/* Appends a response without output, with a status: "in_progress", or "failed" with an error, the
 * member `error`, which it takes over. */
cn_status cn_responses_write_empty(const cn_api_result *r, const cn_api_writer *w,
                                   const char *status, json_t *error, cn_buf *out);

/* The status of a response that has ended: "completed" or "incomplete". */
const char *cn_responses_status(const cn_api_result *r);

/* Appends the logprobs of tokens [*token, end), some of them, and moves *token; `first` is the
 * first of the array. */
cn_status cn_responses_write_logprobs(const cn_api_result *r, uint32_t digits, size_t first,
                                      size_t *token, size_t end, cn_buf *out);
