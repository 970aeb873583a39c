/* tokens.h - a growable list of token ids. Depends on base.h alone; no shared state. */
#pragma once

#include "engine/base/base.h"

/* Zero-initialise; free with cn_tokens_free. To clear, set len to 0. */
typedef struct cn_tokens {
    uint32_t *ids;
    size_t len, cap;
} cn_tokens;

cn_status cn_tokens_add(cn_tokens *t, const uint32_t *ids, size_t n);
void cn_tokens_free(cn_tokens *t);
