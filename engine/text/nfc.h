/* nfc.h - Unicode normalization form C, by utf8proc, for the text between added tokens.
 * Owner: cn_tokenizer. One thread at a time (the scratch buffers).
 *
 * utf8proc orders combining marks by repeated swaps, quadratic in the length of a run of marks, so
 * a hostile text of a megabyte would hold a server for minutes. Here the marks are ordered by a
 * stable sort, and only the stretches that can change are handed on: most text is copied, or not
 * touched at all. */
#ifndef CN_NFC_H
#define CN_NFC_H

#include "engine/base.h"

typedef struct cn_nfc {
    int32_t *cps;   /* [cap] one stretch, decomposed */
    uint64_t *keys; /* [cap] sort keys of its marks */
    size_t cap;
    cn_buf text;
} cn_nfc;

/* Normalizes s[0 .. n), well-formed UTF-8. *out is s itself when nothing changes, else text owned
 * by w, valid until the next call. Zero-initialise w; cn_nfc_free ends it. */
cn_status cn_nfc_apply(cn_nfc *w, const char *s, size_t n, const char **out, size_t *n_out);
void cn_nfc_free(cn_nfc *w);

/* True when normalization never changes cp, nor joins it to what stands before it: text may be
 * cut before cp. Sound, not complete. Exposed for the test that proves it for every code point. */
bool cn_nfc_is_boundary(uint32_t cp);

/* True for scripts and marks younger than Unicode 9, with which nothing combines here. */
bool cn_nfc_is_younger(uint32_t cp);

#endif
