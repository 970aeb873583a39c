/* api_call_text.c - finds tool calls in a generated text. See api_tools.h.
 *
 * Every decision depends only on the text so far, never on how it was cut into pieces: where more
 * text could change a decision, the text is held until it arrives. */

#include "engine/api/api_tools.h"
#include "engine/api/call_openings.h"
#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/text/call_marks.h"

enum {
    ID_BYTES = 12, /* drawn for an id */
    MISTRAL_ID_BYTES = 9,
    SLICE_BYTES = 512, /* that are held at a time, so that little is moved when some are dropped */
    MAX_FAILED_BYTES = 64 << 10 /* read as calls that were none, and then again as content */
};

/* ---- the call ---- */

/* The templates of the Mistral models refuse other ids than nine letters and digits. */
static cn_status make_id(cn_opt_tool_parser form, char *id)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const bool is_mistral = form == CN_OPT_TOOLS_MISTRAL;
    unsigned char bytes[ID_BYTES];
    CN_TRY(cn_random_bytes(bytes, sizeof bytes));
    size_t len = is_mistral ? 0 : (size_t)sprintf(id, "call_");
    for (size_t i = 0; i < sizeof bytes && !is_mistral; i++)
        len += (size_t)sprintf(id + len, "%02x", bytes[i]);
    for (; is_mistral && len < MISTRAL_ID_BYTES; len++)
        id[len] = letters[bytes[len] % (sizeof letters - 1)];
    id[len] = '\0';
    return CN_OK;
}

static void free_tool_call(cn_tool_call *call)
{
    json_decref(call->name);
    cn_buf_free(&call->arguments);
    *call = (cn_tool_call){0};
}

/* Expects an object, or an array of objects, from byte `begin` of the held text on. */
static void begin_object(cn_tool_finder *f, size_t begin)
{
    f->place = CN_BEFORE_OBJECT;
    f->begin = f->at = begin;
    f->is_call = f->is_kept = f->has_arguments = f->is_bare = f->is_nested = false;
    f->is_python = f->has_fence = false;
    f->arguments = CN_ARGUMENTS_UNKNOWN;
    f->n_escape = f->surrogate = 0;
    f->n_blank = 0;
    cn_buf_clear(&f->decoded);
    free_tool_call(&f->open);
}

/* The object is a call: moves it to `calls`, or drops it after the first. */
static cn_status find_call(cn_tool_finder *f)
{
    f->is_call = true;
    f->is_fenced |= f->has_fence;
    if (f->only_one && f->n_calls > 0) return CN_OK;
    CN_TRY(CN_ROOM(&f->calls, f->n_calls, "the tool calls"));
    CN_TRY(make_id(f->form, f->open.id));
    f->open.content_at = f->n_content;
    f->calls[f->n_calls++] = f->open;
    f->open = (cn_tool_call){0};
    f->is_kept = true;
    return CN_OK;
}

/* ---- the arguments ---- */

static cn_buf *arguments_of(cn_tool_finder *f)
{
    return f->is_kept ? &f->calls[f->n_calls - 1].arguments : &f->open.arguments;
}

static cn_status add_arguments(cn_tool_finder *f, const char *text, size_t n)
{
    return cn_buf_add(arguments_of(f), text, n);
}

static cn_status add_call_character(cn_buf *out, uint32_t character)
{
    char bytes[4];
    return cn_buf_add(out, bytes, cn_utf8_write(bytes, character));
}

/* The first half of a character that has no second half. */
static cn_status end_surrogate(cn_tool_finder *f, cn_buf *out)
{
    if (!f->surrogate) return CN_OK;
    f->surrogate = 0;
    return cn_buf_add(out, CN_UTF8_REPLACEMENT, strlen(CN_UTF8_REPLACEMENT));
}

/* Takes \uXXXX. Two of them may make one character. */
static cn_status add_unit(cn_tool_finder *f, uint32_t unit, cn_buf *out)
{
    const bool first = unit >= 0xd800 && unit < 0xdc00, second = unit >= 0xdc00 && unit < 0xe000;
    if (second && f->surrogate) {
        const uint32_t character = 0x10000 + ((f->surrogate - 0xd800) << 10) + (unit - 0xdc00);
        f->surrogate = 0;
        return add_call_character(out, character);
    }
    CN_TRY(end_surrogate(f, out));
    f->surrogate = first ? unit : 0;
    return first ? CN_OK : add_call_character(out, second ? 0xfffd : unit);
}

static cn_status end_escape(cn_tool_finder *f, cn_buf *out)
{
    static const char codes[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    const char *code = strchr(codes, f->escape[1]);
    uint32_t unit = 0;
    for (uint32_t i = 2; i < f->n_escape; i++) {
        const char *digits = "0123456789abcdef", *digit = strchr(digits, f->escape[i] | 0x20);
        unit = unit * 16 + (uint32_t)(digit ? digit - digits : 0);
    }
    if (f->n_escape == sizeof f->escape) {
        f->n_escape = 0;
        return add_unit(f, unit, out);
    }
    CN_TRY(end_surrogate(f, out));
    const uint32_t n = f->n_escape;
    f->n_escape = 0;
    return code ? cn_buf_add(out, &bytes[code - codes], 1) : cn_buf_add(out, f->escape, n);
}

/* Takes a byte within the quotes of a string and appends what is decoded. An invalid escape
 * sequence stays as it is. */
static cn_status decode(cn_tool_finder *f, char c, cn_buf *out)
{
    if (f->n_escape == 0 && c != '\\') {
        CN_TRY(end_surrogate(f, out));
        return cn_buf_add(out, &c, 1);
    }
    const bool hex = f->n_escape >= 2;
    if (hex && (!c || !strchr("0123456789abcdefABCDEF", c))) {
        CN_TRY(end_surrogate(f, out));
        const uint32_t n = f->n_escape;
        f->n_escape = 0;
        CN_TRY(cn_buf_add(out, f->escape, n));
        return decode(f, c, out);
    }
    f->escape[f->n_escape++] = c;
    if (f->n_escape == 1 || (f->escape[1] == 'u' && f->n_escape < sizeof f->escape)) return CN_OK;
    return end_escape(f, out);
}

/* Reads the white space of the held text, or of arguments, after *n bytes that are known to be. */
static void skip_call_space(cn_tool_finder *f, const cn_buf *b, size_t *n)
{
    const size_t begin = *n;
    if (begin < b->len) *n += cn_count_space(b->data + begin, b->len - begin);
    f->n_work += *n - begin + 1;
}

/* Decides how the arguments are passed on, once that is known, and passes on what was held. */
static cn_status choose_arguments(cn_tool_finder *f)
{
    const cn_buf *word = &f->word, *text = &f->decoded;
    const bool string = word->data[0] == '"', list = word->data[0] == '[';
    if (list && f->n_blank == 0) f->n_blank = 1; /* the bracket */
    if (string || list) skip_call_space(f, list ? word : text, &f->n_blank);
    const size_t space = f->n_blank;
    if (string ? space == text->len : list && space == word->len) return CN_OK;
    if (list && word->data[space] == ']') return CN_OK;
    const bool decoded = string && text->data[space] == '{';
    if (!string && !list && word->data[0] != '{') return CN_OK;
    f->arguments = decoded ? CN_ARGUMENTS_TEXT : CN_ARGUMENTS_RAW;
    return decoded ? add_arguments(f, text->data, text->len)
                   : add_arguments(f, word->data, word->len);
}

/* Takes a byte of the arguments. is_text: it is within the quotes of the arguments. */
static cn_status add_argument_byte(cn_tool_finder *f, char c, bool is_text)
{
    cn_buf *out = arguments_of(f);
    if (f->arguments == CN_ARGUMENTS_TEXT) return is_text ? decode(f, c, out) : CN_OK;
    if (f->arguments == CN_ARGUMENTS_RAW || f->is_forced) return cn_buf_add(out, &c, 1);
    CN_TRY(cn_buf_add(&f->word, &c, 1));
    if (is_text) CN_TRY(decode(f, c, &f->decoded));
    return choose_arguments(f);
}

/* Arguments that say nothing are {}; of a literal, all is known now. */
static cn_status end_arguments(cn_tool_finder *f)
{
    if (f->arguments != CN_ARGUMENTS_UNKNOWN || f->is_forced) return CN_OK;
    f->arguments = CN_ARGUMENTS_RAW;
    const bool none = strcmp(f->word.data, "null") == 0 || strchr("\"[", f->word.data[0]);
    return none ? add_arguments(f, "{}", 2) : add_arguments(f, f->word.data, f->word.len);
}

/* ---- the object of a call ---- */

/* The functions below set *ok, or return, false if the text cannot be that of a call. It is then
 * `is_skipping` if it may be other JSON. */

/* Reads the key of a member. Of a key that is there twice, the first counts. */
static bool end_key(cn_tool_finder *f)
{
    const char *word = f->word.data;
    const bool arguments = !strcmp(word, "\"arguments\"") || !strcmp(word, "\"parameters\"");
    const bool function = !strcmp(word, "\"function\""), name = !strcmp(word, "\"name\"");
    f->place = CN_BEFORE_COLON;
    f->value = CN_ITEM_OTHER;
    if ((name || function) && !f->is_call && !f->open.name) f->value = CN_ITEM_NAME;
    if (arguments && !f->has_arguments) f->value = CN_ITEM_ARGUMENTS;
    const bool known = arguments || function || name || !strcmp(word, "\"type\"") ||
                       !strcmp(word, "\"id\"") || !strcmp(word, "\"index\"");
    f->is_skipping = !known && !f->is_marked && !f->is_call;
    return !f->is_skipping;
}

static cn_status end_call_item(cn_tool_finder *f, bool *ok)
{
    if (f->item == CN_ITEM_KEY) {
        *ok = end_key(f);
        return CN_OK;
    }
    f->place = f->is_bare ? CN_AFTER_OBJECT : CN_AFTER_VALUE;
    if (f->item == CN_ITEM_ARGUMENTS) return end_arguments(f);
    if (f->item == CN_ITEM_NAME) {
        f->open.name = json_loadb(f->word.data, f->word.len, JSON_DECODE_ANY, NULL);
        *ok = cn_is_tool(f, f->open.name);
        f->is_skipping = f->open.name && !*ok;
    }
    return CN_OK;
}

/* Reads a byte of a key or value, up to the quote or bracket that closes it. */
static cn_status add_to_item(cn_tool_finder *f, char c, bool *ok)
{
    const bool was_quoted = f->quoted;
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
    const bool closes = c == '"' || c == '}' || c == ']';
    if (f->item == CN_ITEM_ARGUMENTS)
        CN_TRY(add_argument_byte(f, c, was_quoted && f->quoted));
    else if (f->item != CN_ITEM_OTHER)
        CN_TRY(cn_buf_add(&f->word, &c, 1));
    return closes && !f->quoted && f->depth == 0 ? end_call_item(f, ok) : CN_OK;
}

static cn_status begin_call_item(cn_tool_finder *f, int item, char c, bool *ok)
{
    const bool arguments = item == CN_ITEM_ARGUMENTS;
    if (item == CN_ITEM_KEY || item == CN_ITEM_NAME)
        *ok = c == '"';
    else
        *ok = f->is_bare ? c == '{' : !strchr(",:}]<", c);
    if (!*ok) return CN_OK;
    f->item = item;
    f->place = CN_IN_ITEM;
    f->depth = 0;
    f->quoted = f->escaped = false;
    f->has_arguments |= arguments;
    cn_buf_clear(&f->word);
    return add_to_item(f, c, ok);
}

/* Reads the first byte of a value. The member "function" may have the other members. */
static cn_status begin_value(cn_tool_finder *f, char c, bool *ok)
{
    if (f->value == CN_ITEM_NAME && c == '{' && !f->is_nested &&
        strcmp(f->word.data, "\"function\"") == 0) {
        f->is_nested = true;
        f->place = CN_BEFORE_KEY;
        return CN_OK;
    }
    return begin_call_item(f, f->value, c, ok);
}

static void end_object(cn_tool_finder *f)
{
    f->place = f->is_nested ? CN_AFTER_VALUE : CN_AFTER_OBJECT;
    f->is_nested = false;
}

static cn_status read_python(cn_tool_finder *f, char c)
{
    bool ended;
    f->has_arguments = true;
    CN_TRY(cn_python_args_add(&f->python, c, arguments_of(f), &ended));
    if (ended) f->place = CN_AFTER_OBJECT;
    return CN_OK;
}

/* The text is read again, before what is queued. */
static cn_status unread(cn_tool_finder *f, const char *text, size_t n)
{
    cn_buf *q = &f->queue;
    if (n > f->queue_at) { /* no room before it */
        const size_t n_left = q->len - f->queue_at;
        CN_TRY(cn_buf_add(q, text, n));
        memmove(q->data + n, q->data + f->queue_at, n_left);
        f->queue_at = n;
        q->len = n + n_left;
        f->n_work += q->len;
    }
    if (n == 0) return CN_OK;
    f->queue_at -= n;
    memcpy(q->data + f->queue_at, text, n);
    f->n_work += n;
    return CN_OK;
}

/* The held text from byte `at` on is read again. */
static cn_status unread_held(cn_tool_finder *f, size_t at)
{
    CN_TRY(unread(f, f->held.data + at, f->held.len - at));
    f->held.len = at;
    return CN_OK;
}

/* What was read as the last value of a call, but follows it, is read again. */
static cn_status unread_rest(cn_tool_finder *f)
{
    CN_TRY(unread(f, f->xml.rest.data, f->xml.rest.len));
    cn_buf_clear(&f->xml.rest);
    return CN_OK;
}

static cn_status read_xml(cn_tool_finder *f, char c, bool *ok)
{
    cn_xml_step step;
    CN_TRY(cn_xml_args_add(&f->xml, c, arguments_of(f), &step));
    if (f->xml.rest.len > 0) {
        CN_TRY(unread_held(f, f->at + 1));
        CN_TRY(unread_rest(f));
    }
    *ok = step != CN_XML_NONE;
    f->has_arguments = f->is_call || f->open.arguments.len > 0;
    if (step == CN_XML_ENDED) f->place = CN_AFTER_OBJECT;
    return CN_OK;
}

static cn_status begin_xml(cn_tool_finder *f, char c, bool *ok)
{
    f->place = CN_IN_XML;
    cn_xml_args_free(&f->xml);
    f->xml.parameters = json_object_getn(f->names, json_string_value(f->open.name),
                                         json_string_length(f->open.name));
    return read_xml(f, c, ok);
}

static cn_status read_call_byte(cn_tool_finder *f, char c, bool *ok)
{
    if (f->place == CN_IN_PYTHON) return read_python(f, c);
    if (f->place == CN_IN_XML) return read_xml(f, c, ok);
    /* A number or literal ends before this byte. */
    if (f->place == CN_IN_ITEM && !f->quoted && f->depth == 0 &&
        (cn_json_is_space(c) || strchr(",}]", c)))
        CN_TRY(end_call_item(f, ok));
    if (!*ok || (f->place != CN_IN_ITEM && cn_json_is_space(c))) return CN_OK;
    switch (f->place) {
    case CN_BEFORE_OBJECT:
        *ok = c == '{' || (c == '[' && !f->is_in_list);
        f->is_in_list |= c == '[';
        if (c == '{') f->place = CN_BEFORE_KEY;
        break;
    case CN_BEFORE_KEY:
        if (c != '}') return begin_call_item(f, CN_ITEM_KEY, c, ok);
        end_object(f);
        break;
    case CN_BEFORE_COLON:
        *ok = c == ':';
        f->place = CN_BEFORE_VALUE;
        break;
    case CN_BEFORE_VALUE:
        return f->is_bare && c == '<' ? begin_xml(f, c, ok) : begin_value(f, c, ok);
    case CN_IN_ITEM: return add_to_item(f, c, ok);
    default: /* CN_AFTER_VALUE */
        *ok = c == ',' || c == '}';
        f->place = CN_BEFORE_KEY;
        if (c == '}') end_object(f);
    }
    return CN_OK;
}

/* ---- the held text ---- */

static void drop(cn_tool_finder *f, size_t at, size_t n)
{
    cn_buf *b = &f->held;
    const size_t n_left = b->len - at - n;
    if (n_left > 0) memmove(b->data + at, b->data + at + n, n_left);
    f->n_work += n_left;
    b->len -= n;
}

/* Gives the first n held bytes to the content. */
static cn_status release(cn_tool_finder *f, size_t n, cn_buf *content)
{
    if (n == 0) return CN_OK;
    CN_TRY(cn_buf_add(content, f->held.data, n));
    f->n_content += n;
    drop(f, 0, n);
    return CN_OK;
}

/* The arguments follow byte `at` of the held text, without an object. */
static void begin_bare(cn_tool_finder *f, size_t at)
{
    f->begin = f->at = at;
    f->is_bare = f->is_marked = true;
    f->place = CN_BEFORE_VALUE;
    f->value = CN_ITEM_ARGUMENTS;
}

static void begin_python(cn_tool_finder *f, size_t at)
{
    begin_bare(f, at);
    f->place = CN_IN_PYTHON;
    f->is_python = true;
    f->python = (cn_python_args){0};
}

/* ---- outside of calls ---- */

/* The text of a mark, tag or bracket is dropped; that of a fence is content if no call follows. */
static void open_call(cn_tool_finder *f, size_t at, const cn_opening *found)
{
    const cn_call_mark *mark = found->mark;
    const size_t after_fence = at + found->n_fence;
    if (mark) drop(f, after_fence, strlen(mark->text));
    if (mark && (mark->kind != CN_MARK_OPENS || f->is_content)) return;
    const bool is_tag = !mark && found->kind == CN_AT_TAG,
               is_list = !mark && found->kind == CN_AT_LIST;
    json_t *name = is_tag ? json_incref(f->open.name) : NULL;
    begin_object(f, at);
    f->is_in_list = is_list;
    f->is_marked = mark || is_list;
    f->has_fence = found->n_fence > 0;
    if (is_tag || is_list) drop(f, after_fence, found->n);
    if (is_tag) begin_bare(f, at);
    f->open.name = name;
    f->at = after_fence;
}

/* Reads a fence that ends code. That of a call is dropped. */
static cn_status end_fence(cn_tool_finder *f, size_t at, cn_buf *content)
{
    const size_t n = strlen(CN_CALL_FENCE);
    const bool is_of_call = f->is_fenced;
    f->is_fenced = f->in_code = false;
    if (!is_of_call) {
        f->n_space = 0;
        return release(f, at + n, content);
    }
    drop(f, at, n);
    return CN_OK;
}

/* Passes on an object or array that has no call. */
static cn_status skip_json(cn_tool_finder *f, cn_buf *content)
{
    size_t n = 0;
    while (n < f->held.len && f->is_skipping) {
        const char c = f->held.data[n++];
        const bool quote = c == '"' && !f->escaped;
        f->escaped = f->quoted && !f->escaped && c == '\\';
        if (quote) f->quoted = !f->quoted;
        if (f->quoted || quote) continue;
        if (c == '{' || c == '[') f->depth++;
        if (c == '}' || c == ']') f->is_skipping = --f->depth > 0;
    }
    return release(f, n, content);
}

/* No call is sought any more. */
static cn_status read_call_rest(cn_tool_finder *f, cn_buf *content)
{
    f->form = CN_OPT_TOOLS_NONE;
    f->place = CN_OUTSIDE;
    f->is_skipping = false;
    return release(f, f->held.len, content);
}

/* Text up to what may begin a call is content, but white space that may stand before a call is kept
 * back. *more: the text that follows is to be looked at. */
static cn_status read_call_content(cn_tool_finder *f, bool end, bool *more, cn_buf *content)
{
    if (f->is_skipping) CN_TRY(skip_json(f, content));
    *more = false;
    cn_opening found = {0};
    cn_verdict v = CN_NO;
    size_t i = f->n_space;
    if (f->is_either && f->n_calls == 0) {
        skip_call_space(f, &f->held, &i);
        v = i < f->held.len ? cn_match_opening(f, i, end, &found) : CN_WAIT;
        if (v == CN_NO) return read_call_rest(f, content);
    }
    while (i < f->held.len && v == CN_NO && (v = cn_match_opening(f, i, end, &found)) == CN_NO) i++;
    const bool trims = v != CN_NO || !end || f->n_calls > 0 || f->is_forced;
    size_t kept = i;
    while (trims && kept > f->n_space && cn_json_is_space(f->held.data[kept - 1])) kept--;
    if (trims && kept == f->n_space) kept = 0;
    CN_TRY(release(f, kept, content));
    *more = v == CN_YES;
    f->n_space = !*more && end ? 0 : i - kept;
    if (v == CN_YES && !found.mark && found.kind == CN_AT_FENCE_END)
        CN_TRY(end_fence(f, i - kept, content));
    else if (v == CN_YES)
        open_call(f, i - kept, &found);
    else if (end)
        drop(f, 0, f->held.len);
    return CN_OK;
}

/* ---- calls ---- */

/* What was read is not a call. */
static cn_status fail_call(cn_tool_finder *f, cn_buf *content)
{
    /* What follows a fence may be a call in tags. */
    const bool is_tag = f->has_fence && f->place == CN_BEFORE_OBJECT && f->held.data[f->at] == '<';
    const size_t n_read = is_tag ? 0 : f->at - f->begin;
    if (f->is_either && f->n_calls == 0) return read_call_rest(f, content);
    f->in_code |= f->has_fence && !is_tag;
    f->place = CN_OUTSIDE;
    f->n_failed += n_read;
    f->is_content = f->n_failed > MAX_FAILED_BYTES;
    f->depth = 0;
    f->quoted = f->escaped = false;
    if (f->is_content) f->is_skipping = false;
    const bool begins_again = !f->is_skipping && n_read == 0;
    f->n_space = begins_again && !f->is_bare ? f->begin : 0;
    /* Its first byte does not begin a call again. */
    if (!f->is_skipping && !begins_again) CN_TRY(release(f, f->begin + 1, content));
    return f->held.len > f->n_space + SLICE_BYTES ? unread_held(f, f->n_space) : CN_OK;
}

/* The name being read is the start of that of a tool. */
static bool begins_name(const cn_tool_finder *f)
{
    const char *name;
    json_t *v;
    if (f->item != CN_ITEM_NAME || f->place != CN_IN_ITEM) return false;
    json_object_foreach((json_t *)f->names, name,
                        v) if (strncmp(name, f->word.data + 1, f->word.len - 1) == 0) return true;
    return false;
}

/* The text has ended within what may be a call. */
static cn_status cut_call(cn_tool_finder *f, cn_buf *content)
{
    if (f->is_marked || f->is_forced || f->open.name || begins_name(f)) f->held.len = 0;
    f->place = CN_OUTSIDE;
    f->n_space = 0;
    return release(f, f->held.len, content);
}

/* Reads the name of a call that has no object. False: the text has none, or not all of it. */
static bool read_name(cn_tool_finder *f, bool end, bool *ok)
{
    size_t n;
    const cn_verdict v =
        cn_match_call_name(f, f->held.data + f->at, f->held.len - f->at, false, &n);
    *ok = v == CN_YES || (v == CN_WAIT && !end);
    if (v != CN_YES) return false;
    const bool is_python = f->held.data[f->at + n - 1] == '(';
    drop(f, f->at, n);
    if (is_python)
        begin_python(f, f->at);
    else
        begin_bare(f, f->at);
    return true;
}

/* Reads a fence between a mark and its call. False: as in read_name. */
static bool read_fence(cn_tool_finder *f, bool end, bool *ok)
{
    size_t n;
    const cn_verdict v = cn_match_fence(f->held.data + f->at, f->held.len - f->at, &n);
    *ok = v == CN_YES || (v == CN_WAIT && !end);
    if (v != CN_YES) return false;
    f->at += n; /* it is content if no call follows */
    f->has_fence = true;
    return true;
}

/* Reads up to the end of the object, or to what cannot be part of a call: then *ok is false. */
static cn_status read_call_bytes(cn_tool_finder *f, bool end, bool *ok)
{
    while (f->at < f->held.len && f->place != CN_AFTER_OBJECT) {
        const char c = f->held.data[f->at];
        const bool is_before = f->place == CN_BEFORE_OBJECT,
                   is_first = is_before && f->at == f->begin;
        if (is_before && f->is_marked && cn_is_call_name_byte(c)) {
            if (read_name(f, end, ok)) continue;
            break;
        }
        if (is_first && f->is_marked && c == '`') {
            if (read_fence(f, end, ok)) continue;
            break;
        }
        CN_TRY(read_call_byte(f, c, ok));
        if (!*ok) break;
        f->at++;
        if (is_first && cn_json_is_space(c)) f->begin = f->at;
        if (!f->is_call && f->open.name && f->has_arguments) CN_TRY(find_call(f));
    }
    return CN_OK;
}

/* The text ends within arguments that are not JSON. */
static cn_status end_arguments_early(cn_tool_finder *f)
{
    if (f->place == CN_IN_PYTHON)
        return cn_python_args_cut(&f->python, f->is_stopped, arguments_of(f));
    if (f->place != CN_IN_XML) return CN_OK;
    CN_TRY(cn_xml_args_cut(&f->xml, f->is_stopped, arguments_of(f)));
    return unread_rest(f);
}

/* Reads an object up to its end. *more: the object has ended, or there is none. */
static cn_status read_object(cn_tool_finder *f, bool end, bool *more, cn_buf *content)
{
    bool ok = true;
    CN_TRY(read_call_bytes(f, end, &ok));
    if (f->is_call) {
        drop(f, 0, f->at);
        f->at = f->n_space = 0;
    }
    const bool ended = f->place == CN_AFTER_OBJECT;
    *more = !ok || end || ended;
    if (end && f->is_call) CN_TRY(end_arguments_early(f));
    if (*more && f->is_call) f->place = CN_AFTER_OBJECT;
    if (!*more || f->is_call) return CN_OK;
    f->is_skipping |= ended;
    return ok && !ended ? cut_call(f, content) : fail_call(f, content);
}

/* Drops what may follow a call: separators, brackets that close more than was open, and marks.
 * *more: what follows is known. */
static void leave_call(cn_tool_finder *f, bool end, bool *more)
{
    skip_call_space(f, &f->held, &f->n_space);
    const size_t space = f->n_space, n = f->held.len - space;
    const char *text = f->held.data + space;
    const cn_call_mark *mark = NULL;
    cn_verdict v = n > 0 ? cn_match_call_mark(text, n, &mark) : CN_WAIT;
    if (v == CN_NO && f->is_fenced) v = cn_match_fence_end(text, n, end);
    *more = v != CN_WAIT || end;
    if (!*more) return;
    f->n_space = 0;
    if (n == 0 || v == CN_WAIT) {
        drop(f, 0, f->held.len);
        f->place = CN_OUTSIDE;
    } else if (v == CN_YES && mark) {
        drop(f, 0, space + strlen(mark->text));
        if (mark->kind != CN_MARK_OPENS) return;
        f->is_marked = true;
        f->is_in_list = false;
        begin_object(f, 0);
    } else if (v == CN_YES) {
        f->is_fenced = false;
        drop(f, 0, space + strlen(CN_CALL_FENCE));
    } else if (strchr(";,]}", *text)) {
        f->is_in_list &= *text != ']';
        drop(f, 0, space + 1);
    } else {
        f->is_marked = f->is_in_list || f->is_python;
        begin_object(f, space);
    }
}

/* Reads what is held. `end`: nothing follows what is held and queued. */
static cn_status read_held(cn_tool_finder *f, bool end, cn_buf *content)
{
    for (bool more = true; more;) {
        const bool is_last = end && f->queue_at == f->queue.len;
        if (f->form == CN_OPT_TOOLS_NONE)
            more = false;
        else if (f->place == CN_OUTSIDE)
            CN_TRY(read_call_content(f, is_last, &more, content));
        else if (f->place == CN_AFTER_OBJECT)
            leave_call(f, is_last, &more);
        else
            CN_TRY(read_object(f, is_last, &more, content));
    }
    return CN_OK;
}

/* Holds the next bytes of the queue. */
static cn_status hold_slice(cn_tool_finder *f)
{
    const size_t n_left = f->queue.len - f->queue_at,
                 n = n_left < SLICE_BYTES ? n_left : SLICE_BYTES;
    if (n == 0) return CN_OK;
    f->queue_at += n;
    return cn_buf_add(&f->held, f->queue.data + f->queue_at - n, n);
}

cn_status cn_tool_finder_add(cn_tool_finder *f, const char *text, size_t n, bool end,
                             cn_buf *content)
{
    if (f->form == CN_OPT_TOOLS_NONE) return cn_buf_add(content, text, n);
    cn_buf_clear(&f->queue);
    f->queue_at = 0;
    if (n > 0) CN_TRY(cn_buf_add(&f->queue, text, n));
    do {
        CN_TRY(hold_slice(f));
        if (f->form == CN_OPT_TOOLS_NONE)
            CN_TRY(release(f, f->held.len, content));
        else
            CN_TRY(read_held(f, end, content));
    } while (f->queue_at < f->queue.len);
    return CN_OK;
}

void cn_tool_finder_free(cn_tool_finder *f)
{
    for (uint32_t i = 0; i < f->n_calls; i++) free_tool_call(&f->calls[i]);
    free_tool_call(&f->open);
    cn_free(f->calls);
    cn_buf_free(&f->queue);
    cn_buf_free(&f->held);
    cn_buf_free(&f->word);
    cn_buf_free(&f->decoded);
    cn_xml_args_free(&f->xml);
    *f = (cn_tool_finder){0};
}
