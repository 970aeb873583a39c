/* prompt.h - the prompt of a request as token ids.
 * Owner: none. Thread: that of the tokenizer and of the scratch text. Stage: 2. */
#ifndef CN_PROMPT_H
#define CN_PROMPT_H

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

/* What turns prompts into tokens. The pointers are borrowed. */
typedef struct cn_prompt_maker {
    cn_tokenizer *tokenizer;
    const cn_chat_template *chat; /* NULL: no messages */
    uint32_t vocab;               /* of the model */
    uint32_t max_model_len;       /* for CN_TRUNCATE_TO_ROOM; 0: no limit */
    cn_buf *scratch;              /* overwritten */
} cn_prompt_maker;

/* Appends the token ids of a request's prompt: messages go through the chat template, text goes
 * through the tokenizer, tokens are copied. CN_ERR_ARG if the request is invalid. */
cn_status cn_prompt_tokens(const cn_prompt_maker *m, const cn_request_params *p, cn_tokens *out);

/* The member of a body that has the prompt: "messages" or "prompt". */
const char *cn_prompt_param(const cn_request_params *p);

#endif
