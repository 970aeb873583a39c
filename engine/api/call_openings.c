/* call_openings.c - see call_openings.h. */
#include "engine/api/call_openings.h"

#include "engine/base/json.h"

enum {
    MAX_NAME_BYTES = 256, /* of a name that is not in an object, and of white space beside it */
    MIN_CUT_BYTES = 6     /* of a mark that the end of the text cuts off */
};

static const char function_tag[] = "<function=";

bool cn_is_call_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("_-.:/", c));
}

size_t cn_count_space(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && cn_json_is_space(text[i])) i++;
    return i;
}

bool cn_is_tool(const cn_tool_finder *f, const json_t *name)
{
    return json_is_string(name) &&
           json_object_getn(f->names, json_string_value(name), json_string_length(name));
}

/* Whether text[n] begins with the word. */
static cn_verdict match(const char *text, size_t n, const char *word)
{
    const size_t len = strlen(word);
    if (memcmp(text, word, n < len ? n : len) != 0) return CN_NO;
    return n < len ? CN_WAIT : CN_YES;
}

cn_verdict cn_match_call_mark(const char *text, size_t n, const cn_call_mark **out)
{
    cn_verdict found = CN_NO;
    for (size_t i = 0; i < CN_N_CALL_MARKS && found != CN_YES; i++) {
        if (cn_call_marks[i].kind == CN_MARK_INSIDE) continue;
        const cn_verdict v = match(text, n, cn_call_marks[i].text);
        if (v == CN_YES) *out = &cn_call_marks[i];
        if (v != CN_NO) found = v;
    }
    return found;
}

/* Whether text[n], which follows "NAME(", begins an argument or ends the call. */
static cn_verdict match_python(const char *text, size_t n)
{
    size_t i = cn_count_space(text, n);
    if (i > MAX_NAME_BYTES) return CN_NO;
    if (i < n && text[i] == ')') return CN_YES;
    const size_t key = i;
    while (i < n && cn_is_call_name_byte(text[i])) i++;
    const bool has_key = i > key;
    i += cn_count_space(text + i, n - i);
    if (i > MAX_NAME_BYTES) return CN_NO;
    if (i == n) return CN_WAIT;
    if (!has_key || text[i] != '=') return CN_NO;
    return i + 1 == n ? CN_WAIT : text[i + 1] == '=' ? CN_NO : CN_YES;
}

/* Whether text[n], which follows NAME, has a key in tags or ends a call without arguments. */
static cn_verdict match_pairs(const char *text, size_t n, size_t *space)
{
    *space = cn_count_space(text, n);
    if (*space > MAX_NAME_BYTES) return CN_NO;
    if (*space == n) return CN_WAIT;
    const cn_verdict v = match(text + *space, n - *space, CN_ARGUMENT_KEY);
    return v == CN_NO ? match(text + *space, n - *space, CN_TOOL_CALL_CLOSE) : v;
}

cn_verdict cn_match_call_name(cn_tool_finder *f, const char *text, size_t n, bool is_tagged,
                              size_t *len)
{
    size_t name = 0;
    json_decref(f->open.name);
    f->open.name = NULL;
    while (name < n && name < MAX_NAME_BYTES && cn_is_call_name_byte(text[name])) name++;
    if (name == MAX_NAME_BYTES) return CN_NO;
    if (name == n) return CN_WAIT;
    *len = name;
    size_t space = 0;
    const bool may_be_pairs = !is_tagged && (text[name] == '<' || cn_json_is_space(text[name]));
    const cn_verdict pairs = may_be_pairs ? match_pairs(text + name, n - name, &space) : CN_NO;
    if (pairs == CN_WAIT) return CN_WAIT;
    if (pairs == CN_YES) {
        *len += space;
    } else if (is_tagged) {
        if (text[(*len)++] != '>') return CN_NO;
    } else if (text[*len] == '(') {
        ++*len;
    } else {
        cn_verdict v = match(text + *len, n - *len, CN_CALL_ID);
        if (v == CN_YES) *len += strlen(CN_CALL_ID);
        while (v == CN_YES && *len < n && *len < 2 * MAX_NAME_BYTES &&
               cn_is_call_name_byte(text[*len]))
            ++*len;
        if (*len == 2 * MAX_NAME_BYTES) return CN_NO;
        if (v == CN_WAIT || *len == n) return CN_WAIT;
        v = match(text + *len, n - *len, CN_CALL_ARGUMENTS);
        if (v == CN_WAIT) return CN_WAIT;
        if (v == CN_YES) *len += strlen(CN_CALL_ARGUMENTS);
        if (v == CN_NO && text[*len] != '{') return CN_NO;
    }
    f->open.name = json_stringn(text, name);
    if (!cn_is_tool(f, f->open.name)) return CN_NO;
    return text[*len - 1] == '(' ? match_python(text + *len, n - *len) : CN_YES;
}

cn_verdict cn_match_fence(const char *text, size_t n, size_t *len)
{
    const cn_verdict v = match(text, n, CN_CALL_FENCE);
    size_t i = strlen(CN_CALL_FENCE);
    if (v != CN_YES) return v;
    while (i < n && cn_is_call_name_byte(text[i])) i++;
    i += cn_count_space(text + i, n - i);
    *len = i;
    if (i > MAX_NAME_BYTES) return CN_NO;
    return i == n ? CN_WAIT : CN_YES;
}

cn_verdict cn_match_fence_end(const char *text, size_t n, bool end)
{
    const size_t len = strlen(CN_CALL_FENCE);
    const cn_verdict v = match(text, n, CN_CALL_FENCE);
    if (v != CN_YES) return v == CN_WAIT && end ? CN_NO : v;
    if (n == len) return end ? CN_YES : CN_WAIT;
    return cn_is_call_name_byte(text[len]) ? CN_NO : CN_YES;
}

/* Text that begins a call without a mark. */
static cn_verdict match_unmarked(cn_tool_finder *f, const char *text, size_t n, bool end,
                                 cn_opening *out)
{
    if (*text == '{') return CN_YES;
    if (*text != '[') return CN_NO;
    const size_t space = 1 + cn_count_space(text + 1, n - 1);
    if (space > MAX_NAME_BYTES) return CN_NO;
    if (space == n) return end ? CN_NO : CN_WAIT;
    if (text[space] == '{') return CN_YES;
    if (!cn_is_call_name_byte(text[space])) return CN_NO;
    size_t len;
    const cn_verdict v = cn_match_call_name(f, text + space, n - space, false, &len);
    out->kind = CN_AT_LIST;
    out->n = space;
    /* Without its end, text with the name of a tool is dropped, and other text is content. */
    if (v == CN_WAIT) return !end || cn_is_tool(f, f->open.name) ? CN_WAIT : CN_NO;
    return v == CN_YES && text[space + len - 1] == '(' ? CN_YES : CN_NO;
}

/* Whether a call or a mark begins text[n]. */
static cn_verdict match_call(cn_tool_finder *f, const char *text, size_t n, bool end,
                             cn_opening *out)
{
    const size_t tag = strlen(function_tag);
    cn_verdict v = *text == '<' || *text == '[' ? cn_match_call_mark(text, n, &out->mark) : CN_NO;
    if (v == CN_YES && out->mark->kind == CN_MARK_CLOSES_CALL) v = CN_NO;
    if (v == CN_NO) out->mark = NULL;
    if (v == CN_NO && *text == '<' && !f->is_content) {
        v = match(text, n, function_tag);
        if (v == CN_YES) v = cn_match_call_name(f, text + tag, n - tag, true, &out->n);
        out->n += tag;
        out->kind = CN_AT_TAG;
    }
    if (v == CN_WAIT && end && n < MIN_CUT_BYTES && !f->is_forced && !f->is_either) v = CN_NO;
    if (v != CN_NO || f->is_content || !cn_tools_need_no_mark(f->form)) return v;
    out->kind = CN_AT_OBJECT;
    return match_unmarked(f, text, n, end, out);
}

cn_verdict cn_match_opening(cn_tool_finder *f, size_t i, bool end, cn_opening *out)
{
    const char *text = f->held.data + i;
    const size_t n = f->held.len - i;
    *out = (cn_opening){0};
    f->n_work++;
    if (*text != '`' || f->is_content) return match_call(f, text, n, end, out);
    cn_verdict v = CN_NO;
    if (f->is_fenced || f->in_code) v = cn_match_fence_end(text, n, end);
    if (v == CN_YES) out->kind = CN_AT_FENCE_END;
    if (v != CN_NO) return v;
    v = cn_match_fence(text, n, &out->n_fence);
    if (v != CN_YES) return end ? CN_NO : v;
    f->is_fenced = false; /* the fence before was not closed */
    v = match_call(f, text + out->n_fence, n - out->n_fence, end, out);
    f->in_code |= v == CN_NO;
    return v;
}
