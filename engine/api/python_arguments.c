/* python_arguments.c - see python_arguments.h. */
#include "engine/api/python_arguments.h"

#include <stdlib.h>

#include "engine/base/json.h"

enum {
    MAX_LITERAL_BYTES = 8, /* of True, False or None, and more */
    MAX_DICTS = 64         /* brackets of which p->dicts knows the kind */
};

static bool is_python_one_of(char c, const char *set) { return c && strchr(set, c); }

static cn_status put_python_text(cn_buf *out, const char *text)
{
    return cn_buf_add(out, text, strlen(text));
}

/* ---- strings ---- */

/* A character of the string that is being written. */
static cn_status put_character(cn_buf *out, char c)
{
    static const char codes[] = "\"\\bfnrt", bytes[] = "\"\\\b\f\n\r\t";
    const char *found = c ? strchr(bytes, c) : NULL;
    if (found) return cn_buf_addf(out, "\\%c", codes[found - bytes]);
    if ((unsigned char)c < 0x20) return cn_buf_addf(out, "\\u%04x", (unsigned)c);
    return cn_buf_add(out, &c, 1);
}

/* How many hexadecimal digits follow \x, \u or \U. */
static uint8_t digits_after(char code) { return code == 'x' ? 2 : code == 'u' ? 4 : 8; }

static cn_status put_code(cn_buf *out, const char *digits)
{
    const unsigned long code = strtoul(digits, NULL, 16);
    if (code < 0x10000) return cn_buf_addf(out, "\\u%04lx", code);
    if (code > 0x10ffff) return put_python_text(out, "\\ufffd");
    return cn_buf_addf(out, "\\u%04lx\\u%04lx", 0xd800 + ((code - 0x10000) >> 10),
                       0xdc00 + (code & 0x3ff));
}

/* A backslash that begins no escape sequence is a character. */
static cn_status put_escape(cn_python_args *p, cn_buf *out)
{
    const uint8_t n = p->n_escape;
    p->n_escape = 0;
    for (uint8_t i = 0; i < n; i++) CN_TRY(put_character(out, p->escape[i]));
    return CN_OK;
}

/* Takes a byte of an escape sequence. *again: the byte is not part of it. */
static cn_status add_python_escaped(cn_python_args *p, char c, cn_buf *out, bool *again)
{
    static const char codes[] = "abfnrtv0\\'\"", bytes[] = "\a\b\f\n\r\t\v\0\\'\"";
    if (p->n_escape == 1) {
        const char *code = c ? strchr(codes, c) : NULL;
        p->escape[p->n_escape++] = c;
        if (is_python_one_of(c, "xuU")) return CN_OK;
        if (!code && c != '\n') return put_escape(p, out);
        p->n_escape = 0;
        return code ? put_character(out, bytes[code - codes]) : CN_OK;
    }
    *again = !is_python_one_of(c, "0123456789abcdefABCDEF");
    if (*again) return put_escape(p, out);
    p->escape[p->n_escape++] = c;
    if (p->n_escape < 2 + digits_after(p->escape[1])) return CN_OK;
    char digits[sizeof p->escape + 1] = "";
    memcpy(digits, p->escape + 2, p->n_escape - 2u);
    p->n_escape = 0;
    return put_code(out, digits);
}

static cn_status end_string(cn_python_args *p, cn_buf *out)
{
    p->quote = 0;
    return put_python_text(out, "\"");
}

/* Takes a byte of a string. *again: the string ended before it. */
static cn_status add_to_string(cn_python_args *p, char c, cn_buf *out, bool *again)
{
    if (p->n_open > 0 && c == p->quote) {
        p->triple = ++p->n_open == 3;
        if (p->triple) p->n_open = 0;
        return CN_OK;
    }
    *again = p->n_open == 2; /* "" */
    p->n_open = 0;
    if (*again) return end_string(p, out);
    if (p->n_escape > 0) {
        bool rest = false;
        CN_TRY(add_python_escaped(p, c, out, &rest));
        return rest ? add_to_string(p, c, out, again) : CN_OK;
    }
    if (c == p->quote && (!p->triple || ++p->n_close == 3)) return end_string(p, out);
    if (c == p->quote) return CN_OK;
    for (; p->n_close > 0; p->n_close--) CN_TRY(put_character(out, p->quote));
    if (c != '\\' || p->raw) return put_character(out, c);
    p->escape[p->n_escape++] = c;
    return CN_OK;
}

/* ---- values ---- */

static cn_status put_comma(cn_python_args *p, cn_buf *out)
{
    const bool comma = p->comma;
    p->comma = false;
    return comma ? put_python_text(out, ", ") : CN_OK;
}

static cn_status end_python_word(cn_python_args *p, cn_buf *out)
{
    static const char *const names[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    const uint8_t n = p->n_word;
    p->n_word = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i][0]) == n && memcmp(names[i][0], p->word, n) == 0)
            return put_python_text(out, names[i][1]);
    return cn_buf_add(out, p->word, n);
}

static bool is_in_dict(const cn_python_args *p)
{
    return p->depth > 0 && p->depth <= MAX_DICTS && p->dicts >> (p->depth - 1) & 1;
}

/* A string, word or bracket begins. */
static void note_begin(cn_python_args *p)
{
    const bool is_key = is_in_dict(p) && p->part == CN_PYTHON_NOTHING;
    if (p->part != CN_PYTHON_KEY) p->part = is_key ? CN_PYTHON_KEY : CN_PYTHON_VALUE;
}

static void note_open(cn_python_args *p, bool is_dict)
{
    if (p->depth < MAX_DICTS)
        p->dicts = (p->dicts & ~(UINT64_C(1) << p->depth)) | (uint64_t)is_dict << p->depth;
    p->depth++;
    p->part = CN_PYTHON_NOTHING;
}

/* The letters before a quote say how the string is written. */
static cn_status begin_string(cn_python_args *p, char quote, cn_buf *out)
{
    bool prefix = p->n_word <= 2;
    p->raw = false;
    for (uint8_t i = 0; i < p->n_word && prefix; i++) {
        prefix = strchr("rRbBuUfF", p->word[i]) != NULL;
        p->raw |= (p->word[i] | 0x20) == 'r';
    }
    if (!prefix) CN_TRY(end_python_word(p, out));
    p->n_word = 0;
    note_begin(p);
    p->quote = quote;
    p->n_open = 1;
    p->n_close = 0;
    p->triple = false;
    CN_TRY(put_comma(p, out));
    return put_python_text(out, "\"");
}

static cn_status add_to_word(cn_python_args *p, char c, cn_buf *out)
{
    CN_TRY(put_comma(p, out));
    if (p->gap) CN_TRY(put_python_text(out, " ")); /* two numbers are not one */
    p->gap = false;
    note_begin(p);
    const bool begins = ((unsigned char)c & 0xc0) != 0x80; /* a character: it stays whole */
    if (p->n_word == sizeof p->word || (p->n_word >= MAX_LITERAL_BYTES && begins))
        CN_TRY(end_python_word(p, out));
    p->word[p->n_word++] = c;
    return CN_OK;
}

/* Takes a byte of a value that is not in a string. */
static cn_status add_to_value(cn_python_args *p, char c, cn_buf *out)
{
    if (c == '"' || c == '\'') return begin_string(p, c, out);
    if (!cn_json_is_space(c) && !is_python_one_of(c, "[]{}(),:")) return add_to_word(p, c, out);
    p->gap = cn_json_is_space(c) && (p->gap || p->n_word > 0);
    CN_TRY(end_python_word(p, out));
    if (cn_json_is_space(c)) return CN_OK;
    if (c == ':') {
        p->part = CN_PYTHON_COLON;
        return put_python_text(out, ": ");
    }
    if (is_python_one_of(c, "[{(")) {
        CN_TRY(put_comma(p, out));
        note_open(p, c == '{');
        return put_python_text(out, c == '{' ? "{" : "[");
    }
    p->comma = c == ',';
    p->part = p->comma ? CN_PYTHON_NOTHING : CN_PYTHON_VALUE;
    if (p->comma || p->depth == 0) return CN_OK;
    p->depth--;
    return put_python_text(out, c == '}' ? "}" : "]");
}

/* Takes a byte before the value of an argument. */
static cn_status add_to_key(cn_python_args *p, char c, cn_buf *out)
{
    if (cn_json_is_space(c) || c == '"' || c == '\\' || c == ',') return CN_OK;
    if (c == '=' && p->in_key) {
        p->in_key = false;
        p->in_value = true;
        p->part = CN_PYTHON_COLON;
        return put_python_text(out, "\": ");
    }
    if (!p->in_key) {
        CN_TRY(put_comma(p, out));
        CN_TRY(put_python_text(out, "\""));
    }
    p->in_key = true;
    return put_character(out, c);
}

cn_status cn_python_args_add(cn_python_args *p, char c, cn_buf *out, bool *ended)
{
    *ended = false;
    if (!p->begun) CN_TRY(put_python_text(out, "{"));
    p->begun = true;
    if (p->quote) {
        bool again = false;
        CN_TRY(add_to_string(p, c, out, &again));
        return again ? cn_python_args_add(p, c, out, ended) : CN_OK;
    }
    *ended = c == ')' && p->depth == 0;
    if (*ended) {
        CN_TRY(end_python_word(p, out));
        return put_python_text(out, p->in_key ? "\": null}" : "}");
    }
    if (!p->in_value) return add_to_key(p, c, out);
    if (c == ',' && p->depth == 0) p->in_value = false;
    return add_to_value(p, c, out);
}

cn_status cn_python_args_cut(cn_python_args *p, bool is_whole, cn_buf *out)
{
    if (!p->begun) return CN_OK;
    if (p->quote && p->n_open == 2) CN_TRY(end_string(p, out)); /* "" */
    if (p->quote && !is_whole) return CN_OK;
    if (p->quote) {
        CN_TRY(put_escape(p, out));
        for (; p->n_close > 0; p->n_close--) CN_TRY(put_character(out, p->quote));
        CN_TRY(end_string(p, out));
    }
    CN_TRY(end_python_word(p, out));
    if (!is_whole || p->depth > MAX_DICTS) return CN_OK;
    if (is_in_dict(p) && p->part == CN_PYTHON_KEY) CN_TRY(put_python_text(out, ": null"));
    if (p->part == CN_PYTHON_COLON) CN_TRY(put_python_text(out, "null"));
    for (; p->depth > 0; p->depth--) CN_TRY(put_python_text(out, is_in_dict(p) ? "}" : "]"));
    return put_python_text(out, p->in_key ? "\": null}" : "}");
}

cn_status cn_python_literal(const char *text, size_t n, cn_buf *out)
{
    cn_python_args p = {.begun = true, .in_value = true, .depth = 1};
    bool ended;
    for (size_t i = 0; i < n; i++) CN_TRY(cn_python_args_add(&p, text[i], out, &ended));
    return cn_python_args_add(&p, ' ', out, &ended); /* ends a number or name */
}
