/* jinja_operator.c - arithmetic, comparison, slices and %-formatting, as in Python. See
 * jinja_run.h. */
#include <inttypes.h>
#include <math.h>

#include "engine/text/jinja/jinja_pystring.h"
#include "engine/text/jinja/jinja_run.h"

/* ---- numbers ---- */

static cn_status fail_operands(const char *sign, cn_jvalue a, cn_jvalue b)
{
    if (a.kind == CN_J_UNDEFINED) return cn_jfail_undefined(a);
    if (b.kind == CN_J_UNDEFINED) return cn_jfail_undefined(b);
    return cn_fail(CN_ERR_ARG, "operator %s does not take a %s and a %s", sign, cn_jtype_name(a),
                   cn_jtype_name(b));
}

static bool power_overflows(int64_t a, int64_t b, int64_t *out)
{
    *out = 1;
    for (; b > 0; b--) {
        if (__builtin_mul_overflow(*out, a, out)) return true;
        if (*out == a && (a == 0 || a == 1)) break;
        if (a == -1) {
            *out = b % 2 ? -1 : 1;
            break;
        }
    }
    return false;
}

static cn_status int_binary(cn_jop op, int64_t a, int64_t b, cn_jvalue *out)
{
    bool over = false;
    int64_t r = 0;
    if ((op == CN_JOP_DIV || op == CN_JOP_FLOORDIV || op == CN_JOP_MOD) && b == 0)
        return cn_fail(CN_ERR_ARG, "division by zero");
    if (op == CN_JOP_DIV || (op == CN_JOP_POW && b < 0)) {
        *out = cn_jreal(op == CN_JOP_DIV ? (double)a / (double)b : pow((double)a, (double)b));
        return CN_OK;
    }
    if (op == CN_JOP_ADD) over = __builtin_add_overflow(a, b, &r);
    if (op == CN_JOP_SUB) over = __builtin_sub_overflow(a, b, &r);
    if (op == CN_JOP_MUL) over = __builtin_mul_overflow(a, b, &r);
    if (op == CN_JOP_POW) over = power_overflows(a, b, &r);
    if (op == CN_JOP_FLOORDIV && b == -1) over = __builtin_sub_overflow(0, a, &r);
    if (op == CN_JOP_FLOORDIV && b != -1) r = a / b - (a % b != 0 && (a < 0) != (b < 0));
    if (op == CN_JOP_MOD && b != -1) r = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    if (over) return cn_fail(CN_ERR_ARG, "an integer exceeds 64 bits");
    *out = cn_jint(r);
    return CN_OK;
}

static cn_status real_binary(cn_jop op, double a, double b, cn_jvalue *out)
{
    bool divides = op == CN_JOP_DIV || op == CN_JOP_FLOORDIV || op == CN_JOP_MOD;
    if (divides && !(b < 0) && !(b > 0)) return cn_fail(CN_ERR_ARG, "division by zero");
    double r = a + b;
    if (op == CN_JOP_SUB) r = a - b;
    if (op == CN_JOP_MUL) r = a * b;
    if (op == CN_JOP_DIV) r = a / b;
    if (op == CN_JOP_FLOORDIV) r = floor(a / b);
    if (op == CN_JOP_MOD) r = a - b * floor(a / b);
    if (op == CN_JOP_POW) r = pow(a, b);
    *out = cn_jreal(r);
    return CN_OK;
}

/* ---- strings and lists ---- */

static cn_status join_values(cn_jrun *run, cn_jvalue a, cn_jvalue b, cn_jvalue *out)
{
    if (a.kind == CN_J_STRING) {
        char *at;
        size_t n = a.text.n + b.text.n;
        CN_TRY(cn_jwork(run, n / 64));
        CN_TRY(cn_jalloc(&run->arena, n + 1, 1, &at));
        if (a.text.n) memcpy(at, a.text.at, a.text.n);
        if (b.text.n) memcpy(at + a.text.n, b.text.at, b.text.n);
        *out = cn_jstring((cn_jtext){at, n});
        return CN_OK;
    }
    CN_TRY(cn_jwork(run, (a.list->n + b.list->n) / 8));
    CN_TRY(cn_jlist_new(&run->arena, a.kind, a.list->n + b.list->n, out));
    for (size_t i = 0; i < a.list->n; i++)
        CN_TRY(cn_jlist_add(&run->arena, out->list, a.list->at[i]));
    for (size_t i = 0; i < b.list->n; i++)
        CN_TRY(cn_jlist_add(&run->arena, out->list, b.list->at[i]));
    return CN_OK;
}

static cn_status repeat_operand(cn_jrun *run, cn_jvalue v, int64_t times, cn_jvalue *out)
{
    size_t n = times > 0 ? (size_t)times : 0;
    if (v.kind == CN_J_STRING) {
        size_t mark = cn_jmark(run);
        for (size_t i = 0; i < n && v.text.n; i++) {
            CN_TRY(cn_jwork(run, 1));
            CN_TRY(cn_jputs(run, v.text));
        }
        return cn_jcut(run, mark, out);
    }
    CN_TRY(cn_jlist_new(&run->arena, v.kind, 0, out));
    for (size_t i = 0; i < n && v.list->n; i++) {
        CN_TRY(cn_jwork(run, v.list->n));
        for (size_t k = 0; k < v.list->n; k++)
            CN_TRY(cn_jlist_add(&run->arena, out->list, v.list->at[k]));
    }
    return CN_OK;
}

static bool repeats_operand(cn_jvalue v)
{
    return v.kind == CN_J_STRING || v.kind == CN_J_LIST || v.kind == CN_J_TUPLE;
}

cn_status cn_jbinary(cn_jrun *run, cn_jop op, cn_jvalue a, cn_jvalue b, cn_jvalue *out)
{
    static const char *const signs[] = {
        [CN_JOP_ADD] = "+", [CN_JOP_SUB] = "-",       [CN_JOP_MUL] = "*",  [CN_JOP_DIV] = "/",
        [CN_JOP_MOD] = "%", [CN_JOP_FLOORDIV] = "//", [CN_JOP_POW] = "**",
    };
    int64_t i, j;
    double x, y;
    if (cn_jas_int(a, &i) && cn_jas_int(b, &j)) return int_binary(op, i, j, out);
    if (cn_jas_real(a, &x) && cn_jas_real(b, &y)) return real_binary(op, x, y, out);
    if (op == CN_JOP_ADD && a.kind == b.kind && repeats_operand(a))
        return join_values(run, a, b, out);
    if (op == CN_JOP_MUL && repeats_operand(a) && cn_jas_int(b, &j))
        return repeat_operand(run, a, j, out);
    if (op == CN_JOP_MUL && repeats_operand(b) && cn_jas_int(a, &i))
        return repeat_operand(run, b, i, out);
    if (op == CN_JOP_MOD && a.kind == CN_J_STRING) {
        cn_jargs args = {.at = &b, .n = 1};
        if (b.kind == CN_J_TUPLE) args = (cn_jargs){.at = b.list->at, .n = b.list->n};
        if (b.kind == CN_J_DICT) args = (cn_jargs){.named = b.dict};
        return cn_jformat(run, a.text, &args, out);
    }
    return fail_operands(signs[op], a, b);
}

/* ---- comparison ---- */

/* Charges what a comparison of two values can cost. */
static cn_status charge_pair(cn_jrun *run, cn_jvalue a, cn_jvalue b)
{
    size_t n = cn_jsize(a, CN_JINJA_MAX_STEPS), m = cn_jsize(b, CN_JINJA_MAX_STEPS);
    return cn_jwork(run, n < m ? n : m);
}

static cn_status contains_operand(cn_jrun *run, cn_jvalue item, cn_jvalue in, bool *out)
{
    *out = false;
    if (in.kind == CN_J_STRING) {
        if (item.kind != CN_J_STRING)
            return cn_fail(CN_ERR_ARG, "'in' a string needs a string before it, got a %s",
                           cn_jtype_name(item));
        CN_TRY(cn_jscan(run, in.text));
        *out = cn_pyfind(in.text, item.text) != SIZE_MAX;
        return CN_OK;
    }
    if (in.kind == CN_J_DICT) {
        CN_TRY(cn_jwork(run, 1 + in.dict->n / 8));
        *out = cn_jdict_find(in.dict, item) != NULL;
        return CN_OK;
    }
    cn_jlist *items;
    CN_TRY(cn_jiterate(run, in, &items));
    for (size_t i = 0; i < items->n && !*out; i++) {
        CN_TRY(charge_pair(run, item, items->at[i]));
        *out = cn_jsame(item, items->at[i]);
    }
    return CN_OK;
}

cn_status cn_jcompare(cn_jrun *run, cn_jop op, cn_jvalue a, cn_jvalue b, bool *out)
{
    static const char *const signs[] = {
        [CN_JOP_LT] = "<", [CN_JOP_LE] = "<=", [CN_JOP_GT] = ">", [CN_JOP_GE] = ">="};
    int order = 0;
    if (op == CN_JOP_IN || op == CN_JOP_NOT_IN) {
        CN_TRY(contains_operand(run, a, b, out));
        *out = *out == (op == CN_JOP_IN);
        return CN_OK;
    }
    CN_TRY(charge_pair(run, a, b));
    if (op == CN_JOP_EQ || op == CN_JOP_NE) {
        *out = cn_jsame(a, b) == (op == CN_JOP_EQ);
        return CN_OK;
    }
    if (!cn_jorder(a, b, &order)) return fail_operands(signs[op], a, b);
    *out = op == CN_JOP_LT   ? order < 0
           : op == CN_JOP_LE ? order <= 0
           : op == CN_JOP_GT ? order > 0
                             : order >= 0;
    return CN_OK;
}

/* ---- slices ---- */

/* Python's slice.indices(): the first index, the index to stop before, and the step. */
static cn_status slice_bounds(const cn_jvalue part[3], int64_t n, int64_t bounds[3])
{
    for (int i = 2; i >= 0; i--) {
        bool backward = i < 2 && bounds[2] < 0;
        if (part[i].kind == CN_J_NONE) {
            const int64_t defaults[] = {backward ? n - 1 : 0, backward ? -1 : n, 1};
            bounds[i] = defaults[i];
            continue;
        }
        if (part[i].kind == CN_J_UNDEFINED) return cn_jfail_undefined(part[i]);
        if (!cn_jas_int(part[i], &bounds[i]))
            return cn_fail(CN_ERR_ARG, "expected an integer in a slice, got a %s",
                           cn_jtype_name(part[i]));
        if (i == 2) continue;
        if (bounds[i] < 0) bounds[i] = bounds[i] < -n ? -1 : bounds[i] + n;
        if (bounds[i] < 0) bounds[i] = backward ? -1 : 0;
        if (bounds[i] > n - backward) bounds[i] = n - backward;
    }
    if (bounds[2] == 0) return cn_fail(CN_ERR_ARG, "the step of a slice is 0");
    return CN_OK;
}

static cn_status slice_text(cn_jrun *run, cn_jtext t, const int64_t b[3], cn_jvalue *out)
{
    if (b[2] == 1) {
        size_t from = cn_pyoffset(t, (size_t)b[0]);
        cn_jtext rest = {t.at + from, t.n - from};
        size_t len = b[1] > b[0] ? cn_pyoffset(rest, (size_t)(b[1] - b[0])) : 0;
        *out = cn_jstring((cn_jtext){rest.at, len});
        return CN_OK;
    }
    cn_jlist *chars;
    size_t mark = cn_jmark(run);
    CN_TRY(cn_jiterate(run, cn_jstring(t), &chars));
    for (int64_t i = b[0]; b[2] > 0 ? i < b[1] : i > b[1]; i += b[2]) {
        CN_TRY(cn_jputs(run, chars->at[i].text));
        if (b[2] > b[1] - i && b[2] > 0) break;
        if (b[2] < b[1] - i && b[2] < 0) break;
    }
    return cn_jcut(run, mark, out);
}

cn_status cn_jslice(cn_jrun *run, cn_jvalue v, const cn_jvalue part[3], cn_jvalue *out)
{
    int64_t b[3];
    if (v.kind == CN_J_UNDEFINED) return cn_jfail_undefined(v);
    if (!repeats_operand(v)) return cn_fail(CN_ERR_ARG, "a %s cannot be sliced", cn_jtype_name(v));
    if (v.kind == CN_J_STRING) CN_TRY(cn_jscan(run, v.text));
    size_t n = v.kind == CN_J_STRING ? cn_pylen(v.text) : v.list->n;
    CN_TRY(slice_bounds(part, (int64_t)n, b));
    if (v.kind == CN_J_STRING) return slice_text(run, v.text, b, out);
    CN_TRY(cn_jlist_new(&run->arena, v.kind, 0, out));
    for (int64_t i = b[0]; b[2] > 0 ? i < b[1] : i > b[1]; i += b[2]) {
        CN_TRY(cn_jwork(run, 1));
        CN_TRY(cn_jlist_add(&run->arena, out->list, v.list->at[i]));
        if (b[2] > 0 ? b[2] > b[1] - i : b[2] < b[1] - i) break;
    }
    return CN_OK;
}

/* ---- %-formatting ---- */

typedef struct format_spec {
    bool left, zero, plus;
    int width, precision; /* precision -1: none */
    char kind;
} format_spec;

static int read_small(cn_jtext *t)
{
    int n = 0;
    while (t->n && cn_pydigit((unsigned char)*t->at)) {
        if (n < 10000) n = n * 10 + (*t->at - '0');
        t->at++, t->n--;
    }
    return n;
}

/* Reads flags, width, precision and kind; the kind is '\0' at the end of the text. */
static format_spec read_spec(cn_jtext *t)
{
    format_spec s = {.precision = -1};
    for (; t->n && memchr("-0+ #", *t->at, 5); t->at++, t->n--) {
        s.left = s.left || *t->at == '-';
        s.zero = s.zero || *t->at == '0';
        s.plus = s.plus || *t->at == '+';
    }
    s.width = read_small(t);
    if (t->n && *t->at == '.') {
        t->at++, t->n--;
        s.precision = read_small(t);
    }
    if (!t->n) return s;
    s.kind = *t->at;
    t->at++, t->n--;
    return s;
}

/* The text of one value, in which `width` is not applied yet. */
static cn_status put_formatted(cn_jrun *run, const format_spec *s, cn_jvalue v)
{
    char text[400];
    double d = 0;
    if (s->kind == 's') return cn_jput_str(run, v);
    if (s->kind == 'r') return cn_jput_repr(run, v);
    if (!cn_jas_real(v, &d))
        return cn_fail(CN_ERR_ARG, "%%%c needs a number, got a %s", s->kind, cn_jtype_name(v));
    if (memchr("dixX", s->kind, 4)) {
        int64_t i = 0;
        if (!cn_jas_int(v, &i)) i = d > -9e18 && d < 9e18 ? (int64_t)d : 0;
        if (memchr("di", s->kind, 2))
            snprintf(text, sizeof text, s->plus ? "%+" PRId64 : "%" PRId64, i);
        else
            snprintf(text, sizeof text, s->kind == 'x' ? "%s%" PRIx64 : "%s%" PRIX64,
                     i < 0 ? "-" : "", i < 0 ? 0 - (uint64_t)i : (uint64_t)i);
        return cn_jput(run, text, strlen(text));
    }
    int precision = s->precision < 0 ? 6 : s->precision < 60 ? s->precision : 60;
    const char *sign = s->plus && d >= 0 ? "+" : "";
    if (s->kind == 'f' || s->kind == 'F')
        snprintf(text, sizeof text, "%s%.*f", sign, precision, d);
    else if (s->kind == 'e')
        snprintf(text, sizeof text, "%s%.*e", sign, precision, d);
    else if (s->kind == 'g')
        snprintf(text, sizeof text, "%s%.*g", sign, precision, d);
    else
        return cn_fail(CN_ERR_ARG, "the format %%%c is not supported",
                       s->kind > 32 && s->kind < 127 ? s->kind : '?');
    return cn_jput(run, text, strlen(text));
}

/* Applies width and, for text, precision to what was put since the mark. */
static cn_status pad_operand(cn_jrun *run, const format_spec *s, size_t mark)
{
    cn_jvalue whole;
    CN_TRY(cn_jcut(run, mark, &whole));
    cn_jtext t = whole.text;
    bool text = s->kind == 's' || s->kind == 'r';
    if (text && s->precision >= 0) t.n = cn_pyoffset(t, (size_t)s->precision);
    size_t len = cn_pylen(t), width = (size_t)s->width;
    size_t fill = width > len ? width - len : 0;
    bool zero = s->zero && !s->left && !text;
    size_t sign = zero && t.n && (*t.at == '-' || *t.at == '+');
    CN_TRY(cn_jput(run, t.at, sign));
    for (size_t i = 0; i < fill && !s->left; i++) CN_TRY(cn_jput(run, zero ? "0" : " ", 1));
    CN_TRY(cn_jput(run, t.at + sign, t.n - sign));
    for (size_t i = 0; i < fill && s->left; i++) CN_TRY(cn_jput(run, " ", 1));
    return CN_OK;
}

/* The value of the next conversion: by name for %(name)s, else by position. */
static cn_status next_value(cn_jtext *t, const cn_jargs *args, size_t *used, cn_jvalue *out)
{
    if (t->n && *t->at == '(') {
        size_t end = cn_pyfind(*t, CN_JTEXT(")"));
        if (end == SIZE_MAX) return cn_fail(CN_ERR_ARG, "a format lacks ')'");
        cn_jtext name = {t->at + 1, end - 1};
        const cn_jvalue *v = args->named ? cn_jdict_find_text(args->named, name) : NULL;
        if (!v) return cn_fail(CN_ERR_ARG, "a format names a value that is not given");
        *out = *v;
        *t = (cn_jtext){t->at + end + 1, t->n - end - 1};
        *used = args->n;
        return CN_OK;
    }
    if (*used >= args->n) return cn_fail(CN_ERR_ARG, "a format has more places than values");
    *out = args->at[(*used)++];
    return CN_OK;
}

cn_status cn_jformat(cn_jrun *run, cn_jtext format, const cn_jargs *args, cn_jvalue *out)
{
    size_t mark = cn_jmark(run), used = 0;
    while (format.n) {
        size_t at = cn_pyfind(format, CN_JTEXT("%"));
        cn_jtext plain = {format.at, at == SIZE_MAX ? format.n : at};
        CN_TRY(cn_jwork(run, 1));
        CN_TRY(cn_jputs(run, plain));
        if (at == SIZE_MAX) break;
        format = (cn_jtext){format.at + at + 1, format.n - at - 1};
        if (format.n && *format.at == '%') {
            CN_TRY(cn_jput(run, "%", 1));
            format = (cn_jtext){format.at + 1, format.n - 1};
            continue;
        }
        cn_jvalue v;
        CN_TRY(next_value(&format, args, &used, &v));
        format_spec spec = read_spec(&format);
        if (!spec.kind) return cn_fail(CN_ERR_ARG, "a format ends after %%");
        size_t from = cn_jmark(run);
        CN_TRY(put_formatted(run, &spec, v));
        CN_TRY(pad_operand(run, &spec, from));
    }
    if (used < args->n) return cn_fail(CN_ERR_ARG, "a format has fewer places than values");
    return cn_jcut(run, mark, out);
}
