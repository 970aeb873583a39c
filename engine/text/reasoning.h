/* reasoning.h - which output tokens are reasoning (<think> ... </think>), and the budget for them.
 * Owner: cn_output, one per sample. Thread: engine only. Allocates nothing.
 *
 *   BEFORE --- <think> ---> INSIDE --- </think> ---> AFTER
 *
 * Both tags are tokens of the vocabulary and are recognised by id. The same letters in other tokens
 * are text. A sample starts INSIDE if its prompt ends inside <think>: after the added token that
 * begins its last turn, the last tag is <think>. It starts AFTER if the prompt ends in </think>,
 * which templates write to turn thinking off. Else it starts INSIDE if the parser is
 * deepseek_r1. A tag without an arrow is text: </think> in BEFORE, or a second <think>.
 *
 * Budget: after `budget` tokens between the tags, the next token is forced to </think>, and the
 * model continues with its answer. If the vocabulary has no </think>, all output counts as
 * reasoning, and the sample ends when its budget is used up. */
#pragma once

#include "engine/options/options.h"
#include "engine/text/tokenizer.h"

/* How the model marks its reasoning, and whether reasoning is returned separately. One per
 * engine. */
typedef struct cn_output_reasoning {
    const cn_tokenizer *tokenizer; /* not owned */
    bool split;       /* true: reasoning is returned as such, without tags; false: as content */
    bool from_start;  /* output begins as reasoning, with or without an opening tag */
    int64_t open_id;  /* <think>, or -1 */
    int64_t close_id; /* </think>, or -1 */
} cn_output_reasoning;

/* Looks up the tags. `auto` splits if the vocabulary has both. CN_ERR_ARG if the vocabulary lacks
 * the tags of the named parser. */
cn_status cn_output_reasoning_choose(const cn_tokenizer *t, cn_opt_reasoning_parser parser,
                                     cn_output_reasoning *out);

typedef enum cn_reasoning_phase {
    CN_REASONING_BEFORE,
    CN_REASONING_INSIDE,
    CN_REASONING_AFTER
} cn_reasoning_phase;

typedef struct cn_reasoning {
    cn_output_reasoning rules;
    cn_reasoning_phase phase;
    int32_t budget; /* tokens, or -1 */
    uint32_t n_tokens; /* between the tags */
    bool truncated; /* the budget ended the reasoning */
} cn_reasoning;

void cn_reasoning_init(cn_reasoning *r, const cn_output_reasoning *rules, int32_t budget,
                       const uint32_t *prompt, uint32_t n_prompt);

/* The kind of a token. */
typedef enum cn_reasoning_part {
    CN_REASONING_TEXT, /* text of the current phase */
    CN_REASONING_OPEN, /* the tag that begins the reasoning */
    CN_REASONING_CLOSE /* the tag that ends the reasoning */
} cn_reasoning_part;

/* Adds one output token and returns its kind. */
cn_reasoning_part cn_reasoning_push(cn_reasoning *r, uint32_t token);

/* The token that must follow after n_pending more tokens, which are reasoning once the phase is
 * INSIDE; -1 if any token may follow. *after is the token after which alone it must follow, or
 * -1: with a budget of 0, the pending token may be the <think> that begins the reasoning. */
int32_t cn_reasoning_force(const cn_reasoning *r, uint32_t n_pending, int64_t *after);

/* True if the budget is used up and the vocabulary has no tag that ends the reasoning. */
bool cn_reasoning_exhausted(const cn_reasoning *r);
