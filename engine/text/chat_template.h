/* chat_template.h - messages to the prompt a model was trained on. Stage 2 of a request's way.
 * Owner: cn_engine. Immutable after load; any thread.
 *
 * A checkpoint brings its template as a Jinja program. cinch has no Jinja: it renders the families
 * below in C, and recognises a checkpoint's program as one of them (chat_recognize.h), details
 * included. A program it does not recognise is refused when a chat is rendered, never guessed at.
 *
 *   chatml       <|im_start|>role\ncontent<|im_end|>\n for each message
 *   qwen2        ChatML with a default system prompt; tool results as user turns
 *   qwen3        ChatML; reasoning of answers, inside their content or beside it, is kept behind
 *                the last question alone; thinking can be switched off
 *   llama3       <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>; 3.1 and later with
 *                dates in the system message
 *   deepseek-r1  <｜User｜>content<｜Assistant｜>content<｜end▁of▁sentence｜>, reasoning dropped
 *   none         the contents alone, a newline between two */
#ifndef CN_CHAT_TEMPLATE_H
#define CN_CHAT_TEMPLATE_H

#include "engine/options/options.h"

typedef struct cn_chat_template cn_chat_template;

/* `family` is the option --chat-template: auto for the checkpoint's own program
 * (chat_template.jinja, else tokenizer_config.json), or a family; where the checkpoint's program is
 * of that family its details are kept. A checkpoint without a program, or with an unknown one,
 * loads: cn_chat_template_check tells. */
cn_status cn_chat_template_load(cn_chat_template **out, const char *model_dir,
                                cn_opt_chat_template family);
void cn_chat_template_free(cn_chat_template *t); /* NULL is fine */

/* CN_OK if chats can be rendered; else CN_ERR_MODEL, which says why and names --chat-template. */
cn_status cn_chat_template_check(const cn_chat_template *t);

/* Appends the prompt for n > 0 messages, ending where the assistant's answer begins.
 * enable_thinking: -1 the template's default, 0, 1; ignored by a template without such a switch.
 * CN_ERR_ARG names a role that the template does not render. */
cn_status cn_chat_template_render(const cn_chat_template *t, const cn_message *messages, size_t n,
                                  int enable_thinking, cn_buf *out);

/* Whether to encode a rendered prompt with add_special: false for all but "none", whose BOS the
 * tokenizer has to write. */
bool cn_chat_template_add_special(const cn_chat_template *t);

/* The family's name, or "unknown". */
const char *cn_chat_template_name(const cn_chat_template *t);

#endif
