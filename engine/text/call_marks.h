/* call_marks.h - the texts that mark tool calls in what a model writes. Some checkpoints have them
 * as special tokens. Thread: any; no state. */
#pragma once

#include "engine/base/base.h"

#define CN_TOOL_CALL_OPEN "<tool_call>"
#define CN_TOOL_CALL_CLOSE "</tool_call>"
#define CN_MISTRAL_CALLS "[TOOL_CALLS]"
#define CN_CALL_ARGUMENTS "[ARGS]"
#define CN_CALL_ID "[CALL_ID]"
#define CN_ARGUMENT_KEY "<arg_key>" /* behind the name of a call, as GLM-4.5 writes it */

typedef enum cn_call_mark_kind {
    CN_MARK_OPENS,
    CN_MARK_CLOSES,
    CN_MARK_CLOSES_CALL, /* only after a call; elsewhere it is text */
    CN_MARK_INSIDE       /* between the name of a call and its arguments */
} cn_call_mark_kind;

typedef struct cn_call_mark {
    const char *text;
    cn_call_mark_kind kind;
} cn_call_mark;

enum { CN_N_CALL_MARKS = 8 };
extern const cn_call_mark cn_call_marks[CN_N_CALL_MARKS];

/* text[n] is one of them. */
bool cn_is_call_mark(const char *text, size_t n);
