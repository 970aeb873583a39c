/* api_tools.h - finds tool calls in the text of an answer while it is generated.
 * Owner: cn_api_result, one for each choice. Thread: the engine's. Stage: 8.
 *
 *   hermes, qwen3_coder, glm45,
 *   mistral                       calls follow a mark, any number, also after other text. Hermes
 * and Qwen models write <tool_call>{"name": ..., "arguments": {...}}</tool_call> llama3_json,
 * pythonic         calls need no mark: {"name": ..., "parameters": {...}}
 *
 * The forms of a line differ in what structured output makes the model write, and in the ids of
 * mistral. All read all public spellings of calls:
 *   - The marks <tool_call>, <|python_tag|> and [TOOL_CALLS]. They never are content, and neither
 *     are those that close them.
 *   - Objects one after another, with ; or , or nothing between them, and arrays of objects.
 *   - Members in any order; "function" for "name", or as the object that has the members.
 *   - <function=NAME>{...}</function>, and after [TOOL_CALLS] also NAME[ARGS]{...} and NAME{...}.
 *   - <function=NAME> with <parameter=KEY>...</parameter>, and NAME with <arg_key>KEY</arg_key>
 *     <arg_value>...</arg_value> (xml_arguments.h).
 *   - NAME(KEY=VALUE, ...) in an array or after a mark (python_arguments.h).
 *   - All of these in fenced code, whose fences are not content then.
 *
 * A call has the name of a tool and arguments. It is found when the name and the first byte of the
 * arguments are known. Before that, text that may become a call is held back, and text that turns
 * out to be no call is content, without its mark. After that, the arguments are passed on as they
 * arrive: unchanged, except that a string which has an object is decoded, that null, "" and []
 * become {}, and that what is not JSON is made JSON. So a whole and a streamed answer have the same
 * calls, also if the text of a call is cut off or is not JSON. White space around calls is dropped.
 * If the model ended the text, arguments in tags or Python are closed; otherwise they are as far as
 * they came. A call that is cut off before its arguments is dropped if it has a mark or the name of
 * a tool. After much text that begins like calls and is none, the rest of an answer is content,
 * which bounds the work.
 *
 * With tool_choice "required" or a named function, structured output makes the answer calls. With
 * "auto" and a response_format it makes the answer calls or JSON. */
#pragma once

#include <jansson.h>

#include "engine/api/python_arguments.h"
#include "engine/api/xml_arguments.h"
#include "engine/options/options.h"

typedef struct cn_tool_call {
    char id[32];
    json_t *name;      /* in a stream NULL after it was taken */
    cn_buf arguments;  /* in a stream without what was taken */
    size_t content_at; /* bytes of content before it */
} cn_tool_call;

/* Zero, then set the first five, and before the end is_stopped. */
typedef struct cn_tool_finder {
    cn_opt_tool_parser form;
    const json_t *names; /* borrowed: NAME: its parameters, or true */
    bool only_one;       /* calls after the first are dropped */
    bool is_forced;      /* structured output makes the answer calls: arguments are as they are */
    bool is_either;      /* it makes the answer calls or JSON: the beginning decides which */
    bool is_content;     /* no further call can begin */
    bool is_stopped;     /* the model ended the text: what is made JSON is closed */
    bool is_skipping;    /* `held` begins with an object or array that is content */
    size_t n_content;    /* bytes that were content */
    size_t n_failed;     /* bytes read as calls that were none */
    uint64_t n_work;     /* bytes that were looked at outside of calls, or moved, about */
    cn_buf queue;        /* text that is to be read */
    size_t queue_at;     /* bytes of it that were */
    cn_buf held;         /* text that may become content or a call */
    size_t n_space;      /* bytes of white space that it is known to begin with */
    size_t begin;        /* bytes of `held` before the object of the call */
    size_t at;           /* bytes of `held` that were read */
    enum {
        CN_OUTSIDE, /* of a call */
        CN_BEFORE_OBJECT,
        CN_BEFORE_KEY,
        CN_BEFORE_COLON,
        CN_BEFORE_VALUE,
        CN_IN_ITEM, /* a key or a value */
        CN_AFTER_VALUE,
        CN_IN_PYTHON, /* after NAME( */
        CN_IN_XML,    /* after <function=NAME> */
        CN_AFTER_OBJECT
    } place;
    enum { CN_ITEM_KEY, CN_ITEM_NAME, CN_ITEM_ARGUMENTS, CN_ITEM_OTHER } item; /* being read */
    int value;             /* the item after the key that was read last */
    uint32_t depth;        /* open brackets in the item or, while skipping, in the text */
    bool quoted, escaped;  /* in a string of the item; after a backslash in it */
    bool is_marked;        /* a mark came before the object */
    bool is_bare;          /* without an object: the arguments follow the name */
    bool is_in_list;       /* the object is in an array */
    bool is_nested;        /* the object is the member "function" of another */
    bool is_fenced;        /* calls in fenced code were found, whose end was not */
    bool has_fence;        /* the object begins fenced code */
    bool in_code;          /* fenced code that is content has begun */
    bool is_python;        /* the last call was written NAME(...) */
    bool is_call, is_kept; /* the object is a call; that call is the last of `calls` */
    bool has_arguments;
    enum { CN_ARGUMENTS_UNKNOWN, CN_ARGUMENTS_RAW, CN_ARGUMENTS_TEXT } arguments;
    cn_buf word;    /* the text of the key or name, or of arguments not known yet */
    cn_buf decoded; /* the text of a string of arguments not known yet */
    size_t n_blank; /* bytes without a value that it, or a list in `word`, begins with */
    char escape[6]; /* an unfinished escape sequence of that string */
    uint32_t n_escape, surrogate; /* its bytes; the first half of a character, or 0 */
    cn_python_args python;
    cn_xml_args xml;
    cn_tool_call open;   /* the call being read, unless is_kept */
    cn_tool_call *calls; /* those found so far */
    uint32_t n_calls;
    uint32_t n_taken; /* in a stream: calls whose name was taken */
} cn_tool_finder;

/* Whether calls of the form need no mark. */
bool cn_tools_need_no_mark(cn_opt_tool_parser form);

/* The `names` of a finder for `tools`, which are members of a body. NULL when out of memory. */
json_t *cn_tool_names(const json_t *tools);

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

/* A new form of cn_structure for calls of `tools`, which are members of a body: of the one with
 * this name, or of any if it is NULL. `one`: exactly one call. NULL when out of memory. */
json_t *cn_tool_calls_form(cn_opt_tool_parser form, const json_t *tools, const char *name,
                           bool one);
