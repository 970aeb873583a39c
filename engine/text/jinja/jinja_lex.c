/* jinja_lex.c - source to tokens. See jinja_lex.h. White-space control is that of trim_blocks and
 * lstrip_blocks: a newline after a block is dropped, and so is white space between the start of a
 * line and a block. */
#include "engine/text/jinja/jinja_lex.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/base/utf8.h"
#include "engine/text/jinja/jinja_pystring.h"

static char lex_char(const cn_jlex *l, size_t i) { return i < l->n ? l->src[i] : '\0'; }

/* Moves on and counts lines. */
static void advance_jinja(cn_jlex *l, size_t to)
{
    for (; l->at < to; l->at++) l->line += l->src[l->at] == '\n';
}

cn_status cn_jlex_open(cn_jlex *l, cn_jarena *arena, const char *source, size_t n)
{
    char *copy;
    CN_TRY(cn_jalloc(arena, n + 1, 1, &copy));
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
        copy[len++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (len && copy[len - 1] == '\n') len--; /* jinja2 drops one final newline */
    *l = (cn_jlex){.arena = arena, .src = copy, .n = len, .line = 1, .line_start = true};
    return CN_OK;
}

/* ---- outside tags ---- */

static bool is_open(const cn_jlex *l, size_t i)
{
    char c = lex_char(l, i + 1);
    return lex_char(l, i) == '{' && (c == '{' || c == '%' || c == '#');
}

static size_t skip_jinja_space(const cn_jlex *l, size_t i)
{
    uint32_t cp;
    for (size_t len; i < l->n; i += len) {
        len = cn_pychar((cn_jtext){l->src + i, l->n - i}, &cp);
        if (!cn_pyspace(cp)) break;
    }
    return i;
}

/* Text before a tag that opens at `open`, after white-space control by the sign of the tag. */
static cn_jtext strip_before(const cn_jlex *l, size_t open)
{
    cn_jtext text = {l->src + l->at, open - l->at};
    if (open == l->n) return text;
    char kind = lex_char(l, open + 1), sign = lex_char(l, open + 2);
    if (sign == '-') return cn_pystrip(text, (cn_jtext){0}, CN_PY_RIGHT);
    if (sign == '+' || kind == '{') return text;
    size_t line = text.n;
    while (line && text.at[line - 1] != '\n') line--;
    if (line == 0 && !l->line_start) return text;
    cn_jtext margin = {text.at + line, text.n - line};
    if (cn_pystrip(margin, (cn_jtext){0}, CN_PY_RIGHT).n == 0) text.n = line;
    return text;
}

/* Ends a tag whose closing sign ('-', '+' or none) and mark of two bytes begin at `end`. */
static void close_tag(cn_jlex *l, size_t end, bool trims_newline)
{
    char sign = lex_char(l, end);
    size_t to = end + 2 + (sign == '-' || sign == '+');
    if (sign == '-')
        to = skip_jinja_space(l, to);
    else if (sign != '+' && trims_newline && lex_char(l, to) == '\n')
        to++;
    advance_jinja(l, to);
    l->line_start = to > 0 && l->src[to - 1] == '\n';
    l->tag = 0;
    l->brackets = 0;
}

static bool is_close(const cn_jlex *l, size_t i, char mark)
{
    size_t sign = lex_char(l, i) == '-' || (lex_char(l, i) == '+' && mark != '}');
    return lex_char(l, i + sign) == mark && lex_char(l, i + sign + 1) == '}';
}

static cn_status skip_comment(cn_jlex *l)
{
    for (size_t i = l->at; i < l->n; i++) {
        if (!is_close(l, i, '#')) continue;
        close_tag(l, i, true);
        return CN_OK;
    }
    return cn_fail(CN_ERR_MODEL, "line %u: the comment has no end: expected #}", l->line);
}

/* The index after {% word %} that opens at i, or 0 if the tag is another one. *close is the index
 * of its closing. */
static size_t find_word_tag(const cn_jlex *l, size_t i, const char *word, size_t *close)
{
    if (lex_char(l, i) != '{' || lex_char(l, i + 1) != '%') return 0;
    bool sign = lex_char(l, i + 2) == '-' || lex_char(l, i + 2) == '+';
    i += sign ? 3 : 2;
    i = skip_jinja_space(l, i);
    size_t n = strlen(word);
    if (l->n - i < n || memcmp(l->src + i, word, n) != 0) return 0;
    *close = skip_jinja_space(l, i + n);
    return is_close(l, *close, '%') ? *close : 0;
}

/* {% raw %} ... {% endraw %}, whose opening is at l->at. */
static cn_status read_raw(cn_jlex *l, size_t close, cn_jtoken *out)
{
    char sign = lex_char(l, close);
    size_t start = close + 2 + (sign == '-' || sign == '+');
    if (sign == '-') start = skip_jinja_space(l, start);
    advance_jinja(l, start);
    for (size_t i = start; i < l->n; i++) {
        if (!find_word_tag(l, i, "endraw", &close)) continue;
        *out = (cn_jtoken){.kind = CN_JT_DATA, .line = l->line};
        l->line_start = false;
        out->text = strip_before(l, i);
        close_tag(l, close, true);
        return CN_OK;
    }
    return cn_fail(CN_ERR_MODEL, "line %u: raw has no end: expected {%% endraw %%}", l->line);
}

/* Reads text up to the next tag and enters the tag. */
static cn_status read_data(cn_jlex *l, cn_jtoken *out)
{
    size_t open = l->at;
    while (open < l->n && !is_open(l, open)) open++;
    *out = (cn_jtoken){.kind = CN_JT_DATA, .line = l->line, .text = strip_before(l, open)};
    advance_jinja(l, open);
    l->line_start = false;
    if (open == l->n) return CN_OK;
    size_t close;
    char kind = lex_char(l, open + 1);
    if (kind == '%' && find_word_tag(l, open, "raw", &close) && lex_char(l, close) != '+') {
        if (out->text.n) {
            l->line_start = false; /* the text is a token; the next call finds the tag again */
            return CN_OK;
        }
        return read_raw(l, close, out);
    }
    advance_jinja(l, open + 2 + (lex_char(l, open + 2) == '-' || lex_char(l, open + 2) == '+'));
    if (kind == '#') return skip_comment(l);
    l->tag = kind;
    l->opened = true;
    return CN_OK;
}

/* ---- inside tags ---- */

static int jinja_hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads up to `digits` digits of a base from text at *i. */
static uint32_t read_digits(cn_jtext t, size_t *i, size_t digits, int base, size_t *n_read)
{
    uint32_t cp = 0;
    for (*n_read = 0; *n_read < digits && *i < t.n; (*i)++, (*n_read)++) {
        int v = jinja_hex_value(t.at[*i]);
        if (v < 0 || v >= base) break;
        cp = cp * (uint32_t)base + (uint32_t)v;
    }
    return cp;
}

/* One escape sequence after its backslash at t.at[*i - 1]; unknown ones keep the backslash. Returns
 * the bytes written to dst[4]; 0 for a line continuation, SIZE_MAX if digits are missing. */
static size_t read_jinja_escape(cn_jtext t, size_t *i, char *dst)
{
    static const char from[] = "nrt\\'\"abfv", to[] = "\n\r\t\\'\"\a\b\f\v";
    char c = t.at[(*i)++];
    const char *known = c ? strchr(from, c) : NULL;
    size_t got, want = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (known) {
        dst[0] = to[known - from];
        return 1;
    }
    if (c == '\n') return 0;
    if (want || (c >= '0' && c <= '7')) {
        if (!want) (*i)--;
        uint32_t cp = read_digits(t, i, want ? want : 3, want ? 16 : 8, &got);
        if (want && got != want) return SIZE_MAX;
        if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) cp = 0xFFFD;
        return cn_utf8_write(dst, cp);
    }
    dst[0] = '\\';
    dst[1] = c;
    return 2;
}

static cn_status read_jinja_string(cn_jlex *l, cn_jtoken *out)
{
    char quote = l->src[l->at];
    size_t end = l->at + 1, len = 0;
    while (end < l->n && l->src[end] != quote) end += l->src[end] == '\\' ? 2 : 1;
    if (end >= l->n)
        return cn_fail(CN_ERR_MODEL, "line %u: the string has no end: expected %c", l->line, quote);
    cn_jtext raw = {l->src + l->at + 1, end - l->at - 1};
    char *text;
    CN_TRY(cn_jalloc(l->arena, raw.n + 4, 1, &text));
    for (size_t i = 0; i < raw.n;) {
        char c = raw.at[i++];
        if (c != '\\') {
            text[len++] = c;
            continue;
        }
        size_t n = read_jinja_escape(raw, &i, text + len);
        if (n == SIZE_MAX)
            return cn_fail(CN_ERR_MODEL, "line %u: an escape sequence lacks digits", l->line);
        len += n;
    }
    out->kind = CN_JT_CONST;
    out->value = cn_jstring((cn_jtext){text, len});
    advance_jinja(l, end + 1);
    return CN_OK;
}

static bool is_jinja_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_name_char(char c)
{
    return is_jinja_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' ||
           (unsigned char)c > 127;
}

/* Copies digits and their underscores from l->src at *i. */
static void copy_digits(const cn_jlex *l, size_t *i, char *text, size_t *len, size_t cap)
{
    while (is_jinja_digit(lex_char(l, *i)) ||
           (lex_char(l, *i) == '_' && is_jinja_digit(lex_char(l, *i + 1)))) {
        if (lex_char(l, *i) != '_' && *len < cap) text[(*len)++] = lex_char(l, *i);
        (*i)++;
    }
}

static cn_status read_jinja_number(cn_jlex *l, cn_jtoken *out)
{
    char text[64];
    size_t i = l->at, len = 0, cap = sizeof text - 4;
    bool real = false;
    copy_digits(l, &i, text, &len, cap);
    if (!l->after_dot && lex_char(l, i) == '.' && is_jinja_digit(lex_char(l, i + 1))) {
        real = true;
        text[len++] = '.';
        i++;
        copy_digits(l, &i, text, &len, cap);
    }
    size_t sign = lex_char(l, i + 1) == '-' || lex_char(l, i + 1) == '+';
    if (!l->after_dot && (lex_char(l, i) | 32) == 'e' &&
        is_jinja_digit(lex_char(l, i + 1 + sign))) {
        real = true;
        if (len < cap) text[len++] = 'e';
        if (sign && len < cap) text[len++] = lex_char(l, i + 1);
        i += 1 + sign;
        copy_digits(l, &i, text, &len, cap);
    }
    text[len] = '\0';
    errno = 0;
    if (!real) out->value = cn_jint(strtoll(text, NULL, 10));
    if (len >= cap || errno == ERANGE)
        return cn_fail(CN_ERR_MODEL, "line %u: the number %s... is too large", l->line, text);
    out->kind = CN_JT_CONST;
    if (real) out->value = cn_jreal(strtod(text, NULL));
    advance_jinja(l, i);
    return CN_OK;
}

static cn_status read_sign(cn_jlex *l, cn_jtoken *out)
{
    static const char *const pairs[] = {"**", "//", "==", "!=", "<=", ">="};
    char c = l->src[l->at];
    size_t len = 1;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (c == pairs[i][0] && lex_char(l, l->at + 1) == pairs[i][1]) len = 2;
    if (len == 1 && !strchr("+-/*%~[](){}>=<.:|,", c)) {
        char shown[8];
        snprintf(shown, sizeof shown, c > 32 && c < 127 ? "%c" : "\\x%02x", (unsigned char)c);
        return cn_fail(CN_ERR_MODEL, "line %u: unexpected character %s in a tag", l->line, shown);
    }
    l->brackets += c == '(' || c == '[' || c == '{';
    if (l->brackets && (c == ')' || c == ']' || c == '}')) l->brackets--;
    out->kind = CN_JT_SIGN;
    out->text = (cn_jtext){l->src + l->at, len};
    advance_jinja(l, l->at + len);
    return CN_OK;
}

static cn_status read_word(cn_jlex *l, cn_jtoken *out)
{
    advance_jinja(l, skip_jinja_space(l, l->at));
    *out = (cn_jtoken){.line = l->line};
    if (l->at == l->n)
        return cn_fail(CN_ERR_MODEL, "line %u: the template ends inside a tag", l->line);
    char c = l->src[l->at];
    if (!l->brackets && is_close(l, l->at, l->tag == '{' ? '}' : '%')) {
        out->kind = l->tag == '{' ? CN_JT_PRINT_CLOSE : CN_JT_BLOCK_CLOSE;
        close_tag(l, l->at, l->tag == '%');
        return CN_OK;
    }
    size_t start = l->at;
    if (c == '\'' || c == '"') return read_jinja_string(l, out);
    if (is_jinja_digit(c)) {
        CN_TRY(read_jinja_number(l, out));
        out->text = (cn_jtext){l->src + start, l->at - start};
        return CN_OK;
    }
    if (!is_name_char(c)) return read_sign(l, out);
    while (is_name_char(lex_char(l, l->at))) l->at++;
    out->kind = CN_JT_NAME;
    out->text = (cn_jtext){l->src + start, l->at - start};
    return CN_OK;
}

cn_status cn_jlex_next(cn_jlex *l, cn_jtoken *out)
{
    while (l->tag || l->at < l->n) {
        if (l->opened) {
            l->opened = false;
            *out = (cn_jtoken){.kind = l->tag == '{' ? CN_JT_PRINT_OPEN : CN_JT_BLOCK_OPEN,
                               .line = l->line};
            return CN_OK;
        }
        if (l->tag) {
            CN_TRY(read_word(l, out));
            l->after_dot = out->kind == CN_JT_SIGN && cn_jtext_is(out->text, ".");
            return CN_OK;
        }
        CN_TRY(read_data(l, out));
        if (out->text.n) return CN_OK;
    }
    *out = (cn_jtoken){.kind = CN_JT_END, .line = l->line};
    return CN_OK;
}
