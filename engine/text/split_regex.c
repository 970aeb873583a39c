/* split_regex.c - see split_regex.h.
 *
 * The translation copies the expression and replaces what differs. Every class is written as a set
 * of code points and Unicode categories. What is not known here is refused, because PCRE2 may read
 * it differently. */
#include "engine/text/split_regex.h"

#include <stdlib.h>

#include "engine/base/json.h"
#include "engine/base/utf8.h"

/* ---- sets of characters, as members of a class of PCRE2 ---- */

/* PCRE2 10.42 has the data of Unicode 14; the tokenizers package has Unicode 16. The additions: */
static const struct {
    const char *category, *members;
} young[] = {
    {"Cf", "\\x{13439}-\\x{1343F}"},
    {"Ll", "\\x{1C8A}\\x{A7CD}\\x{A7DB}\\x{10D70}-\\x{10D85}\\x{1DF25}-\\x{1DF2A}"},
    {"Lm", "\\x{10D4E}\\x{10D6F}\\x{16D40}-\\x{16D42}\\x{16D6B}-\\x{16D6C}\\x{1E030}-\\x{1E06D}"
           "\\x{1E4EB}"},
    {"Lo", "\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D4D}\\x{10D4F}\\x{10EC2}-\\x{10EC4}"
           "\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}"
           "\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}"
           "\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}"
           "\\x{16100}-\\x{1611D}\\x{16D43}-\\x{16D6A}\\x{18CFF}\\x{1B132}\\x{1B155}"
           "\\x{1E4D0}-\\x{1E4EA}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}"
           "\\x{31350}-\\x{323AF}"},
    {"Lu", "\\x{1C89}\\x{A7CB}-\\x{A7CC}\\x{A7DA}\\x{A7DC}\\x{10D50}-\\x{10D65}"},
    {"Mc", "\\x{CF3}\\x{113B8}-\\x{113BA}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}"
           "\\x{113CC}-\\x{113CD}\\x{113CF}\\x{1171E}\\x{11F03}\\x{11F34}-\\x{11F35}"
           "\\x{11F3E}-\\x{11F3F}\\x{11F41}\\x{1612A}-\\x{1612C}"},
    {"Mn",
     "\\x{897}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}\\x{113BB}-\\x{113C0}"
     "\\x{113CE}\\x{113D0}\\x{113D2}\\x{113E1}-\\x{113E2}\\x{11F00}-\\x{11F01}"
     "\\x{11F36}-\\x{11F3A}\\x{11F40}\\x{11F42}\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}"
     "\\x{1611E}-\\x{16129}\\x{1612D}-\\x{1612F}\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}"
     "\\x{1E5EE}-\\x{1E5EF}"},
    {"Nd", "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
           "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1E4F0}-\\x{1E4F9}"
           "\\x{1E5F1}-\\x{1E5FA}"},
    {"No", "\\x{1D2C0}-\\x{1D2D3}"},
    {"Pd", "\\x{10D6E}"},
    {"Po", "\\x{1B4E}-\\x{1B4F}\\x{1B7F}\\x{113D4}-\\x{113D5}\\x{113D7}-\\x{113D8}"
           "\\x{11B00}-\\x{11B09}\\x{11BE1}\\x{11F43}-\\x{11F4F}\\x{16D6D}-\\x{16D6F}\\x{1E5FF}"},
    {"Sm", "\\x{10D8E}-\\x{10D8F}"},
    {"So", "\\x{2427}-\\x{2429}\\x{2FFC}-\\x{2FFF}\\x{31E4}-\\x{31E5}\\x{31EF}\\x{1CC00}-\\x{1CCEF}"
           "\\x{1CD00}-\\x{1CEB3}\\x{1F6DC}\\x{1F774}-\\x{1F776}\\x{1F77B}-\\x{1F77F}\\x{1F7D9}"
           "\\x{1F8B2}-\\x{1F8BB}\\x{1F8C0}-\\x{1F8C1}\\x{1FA75}-\\x{1FA77}\\x{1FA87}-\\x{1FA89}"
           "\\x{1FA8F}\\x{1FAAD}-\\x{1FAAF}\\x{1FABB}-\\x{1FABF}\\x{1FAC6}\\x{1FACE}-\\x{1FACF}"
           "\\x{1FADA}-\\x{1FADC}\\x{1FADF}\\x{1FAE8}-\\x{1FAE9}\\x{1FAF7}-\\x{1FAF8}"
           "\\x{1FBCB}-\\x{1FBEF}"},
    {"Han", "\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"},
    {"Hiragana", "\\x{1B132}"},
    {"Katakana", "\\x{1B155}"},
};

/* PCRE2's own \s matches U+180E and, without UCP, no other character above U+007F. In the
 * tokenizers package \s is the property White_Space. */
#define SPACE "\\t-\\r\\x{20}\\x{85}\\p{Z}"
#define NOT_SPACE                                                                  \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}"   \
    "\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}" \
    "\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"

/* Rust's characters that are numeric and younger than Unicode 16. */
#define YOUNGEST_NUMBERS "\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}"

/* The tokenizers package has old data for punctuation: it lacks the first and has the second. */
#define NOT_PUNCTUATION                                                                    \
    "\\x{61D}\\x{9FD}\\x{A76}\\x{C77}\\x{C84}\\x{1B4E}-\\x{1B4F}\\x{1B7D}-\\x{1B7F}"       \
    "\\x{2E43}-\\x{2E4F}\\x{2E52}-\\x{2E5D}\\x{10D6E}\\x{10EAD}\\x{10F55}-\\x{10F59}"      \
    "\\x{10F86}-\\x{10F89}\\x{113D4}-\\x{113D5}\\x{113D7}-\\x{113D8}\\x{1144B}-\\x{1144F}" \
    "\\x{1145A}-\\x{1145B}\\x{1145D}\\x{11660}-\\x{1166C}\\x{116B9}\\x{1183B}"             \
    "\\x{11944}-\\x{11946}\\x{119E2}\\x{11A3F}-\\x{11A46}\\x{11A9A}-\\x{11A9C}"            \
    "\\x{11A9E}-\\x{11AA2}\\x{11B00}-\\x{11B09}\\x{11BE1}\\x{11C41}-\\x{11C45}"            \
    "\\x{11C70}-\\x{11C71}\\x{11EF7}-\\x{11EF8}\\x{11F43}-\\x{11F4F}\\x{11FFF}"            \
    "\\x{12FF1}-\\x{12FF2}\\x{16D6D}-\\x{16D6F}\\x{16E97}-\\x{16E9A}\\x{16FE2}\\x{1E5FF}"  \
    "\\x{1E95E}-\\x{1E95F}"
#define OLD_PUNCTUATION "!-/:-@\\[-`{-~\\x{166D}\\x{111C9}"

static cn_status add_split_text(cn_buf *out, const char *text)
{
    return cn_buf_add(out, text, strlen(text));
}

static bool is_split_one_of(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0) return true;
    return false;
}

/* Adds the members of a category of Unicode ("L", "Lu") or a script ("Han"). */
static cn_status add_property(cn_buf *out, const char *name)
{
    static const char *const categories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                             "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                             "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                             "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", NULL};
    static const char *const scripts[] = {"Han", "Hiragana", "Katakana", "Hangul", "Thai", NULL};
    const bool is_script = is_split_one_of(scripts, name);
    if (!is_script && !is_split_one_of(categories, name))
        return cn_fail(CN_ERR_MODEL, "the property \\p{%s} is not supported",
                       cn_json_printable(name, (char[32]){0}, 32));
    CN_TRY(cn_buf_addf(out, is_script ? "\\p{sc:%s}" : "\\p{%s}", name));
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof young / sizeof *young; i++)
        if (is_script ? strcmp(young[i].category, name) == 0
                      : strlen(young[i].category) == 2 && strncmp(young[i].category, name, n) == 0)
            CN_TRY(add_split_text(out, young[i].members));
    return CN_OK;
}

cn_status cn_split_regex_add_numeric(cn_buf *out)
{
    CN_TRY(add_split_text(out, "["));
    CN_TRY(add_property(out, "N"));
    return add_split_text(out, YOUNGEST_NUMBERS "]");
}

cn_status cn_split_regex_add_punctuation(cn_buf *out)
{
    return add_split_text(out, "(?![" NOT_PUNCTUATION "])[\\p{P}" OLD_PUNCTUATION "]");
}

cn_status cn_split_regex_quote(cn_buf *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const bool plain =
            c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        CN_TRY(plain ? cn_buf_add(out, text + i, 1) : cn_buf_addf(out, "\\x{%X}", c));
    }
    return CN_OK;
}

/* ---- the translation ---- */

enum { MAX_DEPTH = 32 };

typedef struct reader {
    const char *at, *end;
    cn_buf *out;
    size_t item;             /* where the last item begins in out */
    size_t group[MAX_DEPTH]; /* where the open groups begin in out */
    uint32_t depth;
} reader;

static char peek(const reader *r, size_t ahead)
{
    return (size_t)(r->end - r->at) > ahead ? r->at[ahead] : '\0';
}

static cn_status not_supported(const reader *r, const char *what)
{
    char shown[32];
    return cn_fail(CN_ERR_MODEL, "%s is not supported, at '%s'", what,
                   cn_json_printable(r->at, shown, sizeof shown));
}

/* What an escape or a character of a class stands for: one character, or a set of members. */
typedef struct meaning {
    uint32_t character;
    bool is_set, is_negated; /* negated: the set's complement */
    char set[16];            /* "s", "d", or a property */
} meaning;

/* Reads "{NAME}" or "{^NAME}" of a property. */
static cn_status read_property(reader *r, meaning *m)
{
    const char *close = peek(r, 0) == '{' ? memchr(r->at, '}', (size_t)(r->end - r->at)) : NULL;
    if (!close) return not_supported(r, "a property without {}");
    const char *name = r->at + 1;
    if (*name == '^') {
        m->is_negated = !m->is_negated;
        name++;
    }
    const size_t n = (size_t)(close - name);
    if (n == 0 || n >= sizeof m->set) return not_supported(r, "this property");
    memcpy(m->set, name, n);
    m->set[n] = '\0';
    r->at = close + 1;
    return CN_OK;
}

/* Reads the digits of \xHH, \x{H...} or \uHHHH. */
static cn_status read_split_hex(reader *r, char kind, meaning *m)
{
    const bool braces = kind == 'x' && peek(r, 0) == '{';
    const size_t most = braces ? 6 : kind == 'x' ? 2 : 4;
    char digits[8] = {0}, *stop;
    if (braces) r->at++;
    size_t n = 0;
    while (n < most && r->at < r->end && strchr("0123456789abcdefABCDEF", *r->at))
        digits[n++] = *r->at++;
    m->character = (uint32_t)strtoul(digits, &stop, 16);
    const bool whole = braces ? n > 0 && peek(r, 0) == '}' : n == most;
    const bool is_byte = kind == 'x' && !braces && m->character >= 0x80;
    if (!whole || is_byte || m->character > 0x10FFFF)
        return not_supported(r, "an escape by number other than \\xHH below 80, \\x{H} or \\uHHHH");
    if (braces) r->at++;
    return CN_OK;
}

/* Reads an escape; r->at is after the backslash. */
static cn_status read_split_escape(reader *r, meaning *m)
{
    static const char names[] = "rntfvae", values[] = "\r\n\t\f\v\a\033";
    if (r->at == r->end) return not_supported(r, "a backslash at the end");
    const char c = *r->at, *named = strchr(names, c);
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    *m = (meaning){.character = (unsigned char)c};
    if (!strchr("sSdDpPxu", c) && !named && (is_letter || (c >= '0' && c <= '9') || (c & 0x80)))
        return not_supported(r, "this escape");
    r->at++;
    if (named) {
        m->character = (unsigned char)values[named - names];
    } else if (c == 'x' || c == 'u') {
        return read_split_hex(r, c, m);
    } else if (is_letter) {
        m->is_set = true;
        m->is_negated = c < 'a';
        if (c == 'p' || c == 'P') return read_property(r, m);
        snprintf(m->set, sizeof m->set, "%s", c == 's' || c == 'S' ? "s" : "Nd");
    }
    return CN_OK;
}

static cn_status read_character(reader *r, meaning *m)
{
    size_t n;
    *m = (meaning){0};
    cn_utf8_read(r->at, (size_t)(r->end - r->at), &m->character, &n);
    r->at += n;
    return CN_OK;
}

/* Adds a set as members of a class. */
static cn_status add_members(reader *r, const meaning *m)
{
    const bool is_space = strcmp(m->set, "s") == 0;
    if (is_space) return add_split_text(r->out, m->is_negated ? NOT_SPACE : SPACE);
    if (m->is_negated) return not_supported(r, "a negated property inside a class");
    return add_property(r->out, m->set);
}

static cn_status read_class_item(reader *r, meaning *m)
{
    if (*r->at != '\\') return read_character(r, m);
    r->at++;
    return read_split_escape(r, m);
}

static cn_status add_class_item(reader *r)
{
    meaning first, last;
    if (peek(r, 0) == '&' && peek(r, 1) == '&') return not_supported(r, "an intersection");
    CN_TRY(read_class_item(r, &first));
    if (first.is_set) return add_members(r, &first);
    CN_TRY(cn_buf_addf(r->out, "\\x{%X}", first.character));
    if (peek(r, 0) != '-' || peek(r, 1) == ']' || peek(r, 1) == '\0') return CN_OK;
    r->at++;
    if (peek(r, 0) == '[') return not_supported(r, "this range");
    CN_TRY(read_class_item(r, &last));
    if (last.is_set) return not_supported(r, "this range");
    return cn_buf_addf(r->out, "-\\x{%X}", last.character);
}

/* Reads a class; r->at is after '['. Nested classes are united with the outer one. */
static cn_status add_class(reader *r)
{
    uint32_t depth = 1;
    CN_TRY(add_split_text(r->out, "["));
    if (peek(r, 0) == '^') {
        CN_TRY(add_split_text(r->out, "^"));
        r->at++;
    }
    if (peek(r, 0) == ']') return not_supported(r, "']' at the start of a class");
    while (depth > 0) {
        if (r->at == r->end) return not_supported(r, "a class without an end");
        if (*r->at == ']') {
            depth--;
            r->at++;
        } else if (*r->at == '[') {
            if (peek(r, 1) == ':' || peek(r, 1) == '^' || peek(r, 1) == ']')
                return not_supported(r, "this nested class");
            depth++;
            r->at++;
        } else {
            CN_TRY(add_class_item(r));
        }
    }
    return add_split_text(r->out, "]");
}

static cn_status add_escape(reader *r)
{
    meaning m;
    r->at++;
    CN_TRY(read_split_escape(r, &m));
    if (!m.is_set) return cn_buf_addf(r->out, "\\x{%X}", m.character);
    CN_TRY(add_split_text(r->out, m.is_negated ? "[^" : "["));
    m.is_negated = false;
    CN_TRY(add_members(r, &m));
    return add_split_text(r->out, "]");
}

static cn_status open_group(reader *r)
{
    static const char *const kinds[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    const size_t left = (size_t)(r->end - r->at);
    const char *kind = peek(r, 1) == '?' ? NULL : "(";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !kind; i++)
        if (left >= strlen(kinds[i]) && memcmp(r->at, kinds[i], strlen(kinds[i])) == 0)
            kind = kinds[i];
    if (!kind) return not_supported(r, "this group");
    if (r->depth == MAX_DEPTH) return not_supported(r, "a group in 32 others");
    r->group[r->depth++] = r->out->len;
    r->at += strlen(kind);
    return add_split_text(r->out, strcmp(kind, "(") == 0 ? "(?:" : kind);
}

static cn_status close_group(reader *r)
{
    if (r->depth == 0) return not_supported(r, "')' without '('");
    r->item = r->group[--r->depth];
    r->at++;
    return add_split_text(r->out, ")");
}

/* Length of "{n}", "{n,}" or "{n,m}" at r->at; 0 for anything else. */
static size_t interval_len(const reader *r)
{
    size_t n = 1;
    while (peek(r, n) >= '0' && peek(r, n) <= '9') n++;
    if (n == 1) return 0;
    if (peek(r, n) == ',') n++;
    while (peek(r, n) >= '0' && peek(r, n) <= '9') n++;
    return peek(r, n) == '}' ? n + 1 : 0;
}

/* Puts `text` before the last item. */
static cn_status add_before_item(reader *r, const char *text)
{
    const size_t n = strlen(text), moved = r->out->len - r->item;
    CN_TRY(add_split_text(r->out, text));
    memmove(r->out->data + r->item + n, r->out->data + r->item, moved);
    memcpy(r->out->data + r->item, text, n);
    return CN_OK;
}

/* Reads an interval of n bytes and '+' after it: Oniguruma repeats the repetition. */
static cn_status add_repeated_interval(reader *r, size_t n)
{
    const unsigned long least = strtoul(r->at + 1, NULL, 10);
    const char *interval = r->at;
    r->at += n + 1;
    /* Any number of repetitions from `least` on. A group would need memory for each. */
    if (least <= 1) return cn_buf_addf(r->out, "{%lu,}", least);
    CN_TRY(cn_buf_add(r->out, interval, n));
    CN_TRY(add_before_item(r, "(?:"));
    return add_split_text(r->out, ")+");
}

/* Reads a quantifier of n bytes and its suffix. */
static cn_status add_quantifier(reader *r, size_t n)
{
    const bool is_interval = *r->at == '{';
    const char suffix = peek(r, n);
    if (suffix == '+' && is_interval) {
        CN_TRY(add_repeated_interval(r, n));
    } else {
        const size_t whole = n + ((suffix == '?' && !is_interval) || suffix == '+');
        CN_TRY(cn_buf_add(r->out, r->at, whole));
        r->at += whole;
    }
    if (peek(r, 0) != '\0' && strchr("*+?", peek(r, 0)))
        return not_supported(r, "a quantifier of a quantifier");
    return CN_OK;
}

static cn_status add_next(reader *r)
{
    meaning m;
    const char c = *r->at;
    const size_t n = c == '{' ? interval_len(r) : strchr("*+?", c) != NULL;
    if (n) return add_quantifier(r, n);
    if (c == '{') return not_supported(r, "this '{'");
    if (c == ')') return close_group(r);
    r->item = r->out->len;
    if (c == '\\') return add_escape(r);
    if (c == '(') return open_group(r);
    if (c == '[') {
        r->at++;
        return add_class(r);
    }
    if (strchr("|.^$", c)) return cn_buf_add(r->out, r->at++, 1);
    CN_TRY(read_character(r, &m));
    return cn_buf_addf(r->out, "\\x{%X}", m.character);
}

cn_status cn_split_regex_translate(cn_buf *out, const char *regex)
{
    reader r = {.at = regex, .end = regex + strlen(regex), .out = out};
    /* The same matches, but a long run of white space takes linear time. */
    if (strcmp(regex, "\\s+$") == 0) return add_split_text(out, "(?<![" SPACE "])[" SPACE "]+$");
    while (r.at < r.end) CN_TRY(add_next(&r));
    if (r.depth > 0) return not_supported(&r, "a group without an end");
    return CN_OK;
}
