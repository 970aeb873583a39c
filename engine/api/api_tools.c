/* api_tools.c - tool calls in a generated text. See api_tools.h. */
#include "engine/api/api_tools.h"

#include <stdlib.h>
#include <string.h>

enum { ID_BYTES = 12, CALL_BYTES = 80 /* of a call in a body, without its values */ };

static const char call_open[] = "<tool_call>", call_close[] = "</tool_call>";
static const char python_tag[] = "<|python_tag|>";

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static size_t count_space(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && is_space(text[i])) i++;
    return i;
}

/* ---- calls ---- */

static cn_status make_id(char id[5 + 2 * ID_BYTES + 1])
{
    unsigned char bytes[ID_BYTES];
    CN_TRY(cn_random_bytes(bytes, sizeof bytes));
    size_t len = (size_t)sprintf(id, "call_");
    for (size_t i = 0; i < sizeof bytes; i++) len += (size_t)sprintf(id + len, "%02x", bytes[i]);
    return CN_OK;
}

/* The arguments as text, with the fewest digits that keep every number. NULL: out of memory. */
static char *arguments_text(const json_t *arguments)
{
    char *text = json_dumps(arguments, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    json_t *again = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    const bool same = json_equal(arguments, again);
    json_decref(again);
    if (same) return text;
    free(text);
    return json_dumps(arguments, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
}

/* Adds a call from its JSON object. *is_call is false if the object is none. */
static cn_status add_call(cn_tool_finder *f, const json_t *object, bool *is_call)
{
    const json_t *name = json_object_get(object, "name");
    const json_t *arguments = json_object_get(object, "arguments");
    if (!arguments) arguments = json_object_get(object, "parameters");
    *is_call = json_is_string(name) && (!arguments || json_is_object(arguments) || f->is_forced);
    if (!*is_call || (f->only_one && f->calls)) return CN_OK;
    char id[5 + 2 * ID_BYTES + 1];
    CN_TRY(make_id(id));
    char *text = arguments ? arguments_text(arguments) : NULL;
    if (!f->calls) f->calls = json_array();
    json_t *call = json_pack("{s:i, s:s, s:s, s:{s:O, s:s}}", "index",
                             (int)json_array_size(f->calls), "id", id, "type", "function",
                             "function", "name", name, "arguments", text ? text : "{}");
    f->call_bytes += sizeof id + CALL_BYTES + json_string_length(name) + (text ? strlen(text) : 0);
    free(text);
    if (!call || json_array_append_new(f->calls, call) != 0)
        return cn_fail(CN_ERR_MEMORY, "out of memory for a tool call");
    return CN_OK;
}

/* Reads one JSON value from the start of text[n]. *used is 0 if there is none. */
static json_t *read_value(const char *text, size_t n, size_t *used)
{
    json_error_t error;
    json_t *value = json_loadb(text, n, JSON_DISABLE_EOF_CHECK, &error);
    *used = value ? (size_t)error.position : 0;
    return value;
}

/* Adds text[n], which is JSON objects with `;` between them, as calls. False: it is something
 * else, and nothing was added. */
static cn_status add_calls(cn_tool_finder *f, const char *text, size_t n, bool *all)
{
    const size_t before = json_array_size(f->calls);
    *all = false;
    for (;;) {
        size_t used, space = count_space(text, n);
        text += space, n -= space;
        json_t *value = read_value(text, n, &used);
        cn_status status = value ? add_call(f, value, all) : CN_OK;
        if (!value) *all = false;
        json_decref(value);
        CN_TRY(status);
        if (!*all) break;
        text += used, n -= used;
        space = count_space(text, n);
        text += space, n -= space;
        if (n == 0) return CN_OK;
        *all = *text == ';';
        if (!*all) break;
        text++, n--;
        if (count_space(text, n) == n) return CN_OK;
    }
    while (json_array_size(f->calls) > before)
        json_array_remove(f->calls, json_array_size(f->calls) - 1);
    return CN_OK;
}

/* ---- the held text ---- */

static void drop(cn_buf *b, size_t n)
{
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

/* Gives the first n held bytes to the content. */
static cn_status release(cn_tool_finder *f, size_t n, cn_buf *content)
{
    CN_TRY(cn_buf_add(content, f->held.data, n));
    drop(&f->held, n);
    return CN_OK;
}

/* Bytes at the end of text[n] that may be the start of the tag. */
static size_t partial_tag(const char *text, size_t n, const char *tag)
{
    size_t len = strlen(tag);
    for (size_t k = len - 1 < n ? len - 1 : n; k > 0; k--)
        if (memcmp(text + n - k, tag, k) == 0) return k;
    return 0;
}

/* Outside of a call: text up to the next tag is content, but white space that may stand before a
 * tag is kept back. *more: the tag was found. */
static cn_status leave_content(cn_tool_finder *f, bool end, bool *more, cn_buf *content)
{
    const char *text = f->held.data;
    const char *tag = f->held.len ? memmem(text, f->held.len, call_open, strlen(call_open)) : NULL;
    size_t n = tag ? (size_t)(tag - text) : f->held.len, kept = n;
    if (!tag && !end) kept -= partial_tag(text, n, call_open);
    if (tag || !end || f->calls)
        while (kept > 0 && is_space(text[kept - 1])) kept--;
    *more = tag != NULL;
    CN_TRY(release(f, kept, content));
    if (!tag && end) drop(&f->held, f->held.len);
    f->call_at = tag ? n - kept + strlen(call_open) : 0;
    return CN_OK;
}

/* The first closing tag in text[n] that is not inside of a JSON string, or NULL. */
static const char *find_close(const char *text, size_t n)
{
    const char *end = text + n, *at = text;
    bool quoted = false;
    for (;;) {
        const char *tag = memmem(at, (size_t)(end - at), call_close, strlen(call_close));
        for (; tag && at < tag; at++) {
            if (*at == '"') quoted = !quoted;
            if (*at == '\\' && quoted) at++;
        }
        if (!tag || !quoted) return tag;
        at = tag + 1;
    }
}

/* Inside of a call, up to its closing tag; a complete object at the end of the answer needs no tag.
 * What is no call is content, with its tags. *more: the call has ended. */
static cn_status leave_call(cn_tool_finder *f, bool end, bool *more, cn_buf *content)
{
    const char *text = f->held.data + f->call_at;
    size_t n = f->held.len - f->call_at, close = strlen(call_close);
    const char *tag = find_close(text, n);
    *more = tag || end;
    if (!*more) return CN_OK;
    bool is_call = false;
    CN_TRY(add_calls(f, text, tag ? (size_t)(tag - text) : n, &is_call));
    /* In text that is no JSON, quotes say nothing. */
    if (!is_call) tag = memmem(text, n, call_close, close);
    const size_t all = f->call_at + (tag ? (size_t)(tag - text) + close : n);
    f->call_at = 0;
    if (!is_call) return release(f, all, content);
    drop(&f->held, all);
    return CN_OK;
}

static cn_status add_hermes(cn_tool_finder *f, bool end, cn_buf *content)
{
    for (bool more = true; more;) {
        CN_TRY(f->call_at ? leave_call(f, end, &more, content)
                          : leave_content(f, end, &more, content));
        if (end && !f->call_at && f->held.len == 0) break;
    }
    return CN_OK;
}

/* The answer is held as long as it begins like a call. */
static cn_status add_llama3(cn_tool_finder *f, bool end, cn_buf *content)
{
    const char *text = f->held.data;
    size_t n = f->held.len, at = count_space(text, n), tag = strlen(python_tag);
    if (f->is_content) return release(f, n, content);
    bool tagged = n - at >= tag && memcmp(text + at, python_tag, tag) == 0;
    bool may_be_tagged = partial_tag(text + at, n - at, python_tag) == n - at;
    if (tagged) at += tag + count_space(text + at + tag, n - at - tag);
    f->is_content = n > at && text[at] != '{' && !may_be_tagged;
    if (f->is_content) return release(f, n, content);
    if (!end) return CN_OK;
    bool is_call = false;
    CN_TRY(add_calls(f, text + at, n - at, &is_call));
    if (!is_call) return release(f, n, content);
    f->held.len = 0;
    return CN_OK;
}

cn_status cn_tool_finder_add(cn_tool_finder *f, const char *text, size_t n, bool end,
                             cn_buf *content)
{
    if (f->form == CN_OPT_TOOLS_NONE) return cn_buf_add(content, text, n);
    CN_TRY(cn_buf_add(&f->held, text ? text : "", n));
    return f->form == CN_OPT_TOOLS_HERMES ? add_hermes(f, end, content)
                                          : add_llama3(f, end, content);
}

void cn_tool_finder_free(cn_tool_finder *f)
{
    cn_buf_free(&f->held);
    json_decref(f->calls);
    *f = (cn_tool_finder){0};
}

json_t *cn_tool_calls_form(cn_opt_tool_parser form, const json_t *tools, const char *name,
                           bool one)
{
    const bool hermes = form == CN_OPT_TOOLS_HERMES;
    size_t i;
    json_t *tool, *functions = json_array();
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        json_t *parameters = json_object_get(function, "parameters");
        json_t *entry = json_pack("{s:O}", "name", json_object_get(function, "name"));
        const bool chosen =
            !name || strcmp(name, json_string_value(json_object_get(entry, "name"))) == 0;
        if (json_is_object(parameters)) json_object_set(entry, "parameters", parameters);
        if (chosen) json_array_append(functions, entry);
        json_decref(entry);
    }
    json_t *all = json_pack("{s:s, s:s, s:s, s:s, s:b, s:o}", "begin", hermes ? call_open : "",
                            "between", hermes ? "" : ";", "end", hermes ? call_close : "",
                            "arguments", hermes ? "arguments" : "parameters", "one", (int)one,
                            "functions", functions);
    char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_t *string = text ? json_string(text) : NULL;
    json_decref(all);
    free(text);
    return string;
}
