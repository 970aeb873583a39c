/* stop.h - when a sample ends: EOS, stop tokens, length, repetition, stop strings.
 * Owner: cn_output, one cn_stop per sample; cn_engine_request, one cn_stop_rules. Thread: engine
 * only. Allocates only when created.
 *
 * Order and meaning are those of vLLM. Below min_tokens only the length ends a sample. From
 * min_tokens on, the order is EOS, stop tokens, length, repetition. A stop string in the text of
 * the last token overrides all of these. A stop string may begin in the text of the first
 * min_tokens tokens, but must end after it. Of several stop strings the one that ends first counts;
 * of those that end together, the longest. So the result does not depend on how the text was cut
 * into tokens. */
#pragma once

#include "engine/base/base.h"

/* What ends the samples of a request: shared by them, and read-only. */
typedef struct cn_stop_rules cn_stop_rules;
/* What one sample's output has of it so far. */
typedef struct cn_stop cn_stop;

typedef struct cn_stop_opts {
    const cn_sampling *sampling; /* checked (cn_sampling_check); its strings are borrowed */
    const uint32_t *eos;         /* [n_eos] copied; not used with ignore_eos */
    uint32_t n_eos;
    uint32_t max_output; /* tokens; at least 1 */
} cn_stop_opts;

cn_status cn_stop_rules_create(cn_stop_rules **out, const cn_stop_opts *o);
void cn_stop_rules_free(cn_stop_rules *r); /* NULL is fine */

/* The rules are borrowed. */
cn_status cn_stop_create(cn_stop **out, const cn_stop_rules *rules);
void cn_stop_free(cn_stop *s); /* NULL is fine */

/* Counts one output token and returns whether and why it ends the sample. */
cn_finish cn_stop_push_token(cn_stop *s, uint32_t token);

/* The stop_token_ids entry that ended the sample, or -1. */
int64_t cn_stop_token(const cn_stop *s);
/* True if EOS and stop tokens are banned for the token after n_pending more, because the sample is
 * below min_tokens. */
bool cn_stop_bans_apply(const cn_stop *s, uint32_t n_pending);

typedef struct cn_stop_match {
    size_t end;       /* bytes of the pushed text up to the end of the stop string */
    size_t length;    /* of the stop string, which may begin in earlier text */
    const char *text; /* the stop string; lives as long as the request's sampling */
} cn_stop_match;

/* Adds the text of the last token pushed. True if a stop string is complete: *match has the
 * details. */
bool cn_stop_push_text(cn_stop *s, const char *text, size_t n, cn_stop_match *match);
/* Number of bytes at the end of the text so far that may be the beginning of a stop string. They
 * start at a character, because stop strings do. */
size_t cn_stop_held(const cn_stop *s);
/* Forgets the text so far: no later match begins in it. */
void cn_stop_cut_text(cn_stop *s);
