/* prompt.h - what a request asks with, as token ids. Stage 2 of a request's way.
 * Owner: none. Thread: that of the tokenizer and of the scratch text. */
#ifndef CN_PROMPT_H
#define CN_PROMPT_H

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

/* Appends the ids that a request's prompt becomes: messages through the chat template, text through
 * the tokenizer, tokens as they are. `scratch` is overwritten. vocab: of the model. CN_ERR_ARG when
 * the request is at fault. */
cn_status cn_prompt_tokens(cn_tokenizer *tokenizer, const cn_chat_template *chat, uint32_t vocab,
                           cn_buf *scratch, const cn_request_params *p, cn_tokens *out);

#endif
