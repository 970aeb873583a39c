/* output.h - one sample's output: tokens in, deliverable text, reasoning, logprobs and the end out.
 * Stage 3 of a request's way, after sampling.
 * Owner: cn_engine, one per sample. Thread: engine only. Buffers are reserved when created and
 * grow only when more is waiting to be taken than they hold.
 *
 *   token -> stop.c: does it end the sample? -> reasoning.c: reasoning, answer or tag?
 *         -> detok.c: whole characters -> stop.c: stop strings, held-back text -> cn_event
 *
 * The text of an EOS or a stop token is left out unless include_stop_str_in_output; so is a stop
 * string. Stop strings are looked for in reasoning and answer, tags included; none is found across
 * a tag that was set apart. A stop string overrides every other reason to end on the same token. */
#ifndef CN_OUTPUT_H
#define CN_OUTPUT_H

#include "engine/ops.h"
#include "engine/text/reasoning.h"

typedef struct cn_output cn_output;

typedef struct cn_output_opts {
    const cn_tokenizer *tokenizer; /* borrowed for the output's life */
    const cn_sampling *sampling;   /* checked (cn_sampling_check); copied where kept */
    const uint32_t *eos;           /* [n_eos] copied */
    uint32_t n_eos;
    uint32_t max_output; /* tokens; at least 1 */
    cn_output_reasoning reasoning;
    const uint32_t *prompt; /* [n_prompt] read for the tags it ends in; not kept */
    uint32_t n_prompt;
} cn_output_opts;

cn_status cn_output_create(cn_output **out, const cn_output_opts *o);
void cn_output_free(cn_output *o); /* NULL is fine */

/* What the output so far asks of the token after the next n_pending ones, which are sampled but
 * not yet pushed: row->force_token, and whether EOS and stop tokens are banned. With tokens pending
 * a thinking budget counts them as reasoning: the sample op itself sees whether the last of them
 * ended it (cn_sample_row.prev_row). */
void cn_output_row(const cn_output *o, uint32_t n_pending, cn_sample_row *row, bool *bans_apply);

/* Takes one sampled token. *finish is CN_FINISH_NONE while the sample goes on; no token may be
 * pushed after another value. `lp` is needed when logprobs were asked for, else ignored. */
cn_status cn_output_push(cn_output *o, uint32_t token, const cn_token_logprobs *lp,
                         cn_finish *finish);

/* Fills text, reasoning, their lengths, tokens, n_tokens, logprobs, finish, stop_reason, stop_token
 * and answer_at of *ev with what came since the last take. `finish`: how the sample ends, or
 * CN_FINISH_NONE; a sample that ends gives up its held-back text. The pointers are good until the
 * next push, take or free. */
void cn_output_take(cn_output *o, cn_finish finish, cn_event *ev);

/* Sets reasoning_tokens and thinking_truncated. */
void cn_output_usage(const cn_output *o, cn_usage *u);

#endif
