/* jinja_text.c - output, str() and repr() of values. See jinja_run.h. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/utf8.h"
#include "engine/text/jinja/jinja_pystring.h"
#include "engine/text/jinja/jinja_run.h"

/* ---- output ---- */

cn_status cn_jput(cn_jrun *run, const void *text, size_t n)
{
    if (n == 0) return CN_OK;
    if (n > CN_JINJA_MAX_OUTPUT || run->out->len - run->start > CN_JINJA_MAX_OUTPUT - n) {
        run->arena.exceeded = true;
        return cn_fail(CN_ERR_ARG, "the text exceeds %d bytes", CN_JINJA_MAX_OUTPUT);
    }
    return cn_buf_add(run->out, text, n);
}

cn_status cn_jput_char(cn_jrun *run, uint32_t cp)
{
    char utf8[4];
    return cn_jput(run, utf8, cn_utf8_write(utf8, cp));
}

cn_status cn_jcut(cn_jrun *run, size_t mark, cn_jvalue *out)
{
    cn_buf *b = run->out;
    cn_jtext tail = {b->data ? b->data + mark : "", b->len - mark};
    CN_TRY(cn_jwork(run, tail.n / 64));
    CN_TRY(cn_jtext_copy(&run->arena, tail, out));
    b->len = mark;
    if (b->data) b->data[mark] = '\0';
    return CN_OK;
}

/* ---- numbers ---- */

/* float.__repr__: the shortest digits that give the same number, with an exponent below 1e-4 and
 * from 1e16 on. */
cn_status cn_jput_real(cn_jrun *run, double d)
{
    char text[40];
    if (isnan(d) || isinf(d)) {
        const char *name = isnan(d) ? "nan" : d < 0 ? "-inf" : "inf";
        return cn_jput(run, name, strlen(name));
    }
    int digits = 1;
    for (; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, d);
        double back = strtod(text, NULL);
        if (!(back < d) && !(back > d)) break;
    }
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= 16)
        return cn_jput(run, text, strlen(text)); /* C writes the exponent as Python does */
    int places = digits - 1 - exponent;
    snprintf(text, sizeof text, "%.*f", places > 1 ? places : 1, d);
    return cn_jput(run, text, strlen(text));
}

/* ---- str() and repr() ---- */

static cn_status put_repr_char(cn_jrun *run, uint32_t cp, char quote)
{
    char text[16];
    const char *known = cp < 0x80 ? strchr("\nn\rr\tt\\\\", (int)cp) : NULL;
    if (cp == (uint32_t)quote || cp == '\\') {
        snprintf(text, sizeof text, "\\%c", (char)cp);
        return cn_jput(run, text, 2);
    }
    if (cp && known && (cp == '\n' || cp == '\r' || cp == '\t')) {
        snprintf(text, sizeof text, "\\%c", known[1]);
        return cn_jput(run, text, 2);
    }
    if (cn_pyprintable(cp)) return cn_jput_char(run, cp);
    snprintf(text, sizeof text, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    return cn_jput(run, text, strlen(text));
}

static cn_status put_quoted(cn_jrun *run, cn_jtext t)
{
    bool single = t.n && memchr(t.at, '\'', t.n), twice = t.n && memchr(t.at, '"', t.n);
    char quote = single && !twice ? '"' : '\'';
    CN_TRY(cn_jscan(run, t));
    CN_TRY(cn_jput(run, &quote, 1));
    while (t.n) {
        uint32_t cp;
        size_t len = cn_pychar(t, &cp);
        CN_TRY(put_repr_char(run, cp, quote));
        t = (cn_jtext){t.at + len, t.n - len};
    }
    return cn_jput(run, &quote, 1);
}

static cn_status put_items(cn_jrun *run, cn_jvalue v)
{
    bool tuple = v.kind == CN_J_TUPLE;
    CN_TRY(cn_jput(run, tuple ? "(" : "[", 1));
    for (size_t i = 0; i < v.list->n; i++) {
        CN_TRY(cn_jput(run, ", ", i ? 2 : 0));
        CN_TRY(cn_jput_repr(run, v.list->at[i]));
    }
    if (tuple && v.list->n == 1) CN_TRY(cn_jput(run, ",", 1));
    return cn_jput(run, tuple ? ")" : "]", 1);
}

static cn_status put_pairs(cn_jrun *run, const cn_jdict *dict)
{
    CN_TRY(cn_jput(run, "{", 1));
    for (size_t i = 0; i < dict->n; i++) {
        CN_TRY(cn_jput(run, ", ", i ? 2 : 0));
        CN_TRY(cn_jput_repr(run, dict->at[i].key));
        CN_TRY(cn_jput(run, ": ", 2));
        CN_TRY(cn_jput_repr(run, dict->at[i].value));
    }
    return cn_jput(run, "}", 1);
}

static cn_status put_word(cn_jrun *run, const char *word)
{
    return cn_jput(run, word, strlen(word));
}

static cn_status put_integer(cn_jrun *run, int64_t i)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, i);
    return put_word(run, text);
}

/* repr() of anything but a string. */
static cn_status put_other(cn_jrun *run, cn_jvalue v)
{
    switch (v.kind) {
    case CN_J_NONE: return put_word(run, "None");
    case CN_J_BOOL: return put_word(run, v.truth ? "True" : "False");
    case CN_J_INT: return put_integer(run, v.integer);
    case CN_J_FLOAT: return cn_jput_real(run, v.real);
    case CN_J_LIST:
    case CN_J_TUPLE: return put_items(run, v);
    case CN_J_DICT: return put_pairs(run, v.dict);
    case CN_J_NAMESPACE:
        CN_TRY(put_word(run, "<Namespace "));
        CN_TRY(put_pairs(run, v.dict));
        return put_word(run, ">");
    case CN_J_UNDEFINED: return put_word(run, "Undefined");
    case CN_J_MISSING:
    case CN_J_STRING:
    case CN_J_STREAM:
    case CN_J_LOOP:
    case CN_J_MACRO:
    case CN_J_BUILTIN: break;
    }
    return cn_fail(CN_ERR_ARG, "a %s has no text", cn_jtype_name(v));
}

cn_status cn_jput_repr(cn_jrun *run, cn_jvalue v)
{
    if (v.kind == CN_J_STRING) return put_quoted(run, v.text);
    CN_TRY(cn_jdeeper(run));
    CN_TRY(cn_jwork(run, 1));
    CN_TRY(put_other(run, v));
    run->depth--;
    return CN_OK;
}

cn_status cn_jput_str(cn_jrun *run, cn_jvalue v)
{
    if (v.kind == CN_J_STRING) return cn_jputs(run, v.text);
    return v.kind == CN_J_UNDEFINED ? CN_OK : cn_jput_repr(run, v);
}

cn_status cn_jstr(cn_jrun *run, cn_jvalue v, cn_jtext *out)
{
    if (v.kind == CN_J_STRING) {
        *out = v.text;
        return CN_OK;
    }
    size_t mark = cn_jmark(run);
    cn_jvalue text;
    CN_TRY(cn_jput_str(run, v));
    CN_TRY(cn_jcut(run, mark, &text));
    *out = text.text;
    return CN_OK;
}
