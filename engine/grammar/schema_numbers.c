/* schema_numbers.c - numbers of a schema: bounds and multipleOf. See schema_parts.h.
 *
 * An answer is read as a double, and so are the bounds. A decimal that is not below the shortest
 * decimal of a double is read as at least that double, because rounding keeps the order. So an
 * inclusive bound is the shortest decimal of its double, and an exclusive one that of the next
 * double. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/json.h"
#include "engine/grammar/schema_parts.h"

enum {
    MAX_WORDS = 1000,   /* numbers that are written one by one */
    MAX_MODULUS = 2000, /* of a machine that divides */
    MAX_DIVISOR_DIGITS = 12
};

typedef struct range {
    cn_json_decimal lo, hi;
    bool bounded; /* by a keyword */
} range;

static cn_json_decimal decimal_of(int64_t n) { return (cn_json_decimal)n * CN_JSON_UNIT; }

static const int64_t MOST_INTEGER = INT64_C(999999999999999999); /* 18 digits */

/* ---- doubles ---- */

/* The shortest decimal that is read as x: m * 10^*exponent. */
static int64_t shortest_decimal(double x, int *exponent)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, x);
        if (strtod(text, NULL) == x) break;
    }
    char *e = strchr(text, 'e');
    int64_t m = 0;
    *exponent = atoi(e + 1);
    for (const char *c = text; c < e; c++) {
        if (*c < '0' || *c > '9') continue;
        m = m * 10 + (*c - '0');
    }
    *exponent -= (int)(e - strchr(text, '.') - 1);
    return *text == '-' ? -m : m;
}

/* The decimal as a count of 10^-15, rounded up or down. Beyond +-10^18 a bound excludes all numbers
 * or none. */
static cn_json_decimal decimal_of_double(double x, bool up)
{
    const cn_json_decimal most = decimal_of(MOST_INTEGER);
    if (x >= 1e18) return up ? most + 1 : most;
    if (x <= -1e18) return up ? -most : -most - 1;
    int exponent;
    cn_json_decimal m = shortest_decimal(x, &exponent);
    for (exponent += CN_JSON_DIGITS; exponent > 0 && m != 0; exponent--) m *= 10;
    bool rest = false;
    for (; exponent < 0 && m != 0; exponent++) {
        rest |= m % 10 != 0;
        m /= 10;
    }
    /* Division has rounded towards 0. */
    if (rest && up && x > 0) m++;
    if (rest && !up && x < 0) m--;
    return m;
}

/* ---- bounds ---- */

static void narrow(range *io, cn_json_decimal d, bool lower)
{
    if (lower && d > io->lo) io->lo = d;
    if (!lower && d < io->hi) io->hi = d;
    io->bounded = true;
}

static cn_status read_bound(const cn_schema_job *job, uint32_t part, const json_t *schema,
                            const char *key, const char *exclusive, bool lower, range *io)
{
    const json_t *v = json_object_get(schema, key), *other = json_object_get(schema, exclusive);
    char shown[CN_SCHEMA_SHOWN_BYTES];
    const bool is_exclusive = strncmp(key, "exclusive", 9) == 0;
    if (!v || (is_exclusive && json_is_boolean(v))) return CN_OK; /* a boolean is about minimum */
    if (!json_is_number(v))
        return cn_schema_wrong(job, part, "%s: expected a number, got %s", key,
                               cn_json_describe(v, shown, sizeof shown));
    const bool open = is_exclusive || json_is_true(other);
    double x = json_number_value(v);
    if (open) x = nextafter(x, lower ? INFINITY : -INFINITY);
    narrow(io, decimal_of_double(x, lower), lower);
    /* A double may round a long whole number; readers with whole numbers do not. */
    const json_int_t n = json_integer_value(v), step = lower ? 1 : -1;
    if (json_is_integer(v) && n > -MOST_INTEGER && n < MOST_INTEGER && llabs(n) > CN_JSON_LARGEST)
        narrow(io, decimal_of(n + (open ? step : 0)), lower);
    return CN_OK;
}

static void bound_format(const json_t *schema, bool whole, range *io)
{
    const char *format = json_string_value(json_object_get(schema, "format"));
    if (!format || !whole || strcmp(format, "int32") != 0) return;
    narrow(io, decimal_of(INT32_MIN), true);
    narrow(io, decimal_of(INT32_MAX), false);
}

/* The range of the terms, clamped to numbers of CN_JSON_DIGITS digits before the point unless they
 * are all beyond it. */
static cn_status read_range(const cn_schema_job *job, uint32_t part, bool whole, range *out)
{
    const cn_schema_terms *terms = &job->parts[part].terms;
    const cn_json_decimal most = decimal_of(MOST_INTEGER);
    const cn_json_decimal usual = decimal_of(CN_JSON_LARGEST) + (whole ? 0 : CN_JSON_LARGEST);
    *out = (range){-most, most, false};
    for (uint32_t i = 0; i < terms->n; i++) {
        const json_t *s = terms->list[i].schema;
        CN_TRY(read_bound(job, part, s, "minimum", "exclusiveMinimum", true, out));
        CN_TRY(read_bound(job, part, s, "exclusiveMinimum", "", true, out));
        CN_TRY(read_bound(job, part, s, "maximum", "exclusiveMaximum", false, out));
        CN_TRY(read_bound(job, part, s, "exclusiveMaximum", "", false, out));
        bound_format(s, whole, out);
    }
    if (out->lo <= usual && out->hi > usual) out->hi = usual;
    if (out->hi >= -usual && out->lo < -usual) out->lo = -usual;
    return CN_OK;
}

/* The whole numbers of a range. */
static void whole_range(const range *r, int64_t *lo, int64_t *hi)
{
    const cn_json_decimal unit = CN_JSON_UNIT;
    *lo = (int64_t)(r->lo / unit + (r->lo % unit > 0));
    *hi = (int64_t)(r->hi / unit - (r->hi % unit < 0));
}

/* ---- multipleOf ---- */

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The least whole number above 0 that is a multiple; 0: none is found. */
static int64_t whole_divisor(const json_t *v)
{
    int exponent = 0;
    int64_t m = json_integer_value(v), tens = 1;
    if (json_is_real(v)) m = shortest_decimal(json_real_value(v), &exponent);
    for (; m % 10 == 0 && m != 0; m /= 10) exponent++;
    if (m <= 0 || exponent > MAX_DIVISOR_DIGITS || exponent < -MAX_DIVISOR_DIGITS) return 0;
    for (int i = 0; i < (exponent < 0 ? -exponent : exponent); i++) tens *= 10;
    if (exponent < 0) return m / gcd(m, tens);
    return m <= INT64_MAX / 1000 / tens ? m * tens : 0;
}

/* The divisor of all terms. *out 1: none. Whole: of whole numbers. */
static cn_status read_divisor(const cn_schema_job *job, uint32_t part, bool *whole, int64_t *out)
{
    const cn_schema_terms *terms = &job->parts[part].terms;
    char shown[CN_SCHEMA_SHOWN_BYTES];
    *out = 1;
    for (uint32_t i = 0; i < terms->n; i++) {
        const json_t *v = json_object_get(terms->list[i].schema, "multipleOf");
        if (!v) continue;
        if (!json_is_number(v) || json_number_value(v) <= 0)
            return cn_schema_wrong(job, part, "multipleOf: expected a number above 0, got %s",
                                   cn_json_describe(v, shown, sizeof shown));
        const double x = json_number_value(v);
        const int64_t d = *whole || floor(x) == x ? whole_divisor(v) : 0;
        const int64_t step = d ? d / gcd(d, *out) : 0;
        if (step == 0 || step > INT64_MAX / 1000 / *out) {
            CN_TRY(cn_schema_drop(job, part, "multipleOf %s",
                                  cn_json_describe(v, shown, sizeof shown)));
            continue;
        }
        *out *= step;
        *whole = true;
    }
    return CN_OK;
}

/* Decimal numbers, 0 or without leading zeros, that are multiples of odd * 10^zeros. At node i the
 * digits so far have rest i. */
static void emit_multiples(cn_net *n, uint32_t odd, uint32_t zeros)
{
    const cn_net_rule root = n->rules[0];
    const uint32_t sign = cn_net_node_new(n), first = n->n_nodes;
    for (uint32_t i = 0; i < odd; i++) cn_net_node_new(n);
    uint32_t end = root.end;
    for (uint32_t i = 0; i < zeros && n->status == CN_OK; i++) {
        const uint32_t before = cn_net_node_new(n);
        cn_net_byte(n, before, end, '0', '0');
        end = before;
    }
    if (n->status != CN_OK) return;
    cn_net_empty(n, root.start, sign);
    cn_net_byte(n, root.start, sign, '-', '-');
    cn_net_byte(n, sign, root.end, '0', '0');
    for (uint32_t digit = 0; digit < 10; digit++) {
        if (digit > 0)
            cn_net_byte(n, sign, first + digit % odd, (uint8_t)('0' + digit),
                        (uint8_t)('0' + digit));
        for (uint32_t i = 0; i < odd; i++)
            cn_net_byte(n, first + i, first + (10 * i + digit) % odd, (uint8_t)('0' + digit),
                        (uint8_t)('0' + digit));
    }
    cn_net_empty(n, first, end);
}

/* Reads the multiples in a range one by one. */
static cn_status emit_few(cn_net *net, cn_net_rule rule, int64_t lo, int64_t hi, int64_t divisor)
{
    char *texts = cn_calloc(MAX_WORDS + 1, 24);
    cn_net_word *words = cn_calloc(MAX_WORDS + 1, sizeof *words);
    size_t n = 0;
    for (int64_t i = lo; texts && words && i <= hi; i++) {
        const int len = snprintf(texts + 24 * n, 24, "%lld", (long long)(i * divisor));
        words[n] = (cn_net_word){texts + 24 * n, (size_t)len};
        n++;
    }
    if (texts && words) cn_net_words(net, rule.start, rule.end, words, n);
    const bool made = texts && words;
    cn_free(texts);
    cn_free(words);
    return made ? net->status : cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
}

static cn_status emit_by_machine(cn_net *net, cn_net_rule rule, int64_t lo, int64_t hi,
                                 uint32_t odd, uint32_t zeros)
{
    cn_net range_net = {.steps = net->steps}, multiples = {.steps = net->steps};
    cn_dfa numbers = {0}, chosen = {0};
    cn_net_rule_new(&range_net);
    cn_net_rule_new(&multiples);
    cn_status status = range_net.status == CN_OK ? multiples.status : range_net.status;
    if (status == CN_OK) {
        cn_json_integer_range(&range_net, range_net.rules[0].start, range_net.rules[0].end, lo, hi);
        emit_multiples(&multiples, odd, zeros);
        status = range_net.status == CN_OK ? multiples.status : range_net.status;
    }
    if (status == CN_OK) status = cn_dfa_from_net(&numbers, &range_net, net);
    if (status == CN_OK) status = cn_dfa_from_net(&chosen, &multiples, net);
    if (status == CN_OK) status = cn_dfa_narrow(&numbers, &chosen, false, net);
    if (status == CN_OK) cn_dfa_emit(&numbers, CN_TEXT_PLAIN, net, rule.start, rule.end);
    cn_dfa_free(&numbers);
    cn_dfa_free(&chosen);
    cn_net_free(&range_net);
    cn_net_free(&multiples);
    return status;
}

static cn_status emit_multiples_in(cn_schema_job *job, uint32_t part, cn_net_rule rule, int64_t lo,
                                   int64_t hi, int64_t divisor)
{
    const int64_t first = lo / divisor + (lo % divisor > 0),
                  last = hi / divisor - (hi % divisor < 0);
    if (first > last) return CN_OK;
    if (last - first < MAX_WORDS) return emit_few(job->net, rule, first, last, divisor);
    int64_t odd = divisor;
    uint32_t zeros = 0;
    for (; odd % 10 == 0; odd /= 10) zeros++;
    cn_status status = odd <= MAX_MODULUS
                           ? emit_by_machine(job->net, rule, lo, hi, (uint32_t)odd, zeros)
                           : CN_ERR_ARG;
    if (status != CN_ERR_ARG || job->net->status != CN_OK) return status;
    CN_TRY(cn_schema_drop(job, part, "multipleOf %lld", (long long)divisor));
    cn_json_integer_range(job->net, rule.start, rule.end, lo, hi);
    return CN_OK;
}

/* ---- numbers ---- */

/* Of several terms, each may be right where another holds too: then the part has no texts. */
static cn_status no_number(const cn_schema_job *job, uint32_t part)
{
    if (job->parts[part].terms.n > 1) return CN_OK;
    return cn_schema_wrong(job, part,
                           "expected bounds with a number of at most %d digits between them",
                           CN_JSON_DIGITS);
}

cn_status cn_schema_emit_number(cn_schema_job *job, uint32_t part, cn_net_rule rule, bool whole)
{
    range r;
    int64_t divisor, lo, hi;
    CN_TRY(read_divisor(job, part, &whole, &divisor));
    CN_TRY(read_range(job, part, whole, &r));
    if (r.lo > r.hi) return no_number(job, part);
    if (!r.bounded && divisor == 1) {
        cn_net_call(job->net, rule.start, rule.end, whole ? job->rules.integer : job->rules.number);
        return CN_OK;
    }
    if (!whole) {
        cn_json_number_range(job->net, rule.start, rule.end, r.lo, r.hi);
        return CN_OK;
    }
    whole_range(&r, &lo, &hi);
    if (lo > hi) return no_number(job, part);
    if (divisor > 1) return emit_multiples_in(job, part, rule, lo, hi, divisor);
    cn_json_integer_range(job->net, rule.start, rule.end, lo, hi);
    return CN_OK;
}
