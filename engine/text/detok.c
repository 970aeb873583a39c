/* detok.c - streaming decode. See detok.h. */
#include "engine/text/detok.h"

#include "engine/base/utf8.h"
#include "engine/text/call_marks.h"

void cn_detok_init(cn_detok *d, const cn_tokenizer *t, bool skip_special)
{
    *d = (cn_detok){.tokenizer = t, .skip_special = skip_special};
}

/* Adds one byte to the held bytes and appends the characters that are now complete. If the byte
 * does not continue the held prefix, the prefix becomes U+FFFD, and the byte is then read on its
 * own. */
static cn_status push_byte(cn_detok *d, char byte, cn_buf *out)
{
    d->held[d->n_held++] = byte;
    while (d->n_held) {
        uint32_t cp;
        size_t len;
        cn_utf8_kind kind = cn_utf8_read(d->held, d->n_held, &cp, &len);
        if (kind == CN_UTF8_CUT) break;
        bool good = kind == CN_UTF8_CHAR;
        CN_TRY(cn_buf_add(out, good ? d->held : CN_UTF8_REPLACEMENT, good ? len : 3));
        d->n_held = (uint8_t)(d->n_held - len);
        memmove(d->held, d->held + len, d->n_held);
    }
    return CN_OK;
}

cn_status cn_detok_push(cn_detok *d, uint32_t id, cn_buf *out)
{
    const char *bytes;
    size_t n;
    bool special;
    if (!cn_tokenizer_token(d->tokenizer, id, &bytes, &n, &special)) return CN_OK;
    const bool is_kept = special && d->keeps_call_marks && cn_is_call_mark(bytes, n);
    if (special && d->skip_special && !is_kept) return CN_OK;
    for (size_t at = 0; at < n;) {
        size_t whole = d->n_held ? 0 : cn_utf8_valid_prefix(bytes + at, n - at);
        CN_TRY(cn_buf_add(out, bytes + at, whole));
        at += whole;
        if (at < n) CN_TRY(push_byte(d, bytes[at++], out));
    }
    return CN_OK;
}

cn_status cn_detok_flush(cn_detok *d, cn_buf *out)
{
    bool unfinished = d->n_held > 0;
    d->n_held = 0;
    return unfinished ? cn_buf_add(out, CN_UTF8_REPLACEMENT, 3) : CN_OK;
}
