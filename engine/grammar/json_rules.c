/* json_rules.c - see json_rules.h. */
#include "engine/grammar/json_rules.h"

#include <string.h>

#include "engine/grammar/regex.h"

static const int64_t LARGEST = INT64_C(999999999999999); /* CN_JSON_DIGITS digits */

static cn_status add_space(cn_net *n, const char *whitespace, cn_json_rules *out)
{
    out->space = CN_JSON_NO_SPACE;
    if (!whitespace) return CN_OK;
    out->space = cn_net_rule_new(n);
    CN_TRY(n->status);
    const cn_net_rule rule = n->rules[out->space];
    const cn_status status = cn_regex_emit(whitespace, strlen(whitespace), false, CN_TEXT_SPACE, n,
                                           rule.start, rule.end);
    return status == CN_OK ? CN_OK : cn_fail_within(status, "whitespace_pattern");
}

/* ---- strings ---- */

static uint32_t hex_digits(cn_net *n, uint32_t from, int count)
{
    for (int i = 0; i < count; i++) {
        const uint32_t to = cn_net_node_new(n);
        cn_net_byte(n, from, to, '0', '9');
        cn_net_byte(n, from, to, 'a', 'f');
        cn_net_byte(n, from, to, 'A', 'F');
        from = to;
    }
    return from;
}

/* The first hexadecimal digit is D, the second is in lo..hi or, as a letter, in letters. */
static uint32_t surrogate(cn_net *n, uint32_t from, const char *digits, const char *letters)
{
    const uint32_t d = cn_net_node_new(n), second = cn_net_node_new(n);
    cn_net_byte(n, from, d, 'd', 'd');
    cn_net_byte(n, from, d, 'D', 'D');
    if (digits[0]) cn_net_byte(n, d, second, (uint8_t)digits[0], (uint8_t)digits[1]);
    cn_net_byte(n, d, second, (uint8_t)letters[0], (uint8_t)letters[1]);
    cn_net_byte(n, d, second, (uint8_t)(letters[0] - 32), (uint8_t)(letters[1] - 32));
    return hex_digits(n, second, 2);
}

/* One character of a string, as it is or escaped. */
static void add_character(cn_net *n, cn_net_rule r)
{
    static const char escapes[] = "\"\\/bfnrt";
    cn_charset plain = {.n = 0};
    cn_charset_try_add(&plain, 0x20, CN_LAST_CHAR);
    plain.range[0].hi = '"' - 1;
    cn_charset_try_add(&plain, '"' + 1, '\\' - 1);
    cn_charset_try_add(&plain, '\\' + 1, CN_LAST_CHAR);
    cn_charset_emit(&plain, CN_TEXT_PLAIN, n, r.start, r.end);
    const uint32_t escape = cn_net_text(n, r.start, "\\", 1);
    for (const char *c = escapes; *c; c++) cn_net_byte(n, escape, r.end, (uint8_t)*c, (uint8_t)*c);
    const uint32_t u = cn_net_text(n, escape, "u", 1);
    /* Four digits that are no surrogate: the first is not D, or the second is below 8. */
    const uint32_t first = cn_net_node_new(n), d = cn_net_node_new(n), second = cn_net_node_new(n);
    cn_net_byte(n, u, first, '0', '9');
    cn_net_byte(n, u, first, 'a', 'c');
    cn_net_byte(n, u, first, 'A', 'C');
    cn_net_byte(n, u, first, 'e', 'f');
    cn_net_byte(n, u, first, 'E', 'F');
    cn_net_empty(n, hex_digits(n, first, 3), r.end);
    cn_net_byte(n, u, d, 'd', 'd');
    cn_net_byte(n, u, d, 'D', 'D');
    cn_net_byte(n, d, second, '0', '7');
    cn_net_empty(n, hex_digits(n, second, 2), r.end);
    /* A pair of surrogates is one character. */
    const uint32_t high = surrogate(n, u, "89", "ab");
    const uint32_t low = cn_net_text(n, high, "\\u", 2);
    cn_net_empty(n, surrogate(n, low, "", "cf"), r.end);
}

static void add_string(cn_net *n, cn_net_rule r, uint32_t character)
{
    const uint32_t open = cn_net_text(n, r.start, "\"", 1);
    cn_net_call(n, open, open, character);
    cn_net_byte(n, open, r.end, '"', '"');
}

/* ---- numbers ---- */

/* Reads the digits of the numbers from lo to hi, which have the same number of digits. At each
 * digit, what was read is the beginning of lo, of hi, of both, or of neither. */
static void same_digits(cn_net *n, uint32_t from, uint32_t to, const char *lo, const char *hi)
{
    const size_t len = strlen(lo);
    uint32_t at[2][2] = {{UINT32_MAX, UINT32_MAX}, {UINT32_MAX, from}}; /* [is lo's][is hi's] */
    for (size_t i = 0; i < len; i++) {
        uint32_t next[2][2] = {{UINT32_MAX, UINT32_MAX}, {UINT32_MAX, UINT32_MAX}};
        for (int k = 0; k < 4; k++) {
            const bool l = k & 1, h = k & 2;
            if (at[l][h] == UINT32_MAX) continue;
            for (char d = l ? lo[i] : '0'; d <= (h ? hi[i] : '9'); d++) {
                uint32_t *node = &next[l && d == lo[i]][h && d == hi[i]];
                if (*node == UINT32_MAX) *node = i + 1 < len ? cn_net_node_new(n) : to;
                cn_net_byte(n, at[l][h], *node, (uint8_t)d, (uint8_t)d);
            }
        }
        memcpy(at, next, sizeof at);
    }
}

/* Reads all numbers of at least `least` and at most `most` digits, 0 among those of one digit. */
static void all_digits(cn_net *n, uint32_t from, uint32_t to, int least, int most)
{
    if (least == 1 && most > 0) cn_net_byte(n, from, to, '0', '0');
    for (int len = 1; len <= most; len++) {
        const uint32_t next = cn_net_node_new(n);
        cn_net_byte(n, from, next, len == 1 ? '1' : '0', '9');
        if (len >= least) cn_net_empty(n, next, to);
        from = next;
    }
}

/* 0 <= lo <= hi <= LARGEST. Lengths of which only some numbers are in the range have nodes of their
 * own; there are at most two. */
static void digits(cn_net *n, uint32_t from, uint32_t to, int64_t lo, int64_t hi)
{
    int64_t least = 0, most = 9;
    int shortest = CN_JSON_DIGITS + 1, longest = 0; /* lengths whose numbers are all in the range */
    for (int len = 1; len <= CN_JSON_DIGITS; len++) {
        const int64_t a = lo > least ? lo : least, b = hi < most ? hi : most;
        char first[24], last[24];
        snprintf(first, sizeof first, "%lld", (long long)a);
        snprintf(last, sizeof last, "%lld", (long long)b);
        if (a == least && b == most) {
            if (longest == 0) shortest = len;
            longest = len;
        } else if (a <= b) {
            same_digits(n, from, to, first, last);
        }
        least = most + 1;
        most = most * 10 + 9;
    }
    all_digits(n, from, to, shortest, longest);
}

/* The whole numbers from lo to hi. */
static void add_integers(cn_net *n, uint32_t from, uint32_t to, int64_t lo, int64_t hi)
{
    if (lo < -LARGEST) lo = -LARGEST;
    if (hi > LARGEST) hi = LARGEST;
    if (lo > hi) return;
    if (hi >= 0) digits(n, from, to, lo > 0 ? lo : 0, hi);
    if (lo < 0) digits(n, cn_net_text(n, from, "-", 1), to, hi < 0 ? -hi : 1, -lo);
}

void cn_json_integer_range(cn_net *n, const cn_json_rules *r, uint32_t from, uint32_t to,
                           int64_t lo, int64_t hi)
{
    if (lo == INT64_MIN && hi == INT64_MAX)
        cn_net_call(n, from, to, r->integer);
    else
        add_integers(n, from, to, lo, hi);
}

/* The whole numbers from lo to hi with a fraction, behind a sign. The first of them, if it is open,
 * needs a fraction other than 0. */
static void fractions(cn_net *n, const cn_json_rules *r, uint32_t from, uint32_t to, int64_t lo,
                      int64_t hi, bool open)
{
    if (lo > hi) return;
    const uint32_t point = cn_net_node_new(n), first = cn_net_node_new(n);
    cn_net_call(n, point, to, r->fraction);
    cn_net_call(n, first, to, r->nonzero);
    if (open) digits(n, from, first, lo, lo);
    if (lo + open <= hi) digits(n, from, point, lo + open, hi);
}

void cn_json_number_range(cn_net *n, const cn_json_rules *r, uint32_t from, uint32_t to,
                          cn_json_bounds b)
{
    if (b.lo == INT64_MIN && b.hi == INT64_MAX) {
        cn_net_call(n, from, to, r->number);
        return;
    }
    if (b.lo < -LARGEST) b.lo = -LARGEST;
    if (b.hi > LARGEST) b.hi = LARGEST;
    add_integers(n, from, to, b.lo + b.lo_open, b.hi - b.hi_open);
    /* k.f lies from k to below k + 1, -k.f from above -k - 1 to -k. */
    fractions(n, r, from, to, b.lo > 0 ? b.lo : 0, b.hi - 1, b.lo_open && b.lo >= 0);
    if (b.lo < 0)
        fractions(n, r, cn_net_text(n, from, "-", 1), to, b.hi < 0 ? -b.hi : 0, -b.lo - 1,
                  b.hi_open && b.hi <= 0);
}

static void add_fraction(cn_net *n, cn_net_rule r)
{
    uint32_t at = cn_net_text(n, r.start, ".", 1);
    for (int i = 0; i < CN_JSON_DIGITS; i++) {
        const uint32_t next = cn_net_node_new(n);
        cn_net_byte(n, at, next, '0', '9');
        cn_net_empty(n, next, r.end);
        at = next;
    }
}

static void add_nonzero(cn_net *n, cn_net_rule r)
{
    uint32_t zeros = cn_net_text(n, r.start, ".", 1), more = cn_net_node_new(n);
    for (int i = 0; i < CN_JSON_DIGITS; i++) {
        const uint32_t next = cn_net_node_new(n), behind = cn_net_node_new(n);
        cn_net_byte(n, zeros, behind, '1', '9');
        cn_net_byte(n, zeros, next, '0', '0');
        cn_net_byte(n, more, behind, '0', '9');
        cn_net_empty(n, behind, r.end);
        zeros = next;
        more = behind;
    }
}

static void add_number(cn_net *n, cn_net_rule r, uint32_t fraction)
{
    const uint32_t sign = cn_net_node_new(n), whole = cn_net_node_new(n);
    const uint32_t parted = cn_net_node_new(n), exponent = cn_net_node_new(n);
    cn_net_empty(n, r.start, sign);
    cn_net_byte(n, r.start, sign, '-', '-');
    digits(n, sign, whole, 0, LARGEST);
    cn_net_empty(n, whole, parted);
    cn_net_call(n, whole, parted, fraction);
    cn_net_empty(n, parted, r.end);
    const uint32_t e = cn_net_node_new(n), one = cn_net_node_new(n);
    cn_net_byte(n, parted, e, 'e', 'e');
    cn_net_byte(n, parted, e, 'E', 'E');
    cn_net_empty(n, e, exponent);
    cn_net_byte(n, e, exponent, '+', '+');
    cn_net_byte(n, e, exponent, '-', '-');
    cn_net_byte(n, exponent, one, '0', '9');
    cn_net_empty(n, one, r.end);
    cn_net_byte(n, one, r.end, '0', '9');
}

/* ---- any value ---- */

uint32_t cn_json_space(cn_net *n, const cn_json_rules *r, uint32_t from)
{
    if (r->space == CN_JSON_NO_SPACE) return from;
    const uint32_t to = cn_net_node_new(n);
    cn_net_call(n, from, to, r->space);
    return to;
}

uint32_t cn_json_mark(cn_net *n, const cn_json_rules *r, uint32_t from, char mark)
{
    return cn_json_space(n, r, cn_net_text(n, from, &mark, 1));
}

static void add_array(cn_net *n, cn_net_rule rule, const cn_json_rules *r)
{
    const uint32_t open = cn_json_mark(n, r, rule.start, '[');
    const uint32_t item = cn_net_node_new(n), behind = cn_net_node_new(n);
    cn_net_byte(n, open, rule.end, ']', ']');
    cn_net_empty(n, open, item);
    cn_net_call(n, item, behind, r->any_value);
    cn_net_empty(n, cn_json_mark(n, r, behind, ','), item);
    cn_net_byte(n, cn_json_space(n, r, behind), rule.end, ']', ']');
}

static void add_object(cn_net *n, cn_net_rule rule, const cn_json_rules *r)
{
    const uint32_t open = cn_json_mark(n, r, rule.start, '{');
    const uint32_t member = cn_net_node_new(n), name = cn_net_node_new(n);
    const uint32_t behind = cn_net_node_new(n);
    cn_net_byte(n, open, rule.end, '}', '}');
    cn_net_empty(n, open, member);
    cn_net_call(n, member, name, r->any_string);
    cn_net_call(n, cn_json_mark(n, r, name, ':'), behind, r->any_value);
    cn_net_empty(n, cn_json_mark(n, r, behind, ','), member);
    cn_net_byte(n, cn_json_space(n, r, behind), rule.end, '}', '}');
}

static void add_value(cn_net *n, cn_net_rule rule, const cn_json_rules *r)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        cn_net_empty(n, cn_net_text(n, rule.start, words[i], strlen(words[i])), rule.end);
    cn_net_call(n, rule.start, rule.end, r->any_string);
    cn_net_call(n, rule.start, rule.end, r->number);
    cn_net_call(n, rule.start, rule.end, r->any_object);
    cn_net_call(n, rule.start, rule.end, r->any_array);
}

cn_status cn_json_rules_add(cn_net *n, const char *whitespace, cn_json_rules *out)
{
    *out = (cn_json_rules){
        .character = cn_net_rule_new(n),
        .any_string = cn_net_rule_new(n),
        .number = cn_net_rule_new(n),
        .integer = cn_net_rule_new(n),
        .fraction = cn_net_rule_new(n),
        .nonzero = cn_net_rule_new(n),
        .any_value = cn_net_rule_new(n),
        .any_object = cn_net_rule_new(n),
        .any_array = cn_net_rule_new(n),
    };
    CN_TRY(n->status);
    CN_TRY(add_space(n, whitespace, out));
    add_character(n, n->rules[out->character]);
    add_string(n, n->rules[out->any_string], out->character);
    add_fraction(n, n->rules[out->fraction]);
    add_number(n, n->rules[out->number], out->fraction);
    add_integers(n, n->rules[out->integer].start, n->rules[out->integer].end, -LARGEST, LARGEST);
    add_nonzero(n, n->rules[out->nonzero]);
    add_value(n, n->rules[out->any_value], out);
    add_object(n, n->rules[out->any_object], out);
    add_array(n, n->rules[out->any_array], out);
    return n->status;
}
