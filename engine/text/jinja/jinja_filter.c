/* jinja_filter.c - filters of strings and numbers, and tojson. See jinja_builtin.h. */
#include <math.h>
#include <stdlib.h>

#include "engine/text/jinja/jinja_pystring.h"
#include "engine/text/jinja/jinja_run.h"

/* ---- strings ---- */

/* Puts t with each character changed by `map`, or only the first of each word. */
static cn_status put_mapped(cn_jrun *run, cn_jtext t, uint32_t (*map)(uint32_t))
{
    CN_TRY(cn_jscan(run, t));
    while (t.n) {
        uint32_t cp;
        size_t len = cn_pychar(t, &cp);
        CN_TRY(cn_jput_char(run, map(cp)));
        t = (cn_jtext){t.at + len, t.n - len};
    }
    return CN_OK;
}

static cn_status change_case(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t;
    size_t mark = cn_jmark(run);
    CN_TRY(cn_jstr(run, c->self, &t));
    if (c->name[0] == 'c') {
        size_t first = cn_pyoffset(t, 1);
        CN_TRY(put_mapped(run, (cn_jtext){t.at, first}, cn_pyupper));
        CN_TRY(put_mapped(run, (cn_jtext){t.at + first, t.n - first}, cn_pylower));
    } else {
        CN_TRY(put_mapped(run, t, c->name[0] == 'u' ? cn_pyupper : cn_pylower));
    }
    return cn_jcut(run, mark, out);
}

/* A word begins after white space, "-", or an opening bracket, as in jinja2's filter. */
static cn_status title(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t;
    bool begins = true;
    size_t mark = cn_jmark(run);
    CN_TRY(cn_jstr(run, c->self, &t));
    CN_TRY(cn_jscan(run, t));
    while (t.n) {
        uint32_t cp;
        size_t len = cn_pychar(t, &cp);
        CN_TRY(cn_jput_char(run, begins ? cn_pyupper(cp) : cn_pylower(cp)));
        begins = cn_pyspace(cp) || cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<';
        t = (cn_jtext){t.at + len, t.n - len};
    }
    return cn_jcut(run, mark, out);
}

static cn_status trim(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t, chars = {0};
    CN_TRY(cn_jstr(run, c->self, &t));
    CN_TRY(cn_jscan(run, t));
    if (c->slot[0].kind != CN_J_MISSING && c->slot[0].kind != CN_J_NONE)
        CN_TRY(cn_jwant_text(c, c->slot[0], "the characters", &chars));
    CN_TRY(cn_jwork(run, chars.n * t.n / 256));
    *out = cn_jstring(cn_pystrip(t, chars, CN_PY_BOTH));
    return CN_OK;
}

static cn_status to_string(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    *out = (cn_jvalue){.kind = CN_J_STRING};
    return cn_jstr(run, c->self, &out->text);
}

/* Puts `new` before each character and at the end, as Python does for an empty `old`. */
static cn_status put_between(cn_jrun *run, cn_jtext t, cn_jtext new, int64_t most)
{
    for (; most != 0; most--) {
        uint32_t cp;
        CN_TRY(cn_jwork(run, 1));
        CN_TRY(cn_jputs(run, new));
        if (t.n == 0) return CN_OK;
        size_t len = cn_pychar(t, &cp);
        CN_TRY(cn_jput(run, t.at, len));
        t = (cn_jtext){t.at + len, t.n - len};
    }
    return cn_jputs(run, t);
}

static cn_status replace_all(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t, old, new;
    int64_t most = -1;
    size_t mark = cn_jmark(run);
    CN_TRY(cn_jstr(run, c->self, &t));
    CN_TRY(cn_jstr(run, c->slot[0], &old));
    CN_TRY(cn_jstr(run, c->slot[1], &new));
    if (c->slot[2].kind != CN_J_NONE) CN_TRY(cn_jwant_int(c, c->slot[2], "count", &most));
    CN_TRY(cn_jscan(run, t));
    if (old.n == 0) {
        CN_TRY(put_between(run, t, new, most));
        return cn_jcut(run, mark, out);
    }
    for (; most != 0; most--) {
        size_t at = cn_pyfind(t, old);
        if (at == SIZE_MAX) break;
        CN_TRY(cn_jput(run, t.at, at));
        CN_TRY(cn_jputs(run, new));
        t = (cn_jtext){t.at + at + old.n, t.n - at - old.n};
    }
    CN_TRY(cn_jputs(run, t));
    return cn_jcut(run, mark, out);
}

/* The indentation: a number of spaces, or a text. */
static cn_status read_indent(cn_jrun *run, const cn_jcall *c, cn_jvalue v, int64_t otherwise,
                             cn_jtext *out)
{
    cn_jvalue spaces;
    size_t mark = cn_jmark(run);
    if (v.kind == CN_J_STRING) {
        *out = v.text;
        return CN_OK;
    }
    CN_TRY(cn_jwant_int(c, v, "the width", &otherwise));
    for (int64_t i = 0; i < otherwise; i++) {
        CN_TRY(cn_jwork(run, 1));
        CN_TRY(cn_jput(run, " ", 1));
    }
    CN_TRY(cn_jcut(run, mark, &spaces));
    *out = spaces.text;
    return CN_OK;
}

static cn_status indent(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t, margin, line;
    bool first = cn_jflag(c->slot[1], false), blank = cn_jflag(c->slot[2], false);
    CN_TRY(cn_jstr(run, c->self, &t));
    CN_TRY(read_indent(run, c, c->slot[0], 4, &margin));
    CN_TRY(cn_jscan(run, t));
    size_t mark = cn_jmark(run);
    /* jinja2 adds a newline before it splits into lines: the text after the last one is a line,
     * which may be empty. */
    CN_TRY(cn_jputs(run, t));
    CN_TRY(cn_jput(run, "\n", 1));
    cn_jvalue whole;
    CN_TRY(cn_jcut(run, mark, &whole));
    t = whole.text;
    for (size_t i = 0; cn_pyline(&t, &line); i++) {
        CN_TRY(cn_jwork(run, 1));
        CN_TRY(cn_jput(run, "\n", i ? 1 : 0));
        bool indented = i ? blank || line.n : first;
        if (indented) CN_TRY(cn_jputs(run, margin));
        CN_TRY(cn_jputs(run, line));
    }
    return cn_jcut(run, mark, out);
}

static cn_status escape(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    static const char *const names[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&#34;", ['\''] = "&#39;"};
    cn_jtext t;
    CN_TRY(cn_jstr(run, c->self, &t));
    CN_TRY(cn_jscan(run, t));
    size_t mark = cn_jmark(run);
    for (size_t i = 0; i < t.n; i++) {
        unsigned char byte = (unsigned char)t.at[i];
        const char *name = byte < sizeof names / sizeof *names ? names[byte] : NULL;
        CN_TRY(name ? cn_jput(run, name, strlen(name)) : cn_jput(run, t.at + i, 1));
    }
    return cn_jcut(run, mark, out);
}

static cn_status wordcount(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t;
    int64_t n = 0;
    bool inside = false;
    CN_TRY(cn_jstr(run, c->self, &t));
    CN_TRY(cn_jscan(run, t));
    while (t.n) {
        uint32_t cp;
        size_t len = cn_pychar(t, &cp);
        bool word = cn_pyalpha(cp) || cn_pydigit(cp) || cp == '_';
        n += word && !inside;
        inside = word;
        t = (cn_jtext){t.at + len, t.n - len};
    }
    *out = cn_jint(n);
    return CN_OK;
}

static cn_status format_percent(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t;
    CN_TRY(cn_jstr(run, c->self, &t));
    return cn_jformat(run, t, c->args, out);
}

/* ---- numbers ---- */

/* A number at the start of the text, after white space; the rest of the text must be white
 * space. */
static bool parse_filter_number(cn_jtext t, double *out, bool *whole)
{
    char text[64];
    size_t len = 0;
    t = cn_pystrip(t, (cn_jtext){0}, CN_PY_BOTH);
    for (size_t i = 0; i < t.n && len < sizeof text - 1; i++)
        if (t.at[i] != '_') text[len++] = t.at[i];
    text[len] = '\0';
    *whole = len > 0 && strspn(text, "+-0123456789") == len;
    if (len == 0 || strspn(text, "+-.0123456789eE") != len) return false;
    char *end;
    *out = strtod(text, &end);
    return *end == '\0';
}

static cn_status to_int(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    double d = 0;
    int64_t i, base = 10;
    bool whole;
    (void)run;
    CN_TRY(cn_jwant_int(c, c->slot[1], "the base", &base));
    if (c->self.kind == CN_J_UNDEFINED) return cn_jfail_undefined(c->self);
    if (cn_jas_int(c->self, &i)) {
        *out = cn_jint(i);
        return CN_OK;
    }
    bool ok = c->self.kind == CN_J_FLOAT;
    if (ok) d = c->self.real;
    const bool based = base == 16 || base == 8 || base == 2;
    if (c->self.kind == CN_J_STRING && based && c->self.text.n < 32) {
        char text[32], *end;
        snprintf(text, sizeof text, "%.*s", (int)c->self.text.n, c->self.text.at);
        d = (double)strtoll(text, &end, (int)base);
        ok = *text && !*end;
    } else if (c->self.kind == CN_J_STRING) {
        ok = parse_filter_number(c->self.text, &d, &whole);
    }
    if (ok && d > -9.2e18 && d < 9.2e18)
        *out = cn_jint((int64_t)d);
    else
        *out = c->slot[0].kind == CN_J_MISSING ? cn_jint(0) : c->slot[0];
    return CN_OK;
}

static cn_status to_float(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    double d = 0;
    bool whole;
    (void)run;
    if (c->self.kind == CN_J_UNDEFINED) return cn_jfail_undefined(c->self);
    bool ok = cn_jas_real(c->self, &d) ||
              (c->self.kind == CN_J_STRING && parse_filter_number(c->self.text, &d, &whole));
    *out = ok ? cn_jreal(d) : c->slot[0].kind == CN_J_MISSING ? cn_jreal(0) : c->slot[0];
    return CN_OK;
}

static cn_status absolute(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    double d;
    *out = c->self;
    if (!cn_jas_real(c->self, &d))
        return cn_fail(CN_ERR_ARG, "abs(): expected a number, got a %s", cn_jtype_name(c->self));
    return d < 0 ? cn_jbinary(run, CN_JOP_SUB, cn_jint(0), c->self, out) : CN_OK;
}

static cn_status round_number(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    double d;
    int64_t precision = 0;
    cn_jtext method = CN_JTEXT("common");
    (void)run;
    CN_TRY(cn_jwant_int(c, c->slot[0], "the precision", &precision));
    if (c->slot[1].kind != CN_J_MISSING)
        CN_TRY(cn_jwant_text(c, c->slot[1], "the method", &method));
    if (!cn_jas_real(c->self, &d))
        return cn_fail(CN_ERR_ARG, "round(): expected a number, got a %s", cn_jtype_name(c->self));
    double scale = pow(10, (double)precision);
    if (c->self.kind != CN_J_FLOAT && precision >= 0 && cn_jtext_is(method, "common")) {
        *out = c->self;
        return CN_OK;
    }
    if (cn_jtext_is(method, "ceil")) {
        d = ceil(d * scale) / scale;
    } else if (cn_jtext_is(method, "floor")) {
        d = floor(d * scale) / scale;
    } else if (precision >= 0 && precision < 30 && fabs(d) < 1e30) {
        char text[80]; /* the C library rounds decimal digits as Python does */
        snprintf(text, sizeof text, "%.*f", (int)precision, d);
        d = strtod(text, NULL);
    } else {
        d = nearbyint(d * scale) / scale;
    }
    *out = cn_jreal(d);
    return CN_OK;
}

/* ---- any value ---- */

static cn_status otherwise(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    (void)run;
    bool replaced =
        c->self.kind == CN_J_UNDEFINED || (cn_jflag(c->slot[1], false) && !cn_jtruth(c->self));
    *out = c->self;
    if (replaced) *out = c->slot[0].kind == CN_J_MISSING ? cn_jstring(CN_JTEXT("")) : c->slot[0];
    return CN_OK;
}

static cn_status attribute(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext name;
    CN_TRY(cn_jwant_text(c, c->slot[0], "the name", &name));
    *out = cn_jundefined(name);
    /* Python's getattr: methods, and members of a namespace, but no keys of a dict. */
    if (c->self.kind == CN_J_DICT && !cn_jfind_method(c->self, name)) return CN_OK;
    return cn_jmember(run, c->self, name, out);
}

static cn_status same_value(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    *out = c->self;
    return c->self.kind == CN_J_STRING ? CN_OK : to_string(run, c, out);
}

/* json.dumps(value, ensure_ascii, indent, separators, sort_keys), with the defaults of
 * transformers. */
static cn_status tojson(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jvalue width = c->slot[1], separators = c->slot[2];
    cn_json_style style = {.ascii = cn_jflag(c->slot[0], false),
                           .sort_keys = cn_jflag(c->slot[3], false),
                           .lines = width.kind != CN_J_MISSING && width.kind != CN_J_NONE,
                           .key_separator = CN_JTEXT(": ")};
    style.item_separator = style.lines ? CN_JTEXT(",") : CN_JTEXT(", ");
    if (style.lines) CN_TRY(read_indent(run, c, width, 0, &style.indent));
    if (separators.kind != CN_J_MISSING && separators.kind != CN_J_NONE) {
        if (!cn_jis_sequence(separators) || separators.list->n != 2)
            return cn_fail(CN_ERR_ARG, "tojson(): expected two separators");
        CN_TRY(cn_jwant_text(c, separators.list->at[0], "a separator", &style.item_separator));
        CN_TRY(cn_jwant_text(c, separators.list->at[1], "a separator", &style.key_separator));
    }
    size_t mark = cn_jmark(run);
    CN_TRY(cn_jput_json(run, c->self, &style));
    return cn_jcut(run, mark, out);
}

const cn_jbuiltin cn_jscalar_filters[] = {
    {"upper", "", change_case},
    {"lower", "", change_case},
    {"capitalize", "", change_case},
    {"title", "", title},
    {"trim", "chars", trim},
    {"string", "", to_string},
    {"replace", "old new count", replace_all},
    {"indent", "width first blank", indent},
    {"escape", "", escape},
    {"e", "", escape},
    {"safe", "", same_value},
    {"wordcount", "", wordcount},
    {"format", "*", format_percent},
    {"int", "default base", to_int},
    {"float", "default", to_float},
    {"abs", "", absolute},
    {"round", "precision method", round_number},
    {"default", "default_value boolean", otherwise},
    {"d", "default_value boolean", otherwise},
    {"attr", "name", attribute},
    {"tojson", "ensure_ascii indent separators sort_keys", tojson},
    {0},
};
