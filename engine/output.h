/* output.h - one sample's output: takes tokens, gives text, reasoning, logprobs and the finish.
 *
 * Owner: cn_engine, one per sample. Thread: engine only. Stage 7 of the path of a request, after
 * sampling. The engine creates it when the sample first samples a token. Buffers are allocated at
 * creation and grow only when output that was not taken exceeds them.
 *
 *   token -> stop.c: does it end the sample? -> reasoning.c: reasoning, answer or tag?
 *         -> detok.c: whole characters -> stop.c: stop strings, held-back text -> cn_event
 *
 * The text of an EOS, a stop token or a stop string is omitted unless include_stop_str_in_output.
 * Stop strings are searched in reasoning and answer, including the tags. A match never spans a tag
 * that separates reasoning from content. If a stop string and another reason end the sample on the
 * same token, the stop string is reported. */
#pragma once

#include "engine/ops.h"
#include "engine/text/reasoning.h"
#include "engine/text/stop.h"

typedef struct cn_output cn_output;

typedef struct cn_output_opts {
    const cn_tokenizer *tokenizer; /* borrowed for the output's life */
    const cn_sampling *sampling;   /* checked (cn_sampling_check); copied where kept */
    const cn_stop_rules *stop;     /* of the request; borrowed for the output's life */
    cn_output_reasoning reasoning;
    bool finds_calls; /* special tokens that mark tool calls are text */
    const uint32_t *prompt; /* [n_prompt] searched for reasoning tags at its end; not kept */
    uint32_t n_prompt;
} cn_output_opts;

cn_status cn_output_create(cn_output **out, const cn_output_opts *o);
void cn_output_free(cn_output *o); /* NULL is fine */

/* Sets the constraints on the next token to sample: row->force_token, and *bans_apply (whether EOS
 * and stop tokens are banned). n_pending tokens before it are sampled but not yet pushed. The
 * thinking budget counts them as reasoning; the sample op itself detects whether the last of them
 * ended the reasoning (cn_sample_row.prev_row). */
void cn_output_row(const cn_output *o, uint32_t n_pending, cn_sample_row *row, bool *bans_apply);

/* Takes one sampled token. *finish is CN_FINISH_NONE while the sample continues; push no token
 * after another value. `lp` is required when logprobs are on, else ignored. */
cn_status cn_output_push(cn_output *o, uint32_t token, const cn_token_logprobs *lp,
                         cn_finish *finish);

/* Whether the next token is reasoning that a </think> will end; and whether it may be the <think>
 * that begins it. */
bool cn_output_reasons(const cn_output *o);
bool cn_output_may_reason(const cn_output *o);

/* Sets text, reasoning, their lengths, tokens, n_tokens, logprobs, finish, stop_reason, stop_token
 * and answer_at of *ev to the output since the last take. `finish` is how the sample ends, or
 * CN_FINISH_NONE; at the end, held-back text is delivered too. The pointers are valid until the
 * next push, take or free. */
void cn_output_take(cn_output *o, cn_finish finish, cn_event *ev);

/* Sets reasoning_tokens and thinking_truncated. */
void cn_output_usage(const cn_output *o, cn_usage *u);
