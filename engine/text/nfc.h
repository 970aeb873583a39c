/* nfc.h - Unicode normalization form C, by utf8proc, for the text between added tokens.
 * Owner: cn_tokenizer. One thread at a time (the scratch buffers).
 *
 * utf8proc orders combining marks by repeated swaps, which is quadratic in the length of a run of
 * marks. A hostile text of a megabyte would block a server for minutes. Here a counting sort orders
 * the marks first, and utf8proc gets only the stretches that can change. Most text is copied or not
 * touched at all. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_nfc {
    int32_t *cps; /* [cap] one stretch, decomposed */
    size_t cap;
    cn_buf text;
} cn_nfc;

/* Normalizes s[0 .. n), well-formed UTF-8. *out is s itself if no stretch can change, else text
 * owned by w, valid until the next call. Zero-initialise w; free it with cn_nfc_free.
 * CN_ERR_MEMORY. */
cn_status cn_nfc_apply(cn_nfc *w, const char *s, size_t n, const char **out, size_t *n_out);
void cn_nfc_free_scratch(cn_nfc *w); /* all but the normalized text */
void cn_nfc_free(cn_nfc *w);

/* True if normalization never changes cp and never joins it to the character before it, so that
 * text may be cut before cp. It may be false for a code point that has this property. Public for
 * the test that checks every code point. */
bool cn_nfc_is_boundary(uint32_t cp);

/* True for scripts and marks newer than Unicode 9. Here nothing combines with them. */
bool cn_nfc_is_younger(uint32_t cp);
