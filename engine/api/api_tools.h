/* api_tools.h - finds tool calls in the text of an answer while it is generated.
 * Owner: cn_api_result, one for each choice. Thread: the engine's. Stage: 8.
 *
 *   hermes       <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number, after the
 *                content. Hermes and Qwen models write this
 *   llama3_json  the whole answer is {"name": ..., "parameters": {...}}, or several with ; between
 *                them, perhaps after <|python_tag|>
 *
 * Text that may become a call is held back until the call is complete, so a call is told in one
 * piece. What turns out to be no call is content. White space around calls is dropped.
 *
 * With tool_choice "required" or a named function, structured output makes the answer calls. */
#ifndef CN_API_TOOLS_H
#define CN_API_TOOLS_H

#include <jansson.h>

#include "engine/options/options.h"

/* Zero, then set `form`. */
typedef struct cn_tool_finder {
    cn_opt_tool_parser form;
    bool only_one;   /* calls after the first are dropped */
    bool is_forced;  /* structured output makes the answer calls: arguments may be of any type */
    bool is_content; /* llama3_json: the answer is no call */
    size_t call_at;  /* hermes: byte of `held` after <tool_call>; 0: outside of a call */
    cn_buf held;
    json_t *calls; /* those found so far, as members of message.tool_calls; NULL: none */
    size_t call_bytes; /* about those of calls */
} cn_tool_finder;

/* Takes text[n] of an answer and appends what is content. `end`: nothing follows. */
cn_status cn_tool_finder_add(cn_tool_finder *f, const char *text, size_t n, bool end,
                             cn_buf *content);
void cn_tool_finder_free(cn_tool_finder *f);

/* The text of cn_structure for calls of `tools`, which are members of a body: of the one with this
 * name, or of any if it is NULL. `one`: exactly one call. NULL when out of memory. */
json_t *cn_tool_calls_form(cn_opt_tool_parser form, const json_t *tools, const char *name,
                           bool one);

#endif
