/* chat_template.h - messages to the prompt a model was trained on.
 * Owner: cn_engine. Immutable after load; any thread. Stage: 2.
 *
 * A checkpoint has its template as a Jinja program. cinch does not run Jinja. It compares the
 * program with the families below (chat_recognize.h) and renders the family, with its details, in
 * C. A program that is not recognised loads, but rendering a chat with it fails; cinch does not
 * guess.
 *
 *   chatml       <|im_start|>role\ncontent<|im_end|>\n for each message
 *   qwen2        ChatML with a default system message; tool results as user turns
 *   qwen3        ChatML; the reasoning of answers, in their content or in its own field, is
 *                kept only after the last user question; thinking can be switched off
 *   llama3       <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>; 3.1 and later with
 *                dates in the system message
 *   deepseek-r1  <｜User｜>content<｜Assistant｜>content<｜end▁of▁sentence｜>; reasoning is dropped
 *   none         only the contents, separated by newlines */
#ifndef CN_CHAT_TEMPLATE_H
#define CN_CHAT_TEMPLATE_H

#include "engine/options/options.h"

typedef struct cn_chat_template cn_chat_template;

/* `family` is the value of --chat-template: auto for the checkpoint's program (chat_template.jinja,
 * else tokenizer_config.json), or the name of a family. If the checkpoint's program belongs to the
 * named family, its details are kept. A checkpoint without a program, or with an unknown one,
 * loads; use cn_chat_template_check to find out. */
cn_status cn_chat_template_load(cn_chat_template **out, const char *model_dir,
                                cn_opt_chat_template family);
void cn_chat_template_free(cn_chat_template *t); /* NULL is fine */

/* CN_OK if chats can be rendered, else CN_ERR_MODEL with the reason and --chat-template. */
cn_status cn_chat_template_check(const cn_chat_template *t);

/* Appends the prompt for n > 0 messages, up to where the assistant's answer begins.
 * enable_thinking: -1 the template's default, 0 off, 1 on; ignored by a template without this
 * switch. CN_ERR_ARG names a role that the template does not render; on failure `out` is
 * unchanged. */
cn_status cn_chat_template_render(const cn_chat_template *t, const cn_message *messages, size_t n,
                                  int enable_thinking, cn_buf *out);

/* Whether a rendered prompt must be encoded with add_special: false for all families but "none",
 * where the tokenizer has to add BOS. */
bool cn_chat_template_add_special(const cn_chat_template *t);

/* The family's name, or "unknown". */
const char *cn_chat_template_name(const cn_chat_template *t);

#endif
