/* api_tools.h - finds tool calls in the text of an answer while it is generated.
 * Owner: cn_api_result, one for each choice. Thread: the engine's. Stage: 8.
 *
 *   hermes       <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number, after the
 *                content. Hermes and Qwen models write this
 *   llama3_json  the answer begins with {"name": ..., "parameters": {...}}, perhaps after
 *                <|python_tag|>; further calls follow after a ;
 *
 * A call is found when its name and the first byte of its arguments are known, or when its object
 * ends without arguments, which are then {}. Before that, text that may become a call is held back,
 * and text that turns out to be no call is content. After that, the arguments are passed on as they
 * arrive, unchanged. So a whole and a streamed answer have the same calls, also if the text of a
 * call is cut off or is not JSON. White space around calls is dropped. After much text that begins
 * like calls and is none, the rest of an answer is content, which bounds the work.
 *
 * With tool_choice "required" or a named function, structured output makes the answer calls. */
#ifndef CN_API_TOOLS_H
#define CN_API_TOOLS_H

#include <jansson.h>

#include "engine/options/options.h"

typedef struct cn_tool_call {
    char id[32];
    json_t *name;     /* in a stream NULL after it was taken */
    cn_buf arguments; /* in a stream without what was taken */
    size_t content_at; /* bytes of content before it */
} cn_tool_call;

/* Zero, then set the first three. */
typedef struct cn_tool_finder {
    cn_opt_tool_parser form;
    bool only_one;   /* calls after the first are dropped */
    bool is_forced;  /* structured output makes the answer calls: arguments may be of any type */
    bool is_content; /* no further call can begin */
    size_t n_content; /* bytes that were content */
    size_t n_failed; /* bytes read as calls that were none */
    cn_buf held;     /* text that may become content or a call */
    size_t begin;    /* bytes of `held` before the object of the call */
    size_t at;       /* bytes of `held` that were read */
    enum {
        CN_OUTSIDE, /* of a call */
        CN_BEFORE_OBJECT,
        CN_BEFORE_KEY,
        CN_BEFORE_COLON,
        CN_BEFORE_VALUE,
        CN_IN_ITEM, /* a key or a value */
        CN_BEHIND_VALUE,
        CN_BEHIND_OBJECT
    } place;
    enum { CN_ITEM_KEY, CN_ITEM_NAME, CN_ITEM_ARGUMENTS, CN_ITEM_OTHER } item; /* being read */
    int value;             /* the item after the key that was read last */
    uint32_t depth;        /* open brackets in the item */
    bool quoted, escaped;  /* in a string of the item; after a backslash in it */
    bool is_call, is_kept; /* the object is a call; that call is the last of `calls` */
    bool has_arguments;
    cn_buf word;         /* the text of the key or name being read */
    cn_tool_call open;   /* the call being read, unless is_kept */
    cn_tool_call *calls; /* those found so far */
    uint32_t n_calls, max_calls;
    uint32_t n_taken; /* in a stream: calls whose name was taken */
} cn_tool_finder;

/* Takes text[n] of an answer and appends what is content. `end`: nothing follows. */
cn_status cn_tool_finder_add(cn_tool_finder *f, const char *text, size_t n, bool end,
                             cn_buf *content);
void cn_tool_finder_free(cn_tool_finder *f);

/* About the bytes that the held text and the calls have in a body. */
uint64_t cn_tool_finder_bytes(const cn_tool_finder *f);

/* message.tool_calls of a whole answer. NULL: no calls, or out of memory. */
json_t *cn_tool_finder_calls(const cn_tool_finder *f);

/* The next delta.tool_calls of a stream, with one entry: the id and name of a call, with arguments
 * "", or a piece of its arguments. NULL when there is nothing new, or when out of memory. */
json_t *cn_tool_finder_take(cn_tool_finder *f);
bool cn_tool_finder_has_more(const cn_tool_finder *f);

/* The text of cn_structure for calls of `tools`, which are members of a body: of the one with this
 * name, or of any if it is NULL. `one`: exactly one call. NULL when out of memory. */
json_t *cn_tool_calls_form(cn_opt_tool_parser form, const json_t *tools, const char *name,
                           bool one);

#endif
