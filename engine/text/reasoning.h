/* reasoning.h - which output tokens are reasoning (<think> ... </think>), and the budget for them.
 * Owner: cn_output, one per sample. Thread: engine only. Allocates nothing.
 *
 *   BEFORE --- <think> ---> INSIDE --- </think> ---> AFTER
 *
 * Both tags are tokens of the vocabulary and are told by id; the same letters spelt out in other
 * tokens are text. A sample starts INSIDE when its prompt ends in an open <think>, or when the
 * parser is deepseek_r1; AFTER when the prompt ends in a closed one, as templates write it to turn
 * thinking off. Tags that no arrow consumes are text: a </think> nobody opened, a second <think>.
 *
 * Budget: when `budget` tokens between the tags are spent, the next token is made to be </think>
 * and the model goes on to its answer. In a vocabulary without </think> all output counts as
 * reasoning, and a spent budget ends the sample. */
#ifndef CN_REASONING_H
#define CN_REASONING_H

#include "engine/options/options.h"
#include "engine/text/tokenizer.h"

/* How the model marks its reasoning, and whether its text is set apart. One per engine. */
typedef struct cn_output_reasoning {
    bool split;       /* reasoning text leaves as reasoning, without tags; else all is content */
    bool from_start;  /* output begins as reasoning, opening tag or not */
    int64_t open_id;  /* <think>, or -1 */
    int64_t close_id; /* </think>, or -1 */
} cn_output_reasoning;

/* Looks the tags up. `auto` splits when the vocabulary has both. CN_ERR_ARG when a parser is named
 * whose tags the vocabulary lacks. */
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
    uint32_t n_tokens;
    bool truncated; /* the budget ended the reasoning */
} cn_reasoning;

void cn_reasoning_init(cn_reasoning *r, const cn_output_reasoning *rules, int32_t budget,
                       const uint32_t *prompt, uint32_t n_prompt);

/* What a token is. */
typedef enum cn_reasoning_part {
    CN_REASONING_TEXT, /* of the phase the reasoning is in */
    CN_REASONING_OPEN, /* the tag that began it */
    CN_REASONING_CLOSE /* the tag that ended it */
} cn_reasoning_part;

/* Takes in one output token. */
cn_reasoning_part cn_reasoning_push(cn_reasoning *r, uint32_t token);

/* The token that must come after n_pending more, all of them reasoning, or -1. */
int32_t cn_reasoning_force(const cn_reasoning *r, uint32_t n_pending);

/* Whether the budget is spent and there is no tag to end the reasoning with. */
bool cn_reasoning_exhausted(const cn_reasoning *r);

#endif
