/* prompt.h - the prompt of a request as token ids.
 * Owner: none. Thread: that of the tokenizer and of the scratch text. Stage: 2. */
#ifndef CN_PROMPT_H
#define CN_PROMPT_H

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

/* Appends the token ids of a request's prompt: messages go through the chat template, text goes
 * through the tokenizer, tokens are copied. `scratch` is overwritten. vocab: the size of the
 * model's vocabulary. CN_ERR_ARG if the request is invalid. */
cn_status cn_prompt_tokens(cn_tokenizer *tokenizer, const cn_chat_template *chat, uint32_t vocab,
                           cn_buf *scratch, const cn_request_params *p, cn_tokens *out);

/* The member of a body that has the prompt: "messages" or "prompt". */
const char *cn_prompt_param(const cn_request_params *p);

#endif
