/* jinja_lex.c - the words of a Jinja program. See jinja_lex.h. */
#include "engine/text/jinja_lex.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "engine/utf8.h"

static char at(const cn_jinja_lex *l, size_t i) { return i < l->n ? l->src[i] : '\0'; }

static bool is_name_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Index where the next tag opens: "{{", "{%" or "{#"; n if there is none. */
static size_t next_open(const cn_jinja_lex *l)
{
    for (size_t i = l->at; i + 1 < l->n; i++)
        if (l->src[i] == '{' && l->src[i + 1] && strchr("{%#", l->src[i + 1])) return i;
    return l->n;
}

/* Reads the raw text up to the next tag, without what white-space control removes, and enters the
 * tag. */
static cn_status read_raw(cn_jinja_lex *l)
{
    size_t start = l->at, open = next_open(l), end = open;
    char kind = at(l, open + 1), control = at(l, open + 2);
    if (l->after_dash)
        while (start < end && isspace((unsigned char)l->src[start])) start++;
    else if (l->after_block && start < end && l->src[start] == '\n')
        start++;
    if (open < l->n && control == '-') {
        while (end > start && isspace((unsigned char)l->src[end - 1])) end--;
    } else if (open < l->n && kind != '{' && control != '+') {
        size_t line = end;
        while (line > start && (l->src[line - 1] == ' ' || l->src[line - 1] == '\t')) line--;
        if (line == 0 || l->src[line - 1] == '\n') end = line;
    }
    CN_TRY(cn_buf_add(&l->text, l->src + start, end - start));
    l->after_dash = l->after_block = false;
    l->tag = kind;
    l->at = open;
    if (open == l->n) return CN_OK;
    l->at = open + 2 + (control == '-' || control == '+');
    return CN_OK;
}

/* Skips a comment whose tag is open. */
static void skip_comment(cn_jinja_lex *l)
{
    while (l->at < l->n && !(l->src[l->at] == '#' && at(l, l->at + 1) == '}')) l->at++;
    l->after_dash = l->at > 0 && at(l, l->at - 1) == '-';
    l->after_block = true;
    l->at = l->at + 2 < l->n ? l->at + 2 : l->n;
    l->tag = 0;
}

/* Closes the tag if it ends here. */
static bool try_close(cn_jinja_lex *l)
{
    char closing = l->tag == '{' ? '}' : '%';
    size_t dash = at(l, l->at) == '-' || at(l, l->at) == '+';
    if (at(l, l->at + dash) != closing || at(l, l->at + dash + 1) != '}') return false;
    l->after_dash = at(l, l->at) == '-';
    l->after_block = l->tag == '%';
    l->at += dash + 2;
    l->tag = 0;
    return true;
}

/* Reads one escape sequence after its backslash. An unknown sequence keeps the backslash, as in
 * Python. */
static cn_status add_escape(cn_jinja_lex *l)
{
    static const char from[] = "nrt\\'\"", to[] = "\n\r\t\\'\"";
    if (l->at == l->n) return CN_OK;
    char c = l->src[l->at++];
    const char *known = c ? strchr(from, c) : NULL;
    if (known) return cn_buf_add(&l->text, &to[known - from], 1);
    char digits[5] = {0}, utf8[4];
    if (c == 'u' && l->at + 4 <= l->n) {
        memcpy(digits, l->src + l->at, 4);
        if (strspn(digits, "0123456789abcdefABCDEF") == 4) {
            l->at += 4;
            return cn_buf_add(&l->text, utf8,
                              cn_utf8_write(utf8, (uint32_t)strtoul(digits, NULL, 16)));
        }
    }
    CN_TRY(cn_buf_add(&l->text, "\\", 1));
    return cn_buf_add(&l->text, &c, 1);
}

static cn_status read_string(cn_jinja_lex *l)
{
    char quote = l->src[l->at++];
    while (l->at < l->n && l->src[l->at] != quote) {
        char c = l->src[l->at++];
        if (c == '\\')
            CN_TRY(add_escape(l));
        else
            CN_TRY(cn_buf_add(&l->text, &c, 1));
    }
    if (l->at < l->n) l->at++;
    return CN_OK;
}

/* Reads the next word inside the open tag. *kind is CN_JINJA_END if the tag closes instead. */
static cn_status read_word(cn_jinja_lex *l, cn_jinja_kind *kind)
{
    while (isspace((unsigned char)at(l, l->at))) l->at++;
    *kind = CN_JINJA_END;
    if (l->at >= l->n || try_close(l)) return CN_OK;
    char c = l->src[l->at];
    if (c == '\'' || c == '"') {
        *kind = CN_JINJA_STRING;
        return read_string(l);
    }
    size_t start = l->at++;
    *kind = is_name_char(c) ? CN_JINJA_NAME : CN_JINJA_SIGN;
    while (*kind == CN_JINJA_NAME && is_name_char(at(l, l->at))) l->at++;
    return cn_buf_add(&l->text, l->src + start, l->at - start);
}

cn_status cn_jinja_next(cn_jinja_lex *l, cn_jinja_kind *kind)
{
    cn_buf_clear(&l->text);
    CN_TRY(cn_buf_add(&l->text, "", 0));
    *kind = CN_JINJA_END;
    while (l->at < l->n) {
        if (l->tag) {
            CN_TRY(read_word(l, kind));
            if (*kind != CN_JINJA_END) return CN_OK;
            continue;
        }
        CN_TRY(read_raw(l));
        if (l->tag == '#') skip_comment(l);
        if (l->text.len) {
            *kind = CN_JINJA_RAW;
            return CN_OK;
        }
    }
    return CN_OK;
}

void cn_jinja_lex_free(cn_jinja_lex *l) { cn_buf_free(&l->text); }
