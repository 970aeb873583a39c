/* json_rules.c - see json_rules.h. */
#include "engine/grammar/json_rules.h"

#include "engine/grammar/regex.h"

enum { MAX_DIGITS = 18 }; /* of an integer with bounds */

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
static void add_json_character(cn_net *n, cn_net_rule r)
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
    /* Four digits that are not a surrogate: the first is not D, or the second is below 8. */
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

static void add_json_string(cn_net *n, cn_net_rule r, uint32_t character)
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

/* 0 <= lo <= hi < 10^MAX_DIGITS. Lengths of which only some numbers are in the range have nodes of
 * their own; there are at most two. */
static void digits(cn_net *n, uint32_t from, uint32_t to, int64_t lo, int64_t hi)
{
    int64_t least = 0, most = 9;
    int shortest = MAX_DIGITS + 1, longest = 0; /* lengths whose numbers are all in the range */
    for (int len = 1; len <= MAX_DIGITS; len++) {
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
        if (len == MAX_DIGITS) break; /* one digit more would overflow */
        least = most + 1;
        if (len < MAX_DIGITS) most = most * 10 + 9;
    }
    all_digits(n, from, to, shortest, longest);
}

void cn_json_integer_range(cn_net *n, uint32_t from, uint32_t to, int64_t lo, int64_t hi)
{
    if (lo > hi) return;
    if (hi >= 0) digits(n, from, to, lo > 0 ? lo : 0, hi);
    if (lo < 0) digits(n, cn_net_text(n, from, "-", 1), to, hi < 0 ? -hi : 1, -lo);
}

/* ---- decimals ---- */

/* Reads numbers of which some digits were read: at `whole` all of the integer part, at free[k] the
 * point and k digits after it. Any further digits may follow. */
typedef struct decimals {
    cn_net *net;
    uint32_t to, whole, free[CN_JSON_DIGITS + 1];
} decimals;

static decimals make_decimals(cn_net *n, uint32_t to)
{
    decimals d = {.net = n, .to = to, .whole = cn_net_node_new(n)};
    for (int k = 0; k <= CN_JSON_DIGITS; k++) d.free[k] = cn_net_node_new(n);
    if (n->status != CN_OK) return d;
    cn_net_empty(n, d.whole, to);
    cn_net_byte(n, d.whole, d.free[0], '.', '.');
    for (int k = 0; k < CN_JSON_DIGITS; k++) {
        cn_net_byte(n, d.free[k], d.free[k + 1], '0', '9');
        cn_net_empty(n, d.free[k + 1], to);
    }
    return d;
}

/* The digits after the point of a number whose integer part was that of a bound. lo and hi have
 * CN_JSON_DIGITS digits. */
static void bounded_fraction(const decimals *d, uint32_t at, const char *lo, const char *hi)
{
    uint32_t on[2][2] = {{UINT32_MAX, UINT32_MAX},
                         {UINT32_MAX, UINT32_MAX}}; /* [is lo's][is hi's] */
    on[lo != NULL][hi != NULL] = at;
    for (int i = 0; i <= CN_JSON_DIGITS; i++) {
        uint32_t next[2][2] = {{UINT32_MAX, UINT32_MAX}, {UINT32_MAX, UINT32_MAX}};
        for (int k = 1; k < 4; k++) {
            const bool l = k & 1, h = k & 2;
            if (on[l][h] == UINT32_MAX) continue;
            /* The missing digits are 0: the number ends here if it is not below lo then. */
            const bool ends = !l || strspn(lo + i, "0") == strlen(lo + i);
            if (i > 0 && ends) cn_net_empty(d->net, on[l][h], d->to);
            if (i == CN_JSON_DIGITS) continue;
            for (char c = l ? lo[i] : '0'; c <= (h ? hi[i] : '9'); c++) {
                const bool still_l = l && c == lo[i], still_h = h && c == hi[i];
                uint32_t *node = &next[still_l][still_h];
                const bool is_free = !still_l && !still_h;
                if (*node == UINT32_MAX) *node = is_free ? d->free[i + 1] : cn_net_node_new(d->net);
                cn_net_byte(d->net, on[l][h], *node, (uint8_t)c, (uint8_t)c);
            }
        }
        memcpy(on, next, sizeof on);
    }
}

/* Numbers with this integer part, from lo to hi, which are fractions; NULL: no bound. */
static void edge_of_range(const decimals *d, uint32_t from, int64_t whole, const char *lo,
                          const char *hi)
{
    cn_net *n = d->net;
    const uint32_t read = cn_net_node_new(n), point = cn_net_node_new(n);
    digits(n, from, read, whole, whole);
    if (!lo || strspn(lo, "0") == strlen(lo)) cn_net_empty(n, read, d->to);
    cn_net_byte(n, read, point, '.', '.');
    bounded_fraction(d, point, lo, hi);
}

/* 0 <= lo <= hi. */
static void add_decimals(const decimals *d, uint32_t from, cn_json_decimal lo, cn_json_decimal hi)
{
    char first[24], last[24];
    const int64_t a = (int64_t)(lo / CN_JSON_UNIT), b = (int64_t)(hi / CN_JSON_UNIT);
    snprintf(first, sizeof first, "%015lld", (long long)(lo % CN_JSON_UNIT));
    snprintf(last, sizeof last, "%015lld", (long long)(hi % CN_JSON_UNIT));
    if (a == b) {
        edge_of_range(d, from, a, first, last);
        return;
    }
    edge_of_range(d, from, a, first, NULL);
    edge_of_range(d, from, b, NULL, last);
    if (a + 1 <= b - 1) digits(d->net, from, d->whole, a + 1, b - 1);
}

void cn_json_number_range(cn_net *n, uint32_t from, uint32_t to, cn_json_decimal lo,
                          cn_json_decimal hi)
{
    if (lo > hi) return;
    const decimals d = make_decimals(n, to);
    if (n->status != CN_OK) return;
    if (hi >= 0) add_decimals(&d, from, lo > 0 ? lo : 0, hi);
    if (lo < 0) add_decimals(&d, cn_net_text(n, from, "-", 1), hi < 0 ? -hi : 1, -lo);
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

static void add_number(cn_net *n, cn_net_rule r, uint32_t fraction)
{
    const uint32_t sign = cn_net_node_new(n), whole = cn_net_node_new(n);
    const uint32_t parted = cn_net_node_new(n), exponent = cn_net_node_new(n);
    cn_net_empty(n, r.start, sign);
    cn_net_byte(n, r.start, sign, '-', '-');
    digits(n, sign, whole, 0, CN_JSON_LARGEST);
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

static void add_json_value(cn_net *n, cn_net_rule rule, const cn_json_rules *r)
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
        .any_value = cn_net_rule_new(n),
        .any_object = cn_net_rule_new(n),
        .any_array = cn_net_rule_new(n),
    };
    CN_TRY(n->status);
    CN_TRY(add_space(n, whitespace, out));
    add_json_character(n, n->rules[out->character]);
    add_json_string(n, n->rules[out->any_string], out->character);
    add_fraction(n, n->rules[out->fraction]);
    add_number(n, n->rules[out->number], out->fraction);
    cn_json_integer_range(n, n->rules[out->integer].start, n->rules[out->integer].end,
                          -CN_JSON_LARGEST, CN_JSON_LARGEST);
    add_json_value(n, n->rules[out->any_value], out);
    add_object(n, n->rules[out->any_object], out);
    add_array(n, n->rules[out->any_array], out);
    return n->status;
}
