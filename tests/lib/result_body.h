/* result_body.h - the body of a result as JSON. Thread: any. */
#pragma once

#include "engine/api/api_response.h"

/* Appends the text of the body, written in pieces of at most about n_bytes. */
void result_body_text(const cn_api_result *r, const char *id, const char *model, int64_t created,
                      size_t n_bytes, cn_buf *out);
/* The same, parsed. jansson reads no NUL in a key: it becomes U+FDD0. */
json_t *result_body(const cn_api_result *r, const char *id, const char *model, int64_t created);
