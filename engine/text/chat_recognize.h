/* chat_recognize.h - which chat template family a Jinja program belongs to, and its details.
 * Private to chat_template.c. Any thread.
 *
 * The program is not run. Its vocabulary is compared with that of the family whose mark it
 * contains. The program belongs to the family if:
 *   - every identifier and string literal is one that the family's known programs use;
 *   - no literal text outside tags remains after white-space control;
 *   - the literals that the family requires are there.
 * Formatting does not matter. A program with a new part, such as a default system message in
 * another place, is not recognised: the family would leave that part out. */
#ifndef CN_CHAT_RECOGNIZE_H
#define CN_CHAT_RECOGNIZE_H

#include "engine/options/options.h"

typedef enum cn_chat_layout {
    CN_CHAT_UNKNOWN,
    CN_CHAT_BARE, /* only the contents of messages */
    CN_CHAT_CHATML,
    CN_CHAT_LLAMA3,
    CN_CHAT_DEEPSEEK
} cn_chat_layout;

/* What happens to the reasoning in the assistant messages of a chat. */
typedef enum cn_chat_history {
    CN_HISTORY_KEEP,
    CN_HISTORY_SINCE_QUERY, /* kept only after the last user question (Qwen3) */
    CN_HISTORY_LAST,        /* kept only in the last message (QwQ) */
    CN_HISTORY_DROP         /* dropped (DeepSeek-R1) */
} cn_chat_history;

typedef struct cn_chat_traits {
    cn_chat_layout layout;
    cn_chat_history history;
    bool writes_bos;
    bool reads_reasoning; /* from a field of the message, not its content (Qwen3) */
    bool any_role;        /* false: system, user, assistant, and tool if tool_turns */
    bool tool_turns;      /* ChatML: role tool is a user turn of <tool_response> */
    bool thinking_switch; /* enable_thinking = 0 writes an empty <think> block */
    bool opens_thinking;  /* the answer begins with "<think>\n" */
    bool trims_content;   /* Llama 3: white space around a message is dropped */
    bool joins_systems;   /* DeepSeek: writes all system messages; false: the last */
    bool has_dates;       /* Llama 3.1: knowledge cutoff and today's date */
    bool date_is_today;   /* false: `date` */
    cn_buf date;
    cn_buf default_system; /* empty: none */
} cn_chat_traits;

/* Fills zeroed traits from a program. If the program is not recognised, the layout is
 * CN_CHAT_UNKNOWN and `why` has the reason. The only error is CN_ERR_MEMORY. */
cn_status cn_chat_recognize(const char *program, size_t n, cn_chat_traits *traits, cn_buf *why);
void cn_chat_traits_free(cn_chat_traits *traits);

/* The value of --chat-template that names the family of these traits; CN_OPT_CHAT_AUTO if the
 * layout is unknown. */
cn_opt_chat_template cn_chat_traits_family(const cn_chat_traits *traits);

#endif
