/* chat_family.h - chat templates that come with cinch, for checkpoints without one.
 * Owner: none; constant. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct cn_chat_family {
    const char *name;
    const char *source; /* a Jinja template */
    bool add_special;   /* the tokenizer adds BOS, because the template does not write it */
} cn_chat_family;

/* NULL: no family has this name. */
const cn_chat_family *cn_chat_family_find(const char *name);
size_t cn_chat_family_count(void);
/* The names, for messages and help. tests/test_chat_template.c compares them with the table. */
#define CN_CHAT_FAMILY_NAMES "chatml, qwen2, qwen3, llama3, deepseek-r1, none"
