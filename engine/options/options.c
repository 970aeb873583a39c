/* options.c - operations on the option table: defaults, text to value and back, and the fingerprint
 * of the options that change results. The rows are in option_table.c, the command line in
 * options_cli.c. */
#include "engine/options/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "compress/policy.h"
#include "engine/options/option_value.h"

static bool same_name(const char *row, const char *given)
{
    for (; *row && *given; row++, given++)
        if (*row != (*given == '_' ? '-' : *given)) return false;
    return *row == *given;
}

const cn_option *cn_option_find_in(const char *name, uint32_t sections)
{
    size_t n;
    const cn_option *o = cn_options(&n), *found = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!same_name(o[i].name, name)) continue;
        if (o[i].section & sections) return &o[i];
        if (!found) found = &o[i];
    }
    return found;
}

const cn_option *cn_option_find(const char *name) { return cn_option_find_in(name, 0); }

const cn_removed_option *cn_removed_option_find(const char *name)
{
    size_t n;
    const cn_removed_option *o = cn_removed_options(&n);
    for (size_t i = 0; i < n; i++)
        if (same_name(o[i].name, name)) return &o[i];
    return NULL;
}

cn_status cn_removed_option_check(const cn_removed_option *o, const char *value)
{
    if (strcmp(value, o->fallback ? o->fallback : "") == 0) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--%s %s: the option no longer exists%s%s: %s", o->name, value,
                   o->fallback ? ", and cinch does as with " : "", o->fallback ? o->fallback : "",
                   o->instead ? o->instead : "leave it out");
}

static size_t option_row_of(const cn_option *o)
{
    size_t n;
    return (size_t)(o - cn_options(&n));
}

const void *cn_option_field(const cn_option *o, const cn_config *c)
{
    return (const char *)c + o->offset;
}

/* ---- bounds ---- */

#define U64_MAX_ROUNDED 18446744073709551616.0
enum { BOUND_BYTES = 32 };

static bool option_is_power_of_two(double v)
{
    uint64_t u = (uint64_t)v;
    return u && (u & (u - 1)) == 0;
}

/* Writes a number in full, and bytes with the largest unit that divides them. 2^64 - 1 is the
 * largest value of a field; a double rounds it. */
static void put_bound(const cn_option *o, double v, char *text, size_t size)
{
    static const char units[] = "\0KMGT";
    size_t unit = 0;
    if (v >= U64_MAX_ROUNDED) {
        snprintf(text, size, "%llu", (unsigned long long)UINT64_MAX);
        return;
    }
    for (; o->type == CN_OPTION_BYTES && unit < 4 && v >= 1024 && fmod(v, 1024) == 0; unit++)
        v /= 1024;
    snprintf(text, size, "%.15g%.*s", v, unit > 0, &units[unit]);
}

void cn_option_bounds(const cn_option *o, char *text, size_t size)
{
    const char *zero = o->flags & CN_OPTION_ZERO_OK ? ", or 0" : "";
    char min[BOUND_BYTES], max[BOUND_BYTES];
    put_bound(o, o->min, min, sizeof min);
    put_bound(o, o->max, max, sizeof max);
    if (o->type == CN_OPTION_BOOL) {
        snprintf(text, size, "true or false");
    } else if (o->type == CN_OPTION_TIME) {
        snprintf(text, size, "a time of day, HH:MM");
    } else if (o->type == CN_OPTION_STRING) {
        snprintf(text, size, "a non-empty string");
    } else if (o->type == CN_OPTION_ENUM) {
        snprintf(text, size, "one of %s", o->values);
    } else if (o->type == CN_OPTION_SET) {
        snprintf(text, size, "a comma-separated list of %s", o->values);
    } else if (o->type == CN_OPTION_BYTES) {
        snprintf(text, size,
                 "bytes, with K, M, G, T for powers of 1024, k, m, g, t for powers of 1000, from "
                 "%s to %s%s",
                 min, max, zero);
    } else {
        const char *kind = o->flags & CN_OPTION_PERCENT ? "a percentage"
                           : o->type == CN_OPTION_F32   ? "a number"
                           : o->flags & CN_OPTION_POW2 ? "a power of two"
                                                       : "a whole number";
        const char *from = o->flags & CN_OPTION_ABOVE_MIN ? "above" : "from";
        const char *to = o->flags & CN_OPTION_ABOVE_MIN ? "up to" : "to";
        snprintf(text, size, "%s %s %s %s %s%s", kind, from, min, to, max, zero);
    }
}

cn_status cn_option_refuse(const cn_option *o, const char *label, const char *value)
{
    char bounds[256];
    cn_option_bounds(o, bounds, sizeof bounds);
    return cn_fail(CN_ERR_ARG, "%s %s: expected %s", label, value, bounds);
}

static bool within_bounds(const cn_option *o, double v)
{
    if (v == 0 && o->flags & CN_OPTION_ZERO_OK) return true;
    if (!(v >= o->min && v <= o->max)) return false;
    /* 1e-60 is above 0, but is stored as the float 0. */
    const double stored = o->type == CN_OPTION_F32 ? (double)(float)v : v;
    if (stored <= o->min && o->flags & CN_OPTION_ABOVE_MIN) return false;
    return !(o->flags & CN_OPTION_POW2) || option_is_power_of_two(v);
}

bool cn_option_store_number(const cn_option *o, void *field, double v)
{
    if (!within_bounds(o, v)) return false;
    if (o->type != CN_OPTION_F32 && v != floor(v)) return false;
    if (o->type == CN_OPTION_U32)
        *(uint32_t *)field = (uint32_t)v;
    else if (o->type == CN_OPTION_I32)
        *(int32_t *)field = (int32_t)v;
    else if (o->type == CN_OPTION_F32)
        *(float *)field = (float)v;
    else
        return false;
    return true;
}

/* ---- text to value ---- */

/* Accepts only decimal digits, with a sign or a fraction if the type has one: no hex, nan, blanks.
 */
static bool parse_option_number(const char *text, bool fraction, double *out)
{
    if (text[strspn(text, fraction ? "+-.0123456789eE" : "-0123456789")] || !*text) return false;
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    return !*end && isfinite(*out);
}

/* Unsigned, with an optional suffix: K, M, G, T are powers of 1024, lower case powers of 1000. */
static bool parse_u64(const char *text, bool unit, uint64_t *out)
{
    size_t digits = strspn(text, "0123456789");
    if (!digits) return false;
    errno = 0;
    unsigned long long v = strtoull(text, NULL, 10);
    if (errno == ERANGE) return false;
    const char *suffix = text + digits;
    if (*suffix) {
        static const char units[] = "KMGTkmgt";
        const char *u = strchr(units, *suffix);
        if (!unit || !u || suffix[1]) return false;
        size_t rank = (size_t)(u - units);
        for (size_t i = 0; i <= rank % 4; i++)
            if (__builtin_mul_overflow(v, rank < 4 ? 1024ULL : 1000ULL, &v)) return false;
    }
    *out = v;
    return true;
}

static bool parse_time(const char *text, int32_t *out)
{
    static const char shape[] = "00:00";
    for (size_t i = 0; i < sizeof shape; i++) {
        bool digit = text[i] >= '0' && text[i] <= '9';
        if (shape[i] == '0' ? !digit : text[i] != shape[i]) return false;
    }
    int32_t hours = (text[0] - '0') * 10 + text[1] - '0';
    int32_t minutes = (text[3] - '0') * 10 + text[4] - '0';
    *out = hours * 60 + minutes;
    return hours < 24 && minutes < 60;
}

int cn_option_name_index(const cn_option *o, const char *text, size_t len)
{
    int index = 0;
    for (const char *p = o->values; *p; index++) {
        size_t n = strcspn(p, "|");
        if (n == len && memcmp(p, text, n) == 0) return index;
        p += n + (p[n] == '|');
    }
    return -1;
}

static bool parse_option_set(const cn_option *o, const char *text, uint32_t *out)
{
    uint32_t set = 0;
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        int index = cn_option_name_index(o, p, n);
        if (index < 0) return false;
        set |= 1U << index;
        p += n;
        if (!*p) break;
    }
    *out = set;
    return true;
}

static cn_status set_string(char **field, const char *text)
{
    char *copy = cn_strdup(text);
    if (!copy) return cn_fail(CN_ERR_MEMORY, "out of memory for an option's text");
    cn_free(*field);
    *field = copy;
    return CN_OK;
}

/* Adds a line to the values so far. */
static cn_status add_option_string(char **field, const char *text)
{
    cn_buf all = {0};
    CN_TRY(cn_buf_addf(&all, "%s\n%s", *field, text));
    cn_free(*field);
    *field = all.data;
    return CN_OK;
}

enum { NUMBER_MAX_BYTES = 64, LABEL_BYTES = 64 };

static bool set_number(const cn_option *o, void *field, const char *text)
{
    if (o->type == CN_OPTION_U64 || o->type == CN_OPTION_BYTES) {
        uint64_t v;
        if (!parse_u64(text, o->type == CN_OPTION_BYTES, &v)) return false;
        if (!within_bounds(o, (double)v)) return false;
        *(uint64_t *)field = v;
        return true;
    }
    double v;
    char number[NUMBER_MAX_BYTES];
    size_t len = strlen(text);
    const bool percent =
        o->flags & (CN_OPTION_PERCENT | CN_OPTION_SHARE) && len && text[len - 1] == '%';
    len -= percent;
    if (len >= sizeof number) return false;
    memcpy(number, text, len);
    number[len] = '\0';
    if (!parse_option_number(number, o->type == CN_OPTION_F32, &v)) return false;
    if (percent && o->flags & CN_OPTION_SHARE) {
        if (v >= 100) return false; /* 1 is a token */
        v /= 100;
    }
    return cn_option_store_number(o, field, v);
}

/* The row that takes a list of the same names, or NULL. */
static const cn_option *option_list_of(const cn_option *single)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n && single->type == CN_OPTION_ENUM; i++)
        if (o[i].type == CN_OPTION_SET && strcmp(o[i].values, single->values) == 0) return &o[i];
    return NULL;
}

/* CN_ERR_ARG: the value is out of bounds, or a list where one value is expected. */
static cn_status refuse_text(const cn_option *o, const char *text)
{
    char bounds[256], label[LABEL_BYTES];
    snprintf(label, sizeof label, "--%s", o->name);
    if (o->type == CN_OPTION_SET || !strchr(text, ','))
        return cn_option_refuse(o, label, *text ? text : "''");
    cn_option_bounds(o, bounds, sizeof bounds);
    const cn_option *list = option_list_of(o);
    return cn_fail(CN_ERR_ARG, "--%s %s: expected one value, not a list: %s%s%s%s", o->name, text,
                   bounds, list ? "; --" : "", list ? list->name : "",
                   list ? " takes a list" : "");
}

cn_status cn_option_set_text(cn_config *c, const cn_option *o, const char *text)
{
    void *field = (char *)c + o->offset;
    bool ok = false;
    if (o->type == CN_OPTION_STRING) {
        const bool adds = o->flags & CN_OPTION_REPEATED && *(char **)field;
        if (*text) CN_TRY(adds ? add_option_string(field, text) : set_string(field, text));
        ok = *text != '\0';
    } else if (o->type == CN_OPTION_BOOL) {
        ok = strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
        if (ok) *(bool *)field = *text == 't';
    } else if (o->type == CN_OPTION_ENUM) {
        int index = cn_option_name_index(o, text, strlen(text));
        ok = index >= 0;
        if (ok) *(int *)field = index;
    } else if (o->type == CN_OPTION_SET) {
        ok = parse_option_set(o, text, field);
    } else if (o->type == CN_OPTION_TIME) {
        int32_t minutes;
        ok = parse_time(text, &minutes);
        if (ok) *(int32_t *)field = minutes;
    } else {
        ok = set_number(o, field, text);
    }
    if (!ok) return refuse_text(o, text);
    c->given[option_row_of(o)] = true;
    if (field == &c->kv.rule || field == &c->kv.budget_tokens)
        cn_config_follow_rule(c, NULL, &c->kv);
    return CN_OK;
}

/* ---- the rule's defaults ---- */

static size_t number_bytes(const cn_option *o)
{
    return o->type == CN_OPTION_BOOL ? sizeof(bool) : sizeof(uint32_t);
}

bool cn_option_follows_rule(const cn_option *o)
{
    const char *key = cn_option_kv_key(o);
    return key && cn_option_is_word(CN_RULE_DEFAULTS, key);
}

void cn_config_follow_rule(const cn_config *c, const json_t *object, cn_kv_params *io)
{
    cn_kv_params fresh = cn_rule_with_defaults(*io);
    size_t n;
    const cn_option *o = cn_options(&n);
    if (c && object) /* the engine has a ring for as many queries */
        fresh.window_tokens = cn_min_u32(fresh.window_tokens, cn_policy_most_queries(&c->kv));
    for (size_t i = 0; i < n; i++) {
        if (!cn_option_follows_rule(&o[i]) || (c && c->given[i])) continue;
        const json_t *sent = json_object_get(object, cn_option_kv_key(&o[i]));
        if (sent && !json_is_null(sent)) continue;
        const size_t at = o[i].offset - offsetof(struct cn_config, kv);
        memcpy((char *)io + at, (const char *)&fresh + at, number_bytes(&o[i]));
    }
}

/* ---- the configuration ---- */

cn_config *cn_config_create(void)
{
    cn_config *c = cn_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->sampling.logprobs = -1;
    c->until_minutes = -1;
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (!o[i].fallback) continue;
        cn_status status = cn_option_set_text(c, &o[i], o[i].fallback);
        CN_ASSERT(status != CN_ERR_ARG);
        if (status != CN_OK) {
            cn_config_free(c);
            return NULL;
        }
        c->given[i] = false;
    }
    return c;
}

void cn_config_free(cn_config *c)
{
    if (!c) return;
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++)
        if (o[i].type == CN_OPTION_STRING) cn_free(*(char **)((char *)c + o[i].offset));
    cn_free(c);
}

cn_status cn_config_copy(cn_config **out, const cn_config *c)
{
    cn_config *copy = cn_calloc(1, sizeof *copy);
    if (!copy) return cn_fail(CN_ERR_MEMORY, "out of memory for a configuration");
    *copy = *c;
    size_t n;
    bool ok = true;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (o[i].type != CN_OPTION_STRING) continue;
        char **field = (char **)((char *)copy + o[i].offset);
        if (*field) *field = cn_strdup(*field);
        const char *source = *(char *const *)cn_option_field(&o[i], c);
        ok = ok && !*field == !source;
    }
    if (!ok) {
        cn_config_free(copy);
        return cn_fail(CN_ERR_MEMORY, "out of memory for a configuration");
    }
    *out = copy;
    return CN_OK;
}

cn_status cn_config_set(cn_config *c, const char *name, const char *value)
{
    const cn_option *o = cn_option_find(name);
    const cn_removed_option *gone = o ? NULL : cn_removed_option_find(name);
    if (gone) return cn_removed_option_check(gone, value);
    if (!o) return cn_fail(CN_ERR_ARG, "unknown option %s: see docs/CONFIG.md", name);
    if (!(o->section & (uint32_t)CN_SECTIONS_LIBRARY))
        return cn_fail(CN_ERR_ARG, "%s is an option of the %s section, not of an engine", name,
                       cn_section_name(o->section));
    return cn_option_set_text(c, o, value);
}

bool cn_config_is_given(const cn_config *c, const void *field)
{
    size_t n, i = 0;
    const cn_option *o = cn_options(&n);
    while (i < n && cn_option_field(&o[i], c) != field) i++;
    CN_ASSERT(i < n);
    return c->given[i];
}

void cn_config_overlay_sampling(const cn_config *c, cn_sampling *io)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (o[i].section != CN_SECTION_SAMPLING || !c->given[i]) continue;
        size_t offset = o[i].offset - offsetof(struct cn_config, sampling);
        memcpy((char *)io + offset, cn_option_field(&o[i], c), number_bytes(&o[i]));
    }
}

/* ---- value to text ---- */

/* Writes the fewest digits (at least 6) that read back as the same float. */
static cn_status format_float(float v, cn_buf *out)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) break;
    }
    return cn_buf_addf(out, "%s", text);
}

static cn_status format_names(const cn_option *o, uint32_t set, cn_buf *out)
{
    const char *p = o->values, *comma = "";
    for (uint32_t bit = 0; *p; bit++) {
        size_t n = strcspn(p, "|");
        if (set >> bit & 1) {
            CN_TRY(cn_buf_addf(out, "%s%.*s", comma, (int)n, p));
            comma = ",";
        }
        p += n + (p[n] == '|');
    }
    return CN_OK;
}

cn_status cn_option_format(const cn_option *o, const cn_config *c, cn_buf *out)
{
    const void *field = cn_option_field(o, c);
    switch (o->type) {
    case CN_OPTION_BOOL: return cn_buf_addf(out, "%s", *(const bool *)field ? "true" : "false");
    case CN_OPTION_U32:
        if (!o->fallback && !*(const uint32_t *)field) return CN_OK;
        return cn_buf_addf(out, "%u", *(const uint32_t *)field);
    case CN_OPTION_I32: return cn_buf_addf(out, "%d", *(const int32_t *)field);
    case CN_OPTION_U64:
    case CN_OPTION_BYTES:
        return cn_buf_addf(out, "%llu", (unsigned long long)*(const uint64_t *)field);
    case CN_OPTION_F32: return format_float(*(const float *)field, out);
    case CN_OPTION_ENUM: return format_names(o, 1U << *(const int *)field, out);
    case CN_OPTION_SET: return format_names(o, *(const uint32_t *)field, out);
    case CN_OPTION_TIME: {
        int32_t minutes = *(const int32_t *)field;
        return minutes < 0 ? CN_OK : cn_buf_addf(out, "%02d:%02d", minutes / 60, minutes % 60);
    }
    case CN_OPTION_STRING: {
        const char *text = *(char *const *)field;
        return text ? cn_buf_addf(out, "%s", text) : CN_OK;
    }
    }
    return CN_OK;
}

cn_status cn_config_result_text(const cn_config *c, cn_buf *out)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (!(o[i].flags & CN_OPTION_RESULT)) continue;
        CN_TRY(cn_buf_addf(out, "%s=", o[i].name));
        CN_TRY(cn_option_format(&o[i], c, out));
        CN_TRY(cn_buf_add(out, "\n", 1));
    }
    return CN_OK;
}

const char *cn_environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* Appends a folder of the user's cache. */
static cn_status cache_folder(cn_buf *out, const char *name)
{
    const char *cache = cn_environment("XDG_CACHE_HOME"), *home = cn_environment("HOME");
    if (cache) return cn_buf_addf(out, "%s/%s", cache, name);
    if (home) return cn_buf_addf(out, "%s/.cache/%s", home, name);
    return CN_OK;
}

cn_status cn_cache_dir(cn_buf *out) { return cache_folder(out, "cinch"); }

cn_status cn_hub_cache_dir(cn_buf *out)
{
    const char *hub = cn_environment("HF_HUB_CACHE"), *home = cn_environment("HF_HOME");
    if (hub) return cn_buf_addf(out, "%s", hub);
    if (home) return cn_buf_addf(out, "%s/hub", home);
    return cache_folder(out, "huggingface/hub");
}

bool cn_config_cache_is_cpu(const cn_config *c)
{
    const char *cache = c->cache_device;
    if (!cache) return false;
    return strcmp(cache, "cpu") == 0 ||
           (strcmp(cache, "auto") == 0 && strcmp(c->device, "cpu") == 0);
}
