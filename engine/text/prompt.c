/* prompt.c - see prompt.h. */
#include "engine/text/prompt.h"

/* The member of a body that has the prompt. */
static const char *prompt_param(const cn_request_params *p)
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

/* ---- limits ---- */

enum {
    NFC_SHRINKS = 4,      /* normalization keeps a byte of four; ASCII is not changed */
    TEMPLATE_SHRINKS = 4, /* a template may leave out parts of a chat, but hardly most of it */
    ANY_LENGTH = 4        /* times the context: the limit with any_length */
};

size_t cn_prompt_longest_token(const cn_tokenizer *t)
{
    size_t longest = 1;
    for (uint32_t id = 0; t && id < cn_tokenizer_vocab_size(t); id++) {
        const char *bytes;
        size_t n;
        bool special;
        if (cn_tokenizer_token(t, id, &bytes, &n, &special) && n > longest) longest = n;
    }
    return longest;
}

cn_status cn_prompt_check_length(const cn_request_params *p, uint32_t max_model_len, uint64_t n)
{
    if (n < (uint64_t)max_model_len + p->no_output) return CN_OK;
    return cn_fail_param(prompt_param(p),
                         CN_CONTEXT_ERROR " %u tokens, but the prompt has %llu, which leaves no "
                         "room for output: shorten it or raise --max-model-len",
                         max_model_len, (unsigned long long)n);
}

/* Refuses a text of `bytes` bytes, of which tokens may stand for only `counted`. */
static cn_status check_bytes(const cn_prompt_maker *m, const cn_request_params *p, size_t bytes,
                             size_t counted)
{
    const size_t most = m->longest_token * m->max_model_len * (m->any_length ? ANY_LENGTH : 1);
    if (p->truncate_prompt > 0 || most == 0 || counted <= most) return CN_OK;
    return cn_fail_param(prompt_param(p),
                         CN_CONTEXT_ERROR " %u tokens, but the prompt has %zu bytes, and no token "
                         "has more than %zu: shorten it, set truncate_prompt_tokens or raise "
                         "--max-model-len",
                         m->max_model_len, bytes, m->longest_token);
}

/* A vocabulary without a token of byte 0 would drop it. */
static cn_status check_nul(const cn_prompt_maker *m, const cn_request_params *p, const char *text,
                           size_t n)
{
    const uint32_t n_ids = m->tokenizer ? cn_tokenizer_vocab_size(m->tokenizer) : 0;
    if (n_ids == 0 || !memchr(text, '\0', n)) return CN_OK;
    for (uint32_t id = 0; id < n_ids; id++) {
        const char *bytes;
        size_t len;
        bool special;
        if (cn_tokenizer_token(m->tokenizer, id, &bytes, &len, &special) && len == 1 && !*bytes)
            return CN_OK;
    }
    return cn_fail_param(prompt_param(p),
                         "%s: the vocabulary of the model has no token for U+0000: leave this "
                         "character out",
                         prompt_param(p));
}

cn_status cn_prompt_check_text(const cn_prompt_maker *m, const cn_request_params *p,
                               const char *text, size_t n)
{
    size_t n_high = 0;
    if (n > 0) CN_TRY(check_nul(m, p, text, n));
    for (size_t i = 0; i < n; i++) n_high += (unsigned char)text[i] >> 7;
    return check_bytes(m, p, n, n - n_high + n_high / NFC_SHRINKS);
}

/* Bytes of all strings in a value, whose depth the parser of the body has limited. */
static size_t text_bytes(json_t *v)
{
    size_t n = json_string_length(v), i;
    const char *key;
    json_t *item;
    json_array_foreach(v, i, item) n += text_bytes(item);
    json_object_foreach(v, key, item)
        if (strcmp(key, "reasoning") != 0) n += text_bytes(item); /* a copy of reasoning_content */
    return n;
}

static size_t text_len(const cn_request_params *p)
{
    return p->text_len ? p->text_len : strlen(p->text);
}

size_t cn_prompt_bytes(const cn_request_params *p)
{
    if (p->text) return text_len(p);
    size_t n = p->n_tokens * sizeof *p->tokens + text_bytes(json_object_get(p->chat, "messages"));
    for (size_t i = 0; p->messages && i < p->n_messages; i++) n += strlen(p->messages[i].content);
    return n;
}

/* Before the messages are rendered. */
static cn_status check_prompt_messages(const cn_prompt_maker *m, const cn_request_params *p)
{
    const size_t n = cn_prompt_bytes(p);
    return check_bytes(m, p, n, n / TEMPLATE_SHRINKS);
}

/* The most tokens of the prompt that are kept; 0: all. */
static uint32_t most_prompt_tokens(const cn_prompt_maker *m, const cn_request_params *p)
{
    if (p->truncate_prompt != CN_TRUNCATE_TO_ROOM) return p->truncate_prompt;
    const cn_sampling *s = &p->sampling;
    uint32_t room = s->max_tokens;
    if (room == 0 || (p->cut_max_tokens && room >= m->max_model_len))
        room = cn_max_u32(s->min_tokens, 1);
    if (p->no_output) room = 0;
    return m->max_model_len > room ? m->max_model_len - room : m->max_model_len > 0;
}

/* ---- tokens ---- */

static cn_status encode_text(const cn_prompt_maker *m, const cn_request_params *p,
                             const char *text, size_t n, bool add_special, cn_tokens *out)
{
    cn_encode_opts o = m->turns ? *m->turns : (cn_encode_opts){0};
    uint64_t n_tokens;
    CN_TRY(cn_prompt_check_text(m, p, text, n));
    o.add_special = add_special;
    const bool limited = !p->truncate_prompt && !m->any_length && m->max_model_len > 0;
    o.keep = limited ? m->max_model_len : most_prompt_tokens(m, p);
    CN_TRY(cn_tokenizer_encode_by(m->tokenizer, text, n, &o, out, &n_tokens));
    return limited ? cn_prompt_check_length(p, m->max_model_len, n_tokens) : CN_OK;
}

static cn_status encode_chat(const cn_prompt_maker *m, const cn_request_params *p, cn_tokens *out)
{
    CN_TRY(check_prompt_messages(m, p));
    if (cn_chat_template_check(m->chat) != CN_OK) return cn_fail_within(CN_ERR_ARG, "messages");
    json_t *own = p->chat ? NULL : variables_of(p);
    if (!p->chat && !own) return cn_fail(CN_ERR_MEMORY, "out of memory for the messages");
    cn_buf text = {0};
    cn_status status = cn_chat_template_render(m->chat, own ? own : p->chat, &text);
    json_decref(own);
    if (status == CN_OK)
        status = encode_text(m, p, text.data, text.len, cn_chat_template_add_special(m->chat), out);
    cn_buf_free(&text);
    return status;
}

static cn_status encode_prompt(const cn_prompt_maker *m, const cn_request_params *p, cn_tokens *out)
{
    if ((p->messages || p->chat) + (p->text != NULL) + (p->tokens != NULL) != 1)
        return cn_fail(CN_ERR_ARG, "a request needs exactly one of messages, text and tokens");
    if (p->tokens) return copy_tokens(m->vocab, p, out);
    if (p->text) return encode_text(m, p, p->text, text_len(p), true, out);
    return encode_chat(m, p, out);
}

cn_status cn_prompt_tokens(const cn_prompt_maker *m, const cn_request_params *p, cn_tokens *out)
{
    const uint32_t most = most_prompt_tokens(m, p);
    CN_TRY(cn_for_param(encode_prompt(m, p, out), prompt_param(p)));
    if (most > 0 && out->len > most) {
        memmove(out->ids, out->ids + out->len - most, most * sizeof *out->ids);
        out->len = most;
    }
    if (out->len == 0) return cn_fail_param(prompt_param(p), "the prompt is empty");
    for (size_t i = 0; i < out->len; i++)
        if (out->ids[i] >= m->vocab)
            return cn_fail(CN_ERR_ARG,
                           "the tokenizer gave id %u, but the model's vocabulary has %u: "
                           "tokenizer.json and config.json must be of the same model",
                           out->ids[i], m->vocab);
    return CN_OK;
}
