/* detok.h - streaming decode: tokens in, whole UTF-8 characters out.
 * Owner: one per output stream. Thread: that of its caller.
 *
 * The concatenated output equals what the tokenizers package decodes from the whole list. Bytes
 * that are not UTF-8 become U+FFFD, one for each maximal invalid prefix (utf8.h). */
#pragma once

#include "engine/text/tokenizer.h"

typedef struct cn_detok {
    const cn_tokenizer *tokenizer; /* borrowed */
    bool skip_special;
    bool keeps_call_marks; /* set it after init: special tokens of call_marks.h are not skipped */
    uint8_t n_held; /* at most 3 between calls */
    char held[4];   /* the start of a character that the next token may complete */
} cn_detok;

void cn_detok_init(cn_detok *d, const cn_tokenizer *t, bool skip_special);

/* Appends the characters that token `id` completes. A special token adds nothing if skip_special is
 * set. An id without a token adds nothing. Allocates only if `out` lacks room: three bytes for each
 * byte of the token, and three more, are always enough. */
cn_status cn_detok_push(cn_detok *d, uint32_t id, cn_buf *out);

/* Appends U+FFFD if a character is incomplete, and resets the decoder. */
cn_status cn_detok_flush(cn_detok *d, cn_buf *out);
