/* api_tools.c - tool calls in a generated text. See api_tools.h. */
#include "engine/api/api_tools.h"

#include <stdlib.h>
#include <string.h>

enum {
    ID_BYTES = 12,
    CALL_BYTES = 110,           /* of a call in a body, without its values */
    MAX_FAILED_BYTES = 64 << 10 /* read as calls that were none, and then again as content */
};

static const char call_open[] = "<tool_call>", call_close[] = "</tool_call>";
static const char python_tag[] = "<|python_tag|>";

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static size_t count_space(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && is_space(text[i])) i++;
    return i;
}

/* ---- the object of a call ---- */

static cn_status make_id(char *id)
{
    unsigned char bytes[ID_BYTES];
    CN_TRY(cn_random_bytes(bytes, sizeof bytes));
    size_t len = (size_t)sprintf(id, "call_");
    for (size_t i = 0; i < sizeof bytes; i++) len += (size_t)sprintf(id + len, "%02x", bytes[i]);
    return CN_OK;
}

static void free_call(cn_tool_call *call)
{
    json_decref(call->name);
    cn_buf_free(&call->arguments);
    *call = (cn_tool_call){0};
}

static void begin_object(cn_tool_finder *f, size_t begin)
{
    f->place = CN_BEFORE_OBJECT;
    f->begin = f->at = begin;
    f->is_call = f->is_kept = f->has_arguments = false;
    free_call(&f->open);
}

/* The object is a call: moves it to `calls`, or drops it after the first. */
static cn_status find_call(cn_tool_finder *f)
{
    f->is_call = true;
    if (!f->has_arguments) CN_TRY(cn_buf_add(&f->open.arguments, "{}", 2));
    if (f->only_one && f->n_calls > 0) return CN_OK;
    if (f->n_calls == f->max_calls) {
        const uint32_t most = f->max_calls ? 2 * f->max_calls : 4;
        cn_tool_call *more = cn_realloc(f->calls, most, sizeof *more);
        if (!more) return cn_fail(CN_ERR_MEMORY, "out of memory for %u tool calls", most);
        f->calls = more;
        f->max_calls = most;
    }
    CN_TRY(make_id(f->open.id));
    f->open.content_at = f->n_content;
    f->calls[f->n_calls++] = f->open;
    f->open = (cn_tool_call){0};
    f->is_kept = true;
    return CN_OK;
}

/* The functions below set *ok, or return, false if the text cannot be that of a call. */

static bool end_item(cn_tool_finder *f)
{
    const char *word = f->word.data;
    f->place = f->item == CN_ITEM_KEY ? CN_BEFORE_COLON : CN_BEHIND_VALUE;
    if (f->item == CN_ITEM_NAME) {
        f->open.name = json_loadb(word, f->word.len, JSON_DECODE_ANY, NULL);
        return f->open.name != NULL;
    }
    if (f->item != CN_ITEM_KEY) return true;
    /* Of a key that is there twice, the first counts. */
    const bool arguments = !strcmp(word, "\"arguments\"") || !strcmp(word, "\"parameters\"");
    if (!strcmp(word, "\"name\"") && !f->is_call && !f->open.name)
        f->value = CN_ITEM_NAME;
    else
        f->value = arguments && !f->has_arguments ? CN_ITEM_ARGUMENTS : CN_ITEM_OTHER;
    return true;
}

/* Reads a byte of a key or value, up to the quote or bracket that closes it. */
static cn_status add_to_item(cn_tool_finder *f, char c, bool *ok)
{
    if (f->escaped) {
        f->escaped = false;
    } else if (f->quoted) {
        f->escaped = c == '\\';
        f->quoted = c != '"';
    } else {
        *ok = c != '<'; /* a closing tag ends an object that lacks its brackets */
        f->quoted = c == '"';
        if (c == '{' || c == '[') f->depth++;
        if (c == '}' || c == ']') f->depth--;
    }
    if (!*ok) return CN_OK;
    cn_buf *to = &f->word;
    if (f->item == CN_ITEM_ARGUMENTS)
        to = f->is_kept ? &f->calls[f->n_calls - 1].arguments : &f->open.arguments;
    if (f->item != CN_ITEM_OTHER) CN_TRY(cn_buf_add(to, &c, 1));
    const bool closes = c == '"' || c == '}' || c == ']';
    if (closes && !f->quoted && f->depth == 0) *ok = end_item(f);
    return CN_OK;
}

static cn_status begin_item(cn_tool_finder *f, int item, char c, bool *ok)
{
    const bool arguments = item == CN_ITEM_ARGUMENTS;
    if (item == CN_ITEM_KEY || item == CN_ITEM_NAME)
        *ok = c == '"';
    else
        *ok = arguments && !f->is_forced ? c == '{' : !strchr(",:}]", c);
    if (!*ok) return CN_OK;
    f->item = item;
    f->place = CN_IN_ITEM;
    f->depth = 0;
    f->quoted = f->escaped = false;
    f->has_arguments |= arguments;
    cn_buf_clear(&f->word);
    return add_to_item(f, c, ok);
}

static cn_status read_byte(cn_tool_finder *f, char c, bool *ok)
{
    /* A number or literal ends before this byte. */
    if (f->place == CN_IN_ITEM && !f->quoted && f->depth == 0 && (is_space(c) || strchr(",}]", c)))
        *ok = end_item(f);
    if (f->place != CN_IN_ITEM && is_space(c)) return CN_OK;
    switch (f->place) {
    case CN_BEFORE_OBJECT:
        *ok = c == '{';
        f->place = CN_BEFORE_KEY;
        break;
    case CN_BEFORE_KEY:
        if (c != '}') return begin_item(f, CN_ITEM_KEY, c, ok);
        f->place = CN_BEHIND_OBJECT;
        break;
    case CN_BEFORE_COLON:
        *ok = c == ':';
        f->place = CN_BEFORE_VALUE;
        break;
    case CN_BEFORE_VALUE: return begin_item(f, f->value, c, ok);
    case CN_IN_ITEM: return add_to_item(f, c, ok);
    default: /* CN_BEHIND_VALUE */
        *ok = c == ',' || c == '}';
        f->place = c == ',' ? CN_BEFORE_KEY : CN_BEHIND_OBJECT;
    }
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
    f->n_content += n;
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
static cn_status read_content(cn_tool_finder *f, bool end, bool *more, cn_buf *content)
{
    const char *text = f->held.data;
    const bool seeks = f->held.len && !f->is_content;
    const char *tag = seeks ? memmem(text, f->held.len, call_open, strlen(call_open)) : NULL;
    size_t n = tag ? (size_t)(tag - text) : f->held.len, kept = n;
    if (!tag && !end) kept -= partial_tag(text, n, call_open);
    if (tag || !end || f->n_calls > 0)
        while (kept > 0 && is_space(text[kept - 1])) kept--;
    *more = tag != NULL;
    CN_TRY(release(f, kept, content));
    if (!tag && end) drop(&f->held, f->held.len);
    if (tag) begin_object(f, n - kept + strlen(call_open));
    return CN_OK;
}

/* Finds out whether an answer begins like a call. *more: it does. */
static cn_status read_llama3(cn_tool_finder *f, bool end, bool *more, cn_buf *content)
{
    const char *text = f->held.data;
    size_t n = f->held.len, at = count_space(text, n), tag = strlen(python_tag);
    bool tagged = n - at >= tag && memcmp(text + at, python_tag, tag) == 0;
    bool may_be_tagged = partial_tag(text + at, n - at, python_tag) == n - at;
    if (tagged) at += tag + count_space(text + at + tag, n - at - tag);
    *more = !f->is_content && n > at && text[at] == '{';
    if (*more) begin_object(f, at);
    f->is_content |= !*more && (end || (n > at && !may_be_tagged));
    return f->is_content ? release(f, n, content) : CN_OK;
}

/* Reads an object up to its end. What is no call is content, with the tag before it. *more: the
 * object has ended. */
static cn_status read_object(cn_tool_finder *f, bool end, bool *more, cn_buf *content)
{
    bool ok = true;
    while (f->at < f->held.len && f->place != CN_BEHIND_OBJECT) {
        CN_TRY(read_byte(f, f->held.data[f->at], &ok));
        if (!ok) break;
        f->at++;
        if (!f->is_call && f->open.name && (f->has_arguments || f->place == CN_BEHIND_OBJECT))
            CN_TRY(find_call(f));
    }
    if (f->is_call) {
        drop(&f->held, f->at);
        f->at = 0;
    }
    *more = !ok || end || f->place == CN_BEHIND_OBJECT;
    if (!*more) return CN_OK;
    f->place = f->is_call ? CN_BEHIND_OBJECT : CN_OUTSIDE;
    if (f->is_call) return CN_OK;
    f->n_failed += f->at;
    f->is_content = f->form == CN_OPT_TOOLS_LLAMA3_JSON || f->n_failed > MAX_FAILED_BYTES;
    return release(f, f->begin, content);
}

/* Drops what must follow a call, if it is there: its closing tag, or the ; before the next. *more:
 * that is known. */
static void leave_call(cn_tool_finder *f, bool end, bool *more)
{
    const bool hermes = f->form == CN_OPT_TOOLS_HERMES;
    const char *mark = hermes ? call_close : ";", *text = f->held.data;
    const size_t len = strlen(mark), space = count_space(text, f->held.len);
    const size_t left = f->held.len - space, n = left < len ? left : len;
    const bool fits = memcmp(text + space, mark, n) == 0;
    *more = !fits || n == len || end;
    if (!*more) return;
    if (fits) drop(&f->held, space + n);
    if (fits && n == len && !hermes) {
        begin_object(f, 0);
    } else {
        f->place = CN_OUTSIDE;
        f->is_content = !hermes;
    }
}

cn_status cn_tool_finder_add(cn_tool_finder *f, const char *text, size_t n, bool end,
                             cn_buf *content)
{
    const bool hermes = f->form == CN_OPT_TOOLS_HERMES;
    if (f->form == CN_OPT_TOOLS_NONE) return cn_buf_add(content, text, n);
    CN_TRY(cn_buf_add(&f->held, text ? text : "", n));
    for (bool more = true; more;) {
        if (f->place == CN_BEHIND_OBJECT)
            leave_call(f, end, &more);
        else if (f->place != CN_OUTSIDE)
            CN_TRY(read_object(f, end, &more, content));
        else
            CN_TRY(hermes ? read_content(f, end, &more, content)
                          : read_llama3(f, end, &more, content));
    }
    return CN_OK;
}

void cn_tool_finder_free(cn_tool_finder *f)
{
    for (uint32_t i = 0; i < f->n_calls; i++) free_call(&f->calls[i]);
    free_call(&f->open);
    cn_free(f->calls);
    cn_buf_free(&f->held);
    cn_buf_free(&f->word);
    *f = (cn_tool_finder){0};
}

/* ---- in bodies and chunks ---- */

uint64_t cn_tool_finder_bytes(const cn_tool_finder *f)
{
    uint64_t bytes = f->held.len + f->open.arguments.len;
    for (uint32_t i = 0; i < f->n_calls; i++) {
        const cn_tool_call *call = &f->calls[i];
        bytes += CALL_BYTES + json_string_length(call->name) + call->arguments.len;
    }
    return bytes;
}

json_t *cn_tool_finder_calls(const cn_tool_finder *f)
{
    json_t *calls = f->n_calls > 0 ? json_array() : NULL;
    for (uint32_t i = 0; i < f->n_calls; i++) {
        const cn_tool_call *call = &f->calls[i];
        json_array_append_new(
            calls, json_pack("{s:s, s:s, s:{s:O, s:s%}}", "id", call->id, "type", "function",
                             "function", "name", call->name, "arguments", call->arguments.data,
                             call->arguments.len));
    }
    return calls;
}

/* The arguments that were not taken of the last call whose name was. */
static cn_buf *untaken_arguments(const cn_tool_finder *f)
{
    cn_buf *arguments = f->n_taken > 0 ? &f->calls[f->n_taken - 1].arguments : NULL;
    return arguments && arguments->len > 0 ? arguments : NULL;
}

bool cn_tool_finder_has_more(const cn_tool_finder *f)
{
    return untaken_arguments(f) || f->n_taken < f->n_calls;
}

json_t *cn_tool_finder_take(cn_tool_finder *f)
{
    cn_buf *arguments = untaken_arguments(f);
    if (arguments) {
        json_t *piece = json_pack("[{s:i, s:{s:s%}}]", "index", (int)f->n_taken - 1, "function",
                                  "arguments", arguments->data, arguments->len);
        /* Nothing more comes of a call before the last. */
        if (f->n_taken < f->n_calls)
            cn_buf_free(arguments);
        else
            cn_buf_clear(arguments);
        return piece;
    }
    if (f->n_taken == f->n_calls) return NULL;
    cn_tool_call *call = &f->calls[f->n_taken];
    json_t *name = call->name;
    call->name = NULL;
    return json_pack("[{s:i, s:s, s:s, s:{s:o, s:s}}]", "index", (int)f->n_taken++, "id", call->id,
                     "type", "function", "function", "name", name, "arguments", "");
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
