/* stop.h - when a sample ends: EOS, stop tokens, length, repetition, stop strings.
 * Owner: cn_output, one per sample. Thread: engine only. Allocates when created, never after.
 *
 * Order and meaning are vLLM's: below min_tokens nothing but the length ends a sample; then EOS,
 * stop tokens, length, repetition; a stop string in the text of the last token overrides all of
 * these. Stop strings are watched from the token after min_tokens on: a match may begin before it,
 * not end there. The stop string whose last byte comes first wins, of those that end together the
 * longest, so the result does not depend on how the text was cut into tokens. */
#ifndef CN_STOP_H
#define CN_STOP_H

#include "engine/base.h"

typedef struct cn_stop cn_stop;

typedef struct cn_stop_opts {
    const cn_sampling *sampling; /* checked (cn_sampling_check); copied */
    const uint32_t *eos;         /* [n_eos] copied; unused under ignore_eos */
    uint32_t n_eos;
    uint32_t max_output; /* tokens; at least 1 */
} cn_stop_opts;

cn_status cn_stop_create(cn_stop **out, const cn_stop_opts *o);
void cn_stop_free(cn_stop *s); /* NULL is fine */

/* Counts one output token and says whether it ends the sample. */
cn_finish cn_stop_push_token(cn_stop *s, uint32_t token);

/* The stop_token_ids entry that ended the sample, or -1. */
int64_t cn_stop_token(const cn_stop *s);
/* Whether EOS and stop tokens are barred from being the token after n_pending more: below
 * min_tokens. */
bool cn_stop_bans_apply(const cn_stop *s, uint32_t n_pending);

typedef struct cn_stop_match {
    size_t end;       /* bytes of the pushed text up to the end of the stop string */
    size_t length;    /* of the stop string: it may have begun in earlier text */
    const char *text; /* the stop string; lives as long as the cn_stop */
} cn_stop_match;

/* Text of the last token pushed. False while no stop string is complete. */
bool cn_stop_push_text(cn_stop *s, const char *text, size_t n, cn_stop_match *match);
/* Bytes at the end of the text so far that may yet turn out to begin a stop string. They start at
 * a character, since stop strings do. */
size_t cn_stop_held(const cn_stop *s);
/* Forgets the text so far: no match begins in it. */
void cn_stop_cut_text(cn_stop *s);

#endif
