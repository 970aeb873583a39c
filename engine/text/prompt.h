/* prompt.h - the prompt of a request as token ids.
 * Owner: none. Thread: that of the tokenizer and of the scratch text. Stage: 2. */
#pragma once

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

/* What turns prompts into tokens. The pointers are borrowed. */
typedef struct cn_prompt_maker {
    cn_tokenizer *tokenizer;
    const cn_chat_template *chat; /* NULL: no messages */
    uint32_t vocab;               /* of the model */
    uint32_t max_model_len;       /* 0: no limit */
    size_t longest_token;         /* cn_prompt_longest_token(); 0: no limit */
    bool any_length;              /* a prompt may exceed the context, up to four times in bytes */
    const cn_encode_opts *turns;  /* how a long text is encoded; add_special and keep are not read.
                                   * NULL: at once */
} cn_prompt_maker;

/* Bytes of the longest token. A longer text than max_model_len such tokens cannot fit the context.
 * It is refused before it is encoded, unless it is truncated. 1 without a tokenizer. */
size_t cn_prompt_longest_token(const cn_tokenizer *t);

/* Appends the token ids of a request's prompt: messages go through the chat template, text goes
 * through the tokenizer, tokens are copied. CN_ERR_ARG if the request is invalid, or leaves no room
 * for output. */
cn_status cn_prompt_tokens(const cn_prompt_maker *m, const cn_request_params *p, cn_tokens *out);

/* Bytes of the prompt's text, of its messages before they are rendered, or of its token ids. */
size_t cn_prompt_bytes(const cn_request_params *p);

/* CN_ERR_ARG if text[0 .. n) cannot fit the context, whatever its tokens. */
cn_status cn_prompt_check_text(const cn_prompt_maker *m, const cn_request_params *p,
                               const char *text, size_t n);
/* CN_ERR_ARG if a prompt of n tokens leaves no room for the output of the request. */
cn_status cn_prompt_check_length(const cn_request_params *p, uint32_t max_model_len, uint64_t n);
