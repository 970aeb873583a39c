/* chat_template.h - messages to the prompt a model was trained on.
 * Owner: cn_engine. Immutable after load; any thread. Stage: 2.
 *
 * A checkpoint has its template as a Jinja program: chat_template.jinja, or a string or a list of
 * named templates in tokenizer_config.json. jinja/jinja.h runs it. --chat-template names another
 * file, or a template that comes with cinch (chat_family.h). */
#pragma once

#include <jansson.h>

#include "engine/base/base.h"

enum { CN_CHAT_TEMPLATE_MAX_BYTES = 4 << 20 };

typedef struct cn_chat_template cn_chat_template;

/* True if this value of --chat-template is "auto" or the name of a family: not a file. */
bool cn_chat_template_is_known(const char *choice);

/* CN_ERR_ARG: the value of --chat-template is no such name and no file; lists the names and the
 * most similar one. */
cn_status cn_chat_template_check_choice(const char *choice);

/* `choice` is the value of --chat-template: "auto" for the checkpoint's, the name of a family, or a
 * path. A checkpoint without a template, or with one that has a syntax error, loads; use
 * cn_chat_template_check to find out. CN_ERR_ARG: the file of --chat-template cannot be used. */
cn_status cn_chat_template_load(cn_chat_template **out, const char *model_dir, const char *choice);
void cn_chat_template_free(cn_chat_template *t); /* NULL is fine */

/* CN_OK if chats can be rendered, else CN_ERR_MODEL with the reason and --chat-template. */
cn_status cn_chat_template_check(const cn_chat_template *t);

/* Appends the prompt. `variables` is an object with the variables of the template:
 *   messages                 required, at least one object. Text parts of a content are joined by
 *                            newlines if the template does not loop over contents. A rendering
 *                            that fails, other than by a limit, is repeated with the arguments of
 *                            tool calls as text, then with "" for null contents, then with both
 *   tools, documents         default null
 *   add_generation_prompt    default true
 *   continue_final_message   true: the prompt ends where the content of the last message ends
 *   others                   such as enable_thinking; they replace the special tokens of
 *                            tokenizer_config.json, which are bos_token and so on
 * CN_ERR_ARG has the text of raise_exception, or the line of the template and what is wrong; on
 * failure `out` is unchanged. */
cn_status cn_chat_template_render(const cn_chat_template *t, const json_t *variables, cn_buf *out);

/* Whether a prompt can depend on `tools`. False if chats cannot be rendered. */
bool cn_chat_template_reads_tools(const cn_chat_template *t);

/* Whether a rendered prompt must be encoded with add_special: true only for the family "none". */
bool cn_chat_template_add_special(const cn_chat_template *t);
