/* chat_recognize.h - which chat template family a Jinja program belongs to, and its details.
 * Private to chat_template.c. Any thread.
 *
 * The program is not run. Its vocabulary is compared: every identifier and every string literal
 * must be one that the family's known programs use, literal text outside tags must not survive
 * white-space control, and the literals that make the family must be there. So a program may be
 * formatted as it likes, but one that says something new, such as another default system prompt in
 * another place, is not taken for a family that would leave it out. */
#ifndef CN_CHAT_RECOGNIZE_H
#define CN_CHAT_RECOGNIZE_H

#include "engine/options/options.h"

typedef enum cn_chat_layout {
    CN_CHAT_UNKNOWN,
    CN_CHAT_BARE, /* contents alone */
    CN_CHAT_CHATML,
    CN_CHAT_LLAMA3,
    CN_CHAT_DEEPSEEK
} cn_chat_layout;

/* What becomes of the reasoning in the assistant messages of a chat. */
typedef enum cn_chat_history {
    CN_HISTORY_KEEP,
    CN_HISTORY_SINCE_QUERY, /* kept only behind the last question of a user (Qwen3) */
    CN_HISTORY_LAST,        /* kept only in the last message (QwQ) */
    CN_HISTORY_DROP         /* (DeepSeek-R1) */
} cn_chat_history;

typedef struct cn_chat_traits {
    cn_chat_layout layout;
    cn_chat_history history;
    bool writes_bos;
    bool reads_reasoning; /* of messages, apart from their content (Qwen3) */
    bool any_role;        /* else only system, user, assistant, and tool if tool_turns */
    bool tool_turns;      /* ChatML: role tool is a user turn of <tool_response> */
    bool thinking_switch; /* enable_thinking = 0 writes an empty <think> block */
    bool opens_thinking;  /* the answer begins with "<think>\n" */
    bool trims_content;   /* Llama 3: white space around a message is dropped */
    bool joins_systems;   /* DeepSeek: all system messages, not the last alone */
    bool has_dates;       /* Llama 3.1: knowledge cutoff and today's date */
    bool date_is_today;   /* else `date` */
    cn_buf date;
    cn_buf default_system; /* empty: none */
} cn_chat_traits;

/* Fills zeroed traits from a program. With layout CN_CHAT_UNKNOWN, `why` says what stood in the
 * way. CN_ERR_MEMORY only. */
cn_status cn_chat_recognize(const char *program, size_t n, cn_chat_traits *traits, cn_buf *why);
void cn_chat_traits_free(cn_chat_traits *traits);

/* The family that --chat-template calls so; CN_OPT_CHAT_AUTO with an unknown layout. */
cn_opt_chat_template cn_chat_traits_family(const cn_chat_traits *traits);

#endif
