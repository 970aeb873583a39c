/* prompt.c - see prompt.h. */
#include "engine/text/prompt.h"

#include <string.h>

static cn_status copy_tokens(uint32_t vocab, const cn_request_params *p, cn_tokens *out)
{
    for (size_t i = 0; i < p->n_tokens; i++)
        if (p->tokens[i] >= vocab)
            return cn_fail(CN_ERR_ARG, "prompt token %zu is %u: expected an id below %u", i,
                           p->tokens[i], vocab);
    return cn_tokens_add(out, p->tokens, p->n_tokens);
}

static cn_status encode_messages(cn_tokenizer *tokenizer, const cn_chat_template *chat,
                                 cn_buf *scratch, const cn_request_params *p, cn_tokens *out)
{
    if (cn_chat_template_check(chat) != CN_OK) return cn_fail_within(CN_ERR_ARG, "messages");
    cn_buf_clear(scratch);
    CN_TRY(cn_chat_template_render(chat, p->messages, p->n_messages, p->enable_thinking, scratch));
    return cn_tokenizer_encode(tokenizer, scratch->data, scratch->len,
                               cn_chat_template_add_special(chat), out);
}

cn_status cn_prompt_tokens(cn_tokenizer *tokenizer, const cn_chat_template *chat, uint32_t vocab,
                           cn_buf *scratch, const cn_request_params *p, cn_tokens *out)
{
    if ((p->messages != NULL) + (p->text != NULL) + (p->tokens != NULL) != 1)
        return cn_fail(CN_ERR_ARG, "a request needs exactly one of messages, text and tokens");
    if (p->tokens)
        CN_TRY(copy_tokens(vocab, p, out));
    else if (p->messages)
        CN_TRY(encode_messages(tokenizer, chat, scratch, p, out));
    else
        CN_TRY(cn_tokenizer_encode(tokenizer, p->text, strlen(p->text), true, out));
    if (out->len == 0) return cn_fail(CN_ERR_ARG, "the prompt is empty");
    for (size_t i = 0; i < out->len; i++)
        if (out->ids[i] >= vocab)
            return cn_fail(CN_ERR_ARG,
                           "the tokenizer gave id %u, but the model's vocabulary has %u: "
                           "tokenizer.json and config.json must be of the same model",
                           out->ids[i], vocab);
    return CN_OK;
}
