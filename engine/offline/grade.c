/* grade.c - finds and compares answers in a text without copying. See grade.h. */
#include "engine/offline/grade.h"

#include <ctype.h>
#include <math.h>

/* s[0 .. n); s NULL: nothing was found. */
typedef struct piece {
    const char *s;
    size_t n;
} piece;

static const piece nothing = {NULL, 0};

static piece trim_piece(piece p)
{
    while (p.n && isspace((unsigned char)p.s[0])) p.s++, p.n--;
    while (p.n && isspace((unsigned char)p.s[p.n - 1])) p.n--;
    return p;
}

static bool same(piece a, piece b) { return a.n == b.n && memcmp(a.s, b.s, a.n) == 0; }

static piece piece_of(const char *text) { return (piece){text, strlen(text)}; }

/* The text after the first `what`, or nothing. */
static piece after(piece text, const char *what)
{
    const size_t len = strlen(what);
    const char *found = memmem(text.s, text.n, what, len);
    return found ? (piece){found + len, (size_t)(text.s + text.n - found) - len} : nothing;
}

static piece after_last(piece text, const char *what)
{
    piece last = nothing;
    while ((text = after(text, what)).s) last = text;
    return last;
}

static piece after_reasoning(piece output)
{
    const piece answer = after_last(output, "</think>");
    if (answer.s) return answer;
    return after(output, "<think>").s ? nothing : output;
}

/* ---- boxed ---- */

/* The text between the brace that `text` begins with and the brace that closes it; nothing if none
 * does. */
static piece inside_braces(piece text)
{
    size_t depth = 0;
    for (size_t i = 0; i < text.n; i++) {
        if (text.s[i] == '\\' && i + 1 < text.n) {
            i++; /* an escaped brace is text */
            continue;
        }
        if (text.s[i] == '{') depth++;
        if (text.s[i] == '}' && --depth == 0) return (piece){text.s + 1, i - 1};
    }
    return nothing;
}

static piece boxed(piece text)
{
    piece last = nothing;
    for (piece at = text; (at = after(at, "\\boxed")).s;) {
        piece brace = at;
        while (brace.n && brace.s[0] == ' ') brace.s++, brace.n--;
        piece found = brace.n && brace.s[0] == '{' ? inside_braces(brace) : nothing;
        if (found.s) last = found;
    }
    if (last.s) return trim_piece(last);
    piece line = after_last(text, "####");
    if (!line.s) return nothing;
    const char *end = memchr(line.s, '\n', line.n);
    return trim_piece((piece){line.s, end ? (size_t)(end - line.s) : line.n});
}

/* Removes $...$ around an answer, which does not change its value. */
static piece without_dollars(piece p)
{
    if (p.n >= 2 && p.s[0] == '$' && p.s[p.n - 1] == '$') p = (piece){p.s + 1, p.n - 2};
    return trim_piece(p);
}

/* ---- numbers ---- */

/* A decimal number: the digits of the whole part, with their separators, and of the fraction. */
typedef struct number {
    bool negative;
    piece whole, fraction;
} number;

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static size_t digits_at(const char *s, size_t n)
{
    size_t len = 0;
    while (len < n && is_digit(s[len])) len++;
    return len;
}

/* Length of digits with commas between groups of three: "1,234,567"; "1,2" ends before the
 * comma. */
static size_t grouped_digits(const char *s, size_t n)
{
    size_t len = digits_at(s, n);
    if (len == 0 || len > 3) return len;
    while (len < n && s[len] == ',' && digits_at(s + len + 1, n - len - 1) == 3) len += 4;
    return len;
}

/* Length of a sign, 0 if there is none: "-", "+", or U+2212, the minus sign of typeset text. */
static size_t sign_at(piece p)
{
    static const char minus[] = "\xE2\x88\x92";
    if (p.n && (p.s[0] == '-' || p.s[0] == '+')) return 1;
    return p.n >= 3 && memcmp(p.s, minus, 3) == 0 ? 3 : 0;
}

/* Reads the number that starts at p. Returns its length, 0 if there is none. */
static size_t read_number(piece p, number *out)
{
    *out = (number){0};
    size_t at = sign_at(p);
    out->negative = at > 0 && p.s[0] != '+';
    if (at < p.n && p.s[at] == '$') at++;
    out->whole = (piece){p.s + at, grouped_digits(p.s + at, p.n - at)};
    at += out->whole.n;
    size_t after_point = at < p.n && p.s[at] == '.' ? digits_at(p.s + at + 1, p.n - at - 1) : 0;
    if (after_point) {
        out->fraction = (piece){p.s + at + 1, after_point};
        at += 1 + after_point;
    }
    return out->whole.n || after_point ? at : 0;
}

/* Finds the last number. A sign belongs to a number unless it follows a digit or a letter, as in
 * "3-2" and "gpt-4". */
static bool last_number(piece text, number *out)
{
    bool found = false;
    for (size_t i = 0; i < text.n;) {
        bool sign = sign_at((piece){text.s + i, text.n - i}) > 0;
        bool joined = i > 0 && isalnum((unsigned char)text.s[i - 1]);
        number n;
        size_t len = sign && joined ? 0 : read_number((piece){text.s + i, text.n - i}, &n);
        if (len) {
            *out = n;
            found = true;
        }
        i += len ? len : 1;
    }
    return found;
}

/* Removes leading zeros and separators from a whole part. */
static piece significant(piece whole)
{
    while (whole.n && (whole.s[0] == '0' || whole.s[0] == ',')) whole.s++, whole.n--;
    return whole;
}

static bool same_whole(piece a, piece b)
{
    a = significant(a);
    b = significant(b);
    while (a.n && b.n) {
        if (a.s[0] == ',') {
            a.s++, a.n--;
        } else if (b.s[0] == ',') {
            b.s++, b.n--;
        } else {
            if (a.s[0] != b.s[0]) return false;
            a.s++, a.n--;
            b.s++, b.n--;
        }
    }
    return a.n == 0 && b.n == 0;
}

static piece without_trailing_zeros(piece fraction)
{
    while (fraction.n && fraction.s[fraction.n - 1] == '0') fraction.n--;
    return fraction;
}

/* Compares digit by digit, so that numbers of any length can be compared. */
static bool same_number(const number *a, const number *b)
{
    piece fa = without_trailing_zeros(a->fraction), fb = without_trailing_zeros(b->fraction);
    if (!same_whole(a->whole, b->whole) || fa.n != fb.n) return false;
    if (fa.n && memcmp(fa.s, fb.s, fa.n) != 0) return false;
    bool zero = significant(a->whole).n == 0 && fa.n == 0;
    return zero || a->negative == b->negative;
}

static bool whole_number_text(piece p, number *out) { return p.n && read_number(p, out) == p.n; }

/* ---- the rules ---- */

static bool grade_boxed(piece answer, piece reference)
{
    piece got = boxed(answer), want = boxed(reference);
    if (!got.s) return false;
    if (!want.s) want = trim_piece(reference);
    got = without_dollars(got);
    want = without_dollars(want);
    number a, b;
    if (whole_number_text(got, &a) && whole_number_text(want, &b)) return same_number(&a, &b);
    return same(got, want);
}

static bool grade_last_number(piece answer, piece reference)
{
    number got, want;
    return last_number(answer, &got) && last_number(reference, &want) && same_number(&got, &want);
}

bool cn_grade(cn_opt_grade rule, const char *output, size_t n, const char *reference)
{
    CN_ASSERT(rule != CN_OPT_GRADE_NONE);
    const piece answer = after_reasoning((piece){output, n}), want = piece_of(reference);
    if (!answer.s) return false;
    if (rule == CN_OPT_GRADE_BOXED) return grade_boxed(answer, want);
    if (rule == CN_OPT_GRADE_LAST_NUMBER) return grade_last_number(answer, want);
    return same(trim_piece(answer), trim_piece(want));
}

void cn_grade_interval(uint64_t matched, uint64_t n, double *low, double *high)
{
    const double z = 1.959963984540054; /* of 95 % */
    *low = 0;
    *high = 1;
    if (n == 0) return;
    const double count = (double)n, p = (double)matched / count, z2 = z * z;
    const double middle = (p + z2 / (2 * count)) / (1 + z2 / count);
    const double half =
        z / (1 + z2 / count) * sqrt(p * (1 - p) / count + z2 / (4 * count * count));
    if (matched > 0) *low = middle - half;
    if (matched < n) *high = middle + half;
}
