/* prompt.c - see prompt.h. */
#include "engine/text/prompt.h"

#include <string.h>

const char *cn_prompt_param(const cn_request_params *p)
{
    return p->chat || p->messages ? "messages" : "prompt";
}

static cn_status copy_tokens(uint32_t vocab, const cn_request_params *p, cn_tokens *out)
{
    for (size_t i = 0; i < p->n_tokens; i++)
        if (p->tokens[i] >= vocab)
            return cn_fail(CN_ERR_ARG, "prompt token %zu is %u: expected an id below %u", i,
                           p->tokens[i], vocab);
    return cn_tokens_add(out, p->tokens, p->n_tokens);
}

/* The variables of a chat template for plain messages. A new reference; NULL: out of memory. */
static json_t *variables_of(const cn_request_params *p)
{
    json_t *messages = json_array(), *variables = json_pack("{s:o}", "messages", messages);
    for (size_t i = 0; variables && i < p->n_messages; i++) {
        const cn_message *m = &p->messages[i];
        json_t *message = json_object();
        json_object_set_new_nocheck(message, "role", json_string_nocheck(m->role));
        json_object_set_new_nocheck(message, "content", json_string_nocheck(m->content));
        if (m->reasoning)
            json_object_set_new_nocheck(message, "reasoning_content",
                                        json_string_nocheck(m->reasoning));
        if (json_array_append_new(messages, message) == 0) continue;
        json_decref(variables);
        return NULL;
    }
    if (variables && p->enable_thinking >= 0)
        json_object_set_new(variables, "enable_thinking", json_boolean(p->enable_thinking));
    return variables;
}

static cn_status encode_chat(const cn_prompt_maker *m, const cn_request_params *p, cn_tokens *out)
{
    if (cn_chat_template_check(m->chat) != CN_OK) return cn_fail_within(CN_ERR_ARG, "messages");
    json_t *own = p->chat ? NULL : variables_of(p);
    if (!p->chat && !own) return cn_fail(CN_ERR_MEMORY, "out of memory for the messages");
    cn_buf_clear(m->scratch);
    cn_status status = cn_chat_template_render(m->chat, own ? own : p->chat, m->scratch);
    json_decref(own);
    CN_TRY(status);
    return cn_tokenizer_encode(m->tokenizer, m->scratch->data, m->scratch->len,
                               cn_chat_template_add_special(m->chat), out);
}

static cn_status encode(const cn_prompt_maker *m, const cn_request_params *p, cn_tokens *out)
{
    if ((p->messages || p->chat) + (p->text != NULL) + (p->tokens != NULL) != 1)
        return cn_fail(CN_ERR_ARG, "a request needs exactly one of messages, text and tokens");
    if (p->tokens) return copy_tokens(m->vocab, p, out);
    if (p->text) return cn_tokenizer_encode(m->tokenizer, p->text, strlen(p->text), true, out);
    return encode_chat(m, p, out);
}

/* The most tokens of the prompt that are kept; 0: all. */
static uint32_t most_tokens(const cn_prompt_maker *m, const cn_request_params *p)
{
    if (p->truncate_prompt != CN_TRUNCATE_TO_ROOM) return p->truncate_prompt;
    const cn_sampling *s = &p->sampling;
    const uint32_t room = p->no_output    ? 0
                          : s->max_tokens ? s->max_tokens
                                          : cn_max_u32(s->min_tokens, 1);
    return m->max_model_len > room ? m->max_model_len - room : m->max_model_len > 0;
}

cn_status cn_prompt_tokens(const cn_prompt_maker *m, const cn_request_params *p, cn_tokens *out)
{
    const uint32_t most = most_tokens(m, p);
    CN_TRY(cn_for_param(encode(m, p, out), cn_prompt_param(p)));
    if (most > 0 && out->len > most) {
        memmove(out->ids, out->ids + out->len - most, most * sizeof *out->ids);
        out->len = most;
    }
    if (out->len == 0) return cn_fail_param(cn_prompt_param(p), "the prompt is empty");
    for (size_t i = 0; i < out->len; i++)
        if (out->ids[i] >= m->vocab)
            return cn_fail(CN_ERR_ARG,
                           "the tokenizer gave id %u, but the model's vocabulary has %u: "
                           "tokenizer.json and config.json must be of the same model",
                           out->ids[i], m->vocab);
    return CN_OK;
}
