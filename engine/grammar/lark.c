/* lark.c - see lark.h. */
#include "engine/grammar/lark.h"

#include "engine/grammar/productions.h"

enum { SHOWN_NAME = 64, MOST_ATTRIBUTE_BYTES = 256 };

/* Terminals of Lark's module `common`, as expressions. */
static const struct {
    const char *name, *regex;
} common[] = {
#define NUMBER_REGEX "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"
#define FLOAT_REGEX "([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "([0-9]+\\.[0-9]*|\\.[0-9]+)"},
    {"FLOAT", FLOAT_REGEX},
    {"SIGNED_FLOAT", "[+-]?" FLOAT_REGEX},
    {"NUMBER", NUMBER_REGEX},
    {"SIGNED_NUMBER", "[+-]?" NUMBER_REGEX},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"UNESCAPED_STRING", "\"[^\"]*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"SQL_COMMENT", "--[^\\n]*"},
    {"C_COMMENT", "/\\*[^*]*\\*+([^/*][^*]*\\*+)*/"},
#undef NUMBER_REGEX
#undef FLOAT_REGEX
};

typedef struct parser {
    cn_productions p;
    bool in_rule;     /* not in a terminal: ignored text may follow its tokens */
    uint32_t ignored; /* the EITHER of what is ignored; 0: none */
} parser;

/* ---- scanning ---- */

/* Leaves out white space, line breaks and comments. */
static const char *skip_lark(const char *at, const char *end)
{
    while (at < end) {
        const bool comment = *at == '#' || (end - at >= 2 && at[0] == '/' && at[1] == '/');
        if (!comment && !(*at && strchr(" \t\r\n", *at))) break;
        at++;
        while (comment && at < end && *at != '\n') at++;
    }
    return at;
}

static void skip_blank(parser *l) { l->p.at = skip_lark(l->p.at, l->p.end); }
static bool is_lark_at(const parser *l, char c) { return l->p.at < l->p.end && *l->p.at == c; }

static bool try_take(parser *l, const char *word)
{
    const size_t n = strlen(word);
    if ((size_t)(l->p.end - l->p.at) < n || memcmp(l->p.at, word, n) != 0) return false;
    l->p.at += n;
    return true;
}

static size_t name_at(const char *at, const char *end) { return cn_productions_name(at, end, "_"); }

/* After the attributes of a rule, [capture], which directly follow its name. */
static const char *skip_attributes(const char *at, const char *end)
{
    const char *c = at;
    if (at == end || *at != '[') return at;
    while (c < end && c - at < MOST_ATTRIBUTE_BYTES && *c != ']' && *c != '\n') c++;
    return c < end && *c == ']' ? c + 1 : at;
}

/* Reads the start of a definition up to its colon. False, and nothing is read, if none is here. */
static bool try_definition(parser *l, const char **name, size_t *len)
{
    const char *at = l->p.at, *end = l->p.end;
    for (int i = 0; i < 2 && at < end && (*at == '?' || *at == '!'); i++) at++;
    *name = at;
    *len = name_at(at, end);
    at += *len;
    if (*len > 0 && end - at >= 2 && *at == '.' && at[1] != '.')
        at += 1 + cn_productions_name(at + 1, end, "-");
    at = skip_lark(skip_attributes(at, end), end);
    if (*len == 0 || at == end || *at != ':') return false;
    l->p.at = at + 1;
    return true;
}

static bool is_definition(const parser *l)
{
    parser copy = *l;
    const char *name;
    size_t len;
    return try_definition(&copy, &name, &len);
}

static bool is_terminal(const char *name, size_t len)
{
    while (len > 1 && *name == '_') name++, len--;
    return *name >= 'A' && *name <= 'Z';
}

/* ---- atoms ---- */

/* "a".."z", after the dots. */
static cn_status parse_range(parser *l, uint32_t low, uint32_t *out)
{
    cn_productions *p = &l->p;
    uint32_t high, bounds[2];
    const char *at = p->at;
    if (!is_lark_at(l, '"')) return cn_productions_wrong(p, at, "expected a literal after ..");
    CN_TRY(cn_productions_literal(p, &high));
    for (int i = 0; i < 2; i++) {
        const cn_item *text = &p->items[i ? high : low];
        const char *bytes = text->len ? p->bytes.data + text->value : "";
        cn_productions one = {.begin = bytes, .at = bytes, .end = bytes + text->len};
        if (text->len == 0 || cn_productions_char(&one, &bounds[i]) != CN_OK || one.at != one.end)
            return cn_productions_wrong(p, at, "expected a range of single characters");
    }
    if (bounds[1] < bounds[0])
        return cn_productions_wrong(p, at, "expected a range from low to high");
    cn_charset set = {.n = 0};
    cn_charset_try_add(&set, bounds[0], bounds[1]);
    return cn_item_set(p, &set, out);
}

static cn_status parse_literal(parser *l, uint32_t *out)
{
    CN_TRY(cn_productions_literal(&l->p, out));
    if (try_take(l, "..")) return parse_range(l, *out, out);
    l->p.items[*out].any_case = try_take(l, "i");
    return CN_OK;
}

/* ---- expressions ---- */

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* The letters of the range lo to hi of a class in the other case. */
static cn_status add_other_case(cn_buf *out, char lo, char hi)
{
    for (int upper = 0; upper < 2; upper++) {
        const char first = upper ? 'A' : 'a', last = upper ? 'Z' : 'z';
        const char a = lo > first ? lo : first, b = hi < last ? hi : last;
        if (a <= b) CN_TRY(cn_buf_addf(out, "%c-%c", a ^ 32, b ^ 32));
    }
    return CN_OK;
}

/* Bytes of the character, escape or range that begins at `at`. */
static size_t lark_unit_bytes(const char *at, size_t left, bool in_class)
{
    size_t n = 1;
    if (*at == '\\') n = left > 1 && at[1] == 'x' ? 4 : left > 1 && at[1] == 'u' ? 6 : 2;
    if (in_class && n == 1 && left > 2 && at[1] == '-' && at[2] != ']' && at[2] != '\\') n = 3;
    return n < left ? n : left;
}

/* Adds the expression with the meaning that its flags give it. */
static cn_status add_regex(cn_buf *out, const char *at, const char *end, bool any_case,
                           bool dot_all)
{
    bool in_class = false;
    while (at < end) {
        const size_t n = lark_unit_bytes(at, (size_t)(end - at), in_class);
        const bool escape = *at == '\\';
        if (!in_class && *at == '.' && dot_all)
            CN_TRY(cn_buf_add(out, "[^]", 3));
        else if (!in_class && any_case && is_letter(*at))
            CN_TRY(cn_buf_addf(out, "[%c%c]", *at, *at ^ 32));
        else
            CN_TRY(cn_buf_add(out, at, n));
        if (in_class && any_case && !escape) CN_TRY(add_other_case(out, *at, at[n - 1]));
        if (!escape && n == 1 && (*at == '[' || *at == ']')) in_class = *at == '[';
        at += n;
    }
    return CN_OK;
}

/* Leaves out the flags of an expression (?is:...) that has no other group. */
static void take_group_flags(const char **begin, const char **end, bool *any_case, bool *dot_all)
{
    const char *at = *begin + 2, *last = *end - 1;
    if (*end - *begin < 5 || memcmp(*begin, "(?", 2) != 0 || *last != ')') return;
    bool i = false, s = false;
    for (; at < last && (*at == 'i' || *at == 's'); at++) {
        i |= *at == 'i';
        s |= *at == 's';
    }
    if ((!i && !s) || *at != ':' || last[-1] == '\\') return;
    for (const char *c = ++at; c < last; c++)
        if (*c == '(' || *c == ')') return;
    *begin = at;
    *end = last;
    *any_case |= i;
    *dot_all |= s;
}

static cn_status parse_regex(parser *l, uint32_t *out)
{
    cn_productions *p = &l->p;
    const char *slash = p->at, *begin = ++p->at;
    const size_t from = p->bytes.len;
    bool any_case = false, dot_all = false;
    while (p->at < p->end && *p->at != '/' && *p->at != '\n')
        p->at += *p->at == '\\' && p->end - p->at > 1 ? 2 : 1;
    if (!is_lark_at(l, '/'))
        return cn_productions_wrong(p, slash, "the expression has no closing /");
    const char *end = p->at++;
    for (; p->at < p->end && *p->at && strchr("imslux", *p->at); p->at++) {
        any_case |= *p->at == 'i';
        dot_all |= *p->at == 's';
        if (!strchr("isu", *p->at))
            return cn_productions_wrong(p, p->at,
                                        "the flag %c is not supported: expected i, s or u", *p->at);
    }
    take_group_flags(&begin, &end, &any_case, &dot_all);
    CN_TRY(add_regex(&p->bytes, begin, end, any_case, dot_all));
    CN_TRY(cn_item_new(p,
                       (cn_item){.kind = CN_ITEM_REGEX,
                                 .value = (uint32_t)from,
                                 .len = (uint32_t)(p->bytes.len - from)},
                       out));
    p->items[*out].at = slash;
    return CN_OK;
}

/* ---- rules ---- */

static cn_status parse_lark_either(parser *l, uint32_t depth, uint32_t *out);

static cn_status parse_lark_group(parser *l, uint32_t depth, uint32_t *out)
{
    cn_productions *p = &l->p;
    const char *begin = p->at++;
    const char close = *begin == '(' ? ')' : ']';
    if (depth == CN_GRAMMAR_MAX_GROUPS)
        return cn_productions_wrong(p, begin, "expected at most %d groups inside one another",
                                    CN_GRAMMAR_MAX_GROUPS);
    CN_TRY(parse_lark_either(l, depth + 1, out));
    if (!is_lark_at(l, close))
        return cn_productions_wrong(p, begin, "the group has no closing %c", close);
    p->at++;
    return close == ']' ? cn_item_repeat(p, *out, 0, 1, out) : CN_OK;
}

static cn_status parse_lark_name(parser *l, uint32_t *out)
{
    cn_productions *p = &l->p;
    uint32_t production;
    const char *name = p->at;
    const size_t n = name_at(name, p->end);
    if (n == 0)
        return cn_productions_wrong(
            p, name, "expected a literal, /expression/, group or name of a rule or terminal");
    const char *after = name + n + 1;
    if (after < p->end && name[n] == '{' && !(*after >= '0' && *after <= '9') && *after != ',')
        return cn_productions_wrong(p, name, "templates are not supported: expected a plain rule");
    CN_TRY(cn_production_find(p, name, n, &production));
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_RULE, .value = production}, out));
    p->items[*out].token = l->in_rule && is_terminal(name, n);
    p->at += n;
    return CN_OK;
}

static cn_status parse_lark_atom(parser *l, uint32_t depth, uint32_t *out)
{
    switch (*l->p.at) {
    case '(':
    case '[': return parse_lark_group(l, depth, out);
    case '"': CN_TRY(parse_literal(l, out)); break;
    case '/': CN_TRY(parse_regex(l, out)); break;
    default: return parse_lark_name(l, out);
    }
    l->p.items[*out].token = l->in_rule;
    return CN_OK;
}

/* n or n..m, after the ~. */
static cn_status parse_lark_counts(parser *l, uint32_t *least, uint32_t *most)
{
    skip_blank(l);
    CN_TRY(cn_productions_number(&l->p, least));
    *most = *least;
    return try_take(l, "..") ? cn_productions_number(&l->p, most) : CN_OK;
}

/* {n}, {n,}, {,m} or {n,m} */
static cn_status parse_braces(parser *l, uint32_t *least, uint32_t *most)
{
    l->p.at++;
    *least = 0;
    if (!is_lark_at(l, ',')) CN_TRY(cn_productions_number(&l->p, least));
    *most = *least;
    if (try_take(l, ",")) {
        *most = UINT32_MAX;
        if (!is_lark_at(l, '}')) CN_TRY(cn_productions_number(&l->p, most));
    }
    return try_take(l, "}") ? CN_OK : cn_productions_wrong(&l->p, l->p.at, "expected }");
}

static cn_status parse_lark_repeat(parser *l, uint32_t depth, uint32_t *out)
{
    CN_TRY(parse_lark_atom(l, depth, out));
    for (uint32_t n = 0;; n++) {
        uint32_t least = 0, most = UINT32_MAX;
        skip_blank(l);
        switch (l->p.at < l->p.end && !is_definition(l) ? *l->p.at : '\0') {
        case '*': l->p.at++; break;
        case '+': l->p.at++, least = 1; break;
        case '?': l->p.at++, most = 1; break;
        case '{': CN_TRY(parse_braces(l, &least, &most)); break;
        case '~':
            l->p.at++;
            CN_TRY(parse_lark_counts(l, &least, &most));
            break;
        default: return CN_OK;
        }
        CN_TRY(cn_productions_check_marks(&l->p, n));
        CN_TRY(cn_item_repeat(&l->p, *out, least, most, out));
    }
}

static cn_status parse_lark_then(parser *l, uint32_t depth, uint32_t *out)
{
    CN_TRY(cn_item_new(&l->p, (cn_item){.kind = CN_ITEM_THEN}, out));
    for (skip_blank(l); l->p.at < l->p.end && !strchr("|)]%-", *l->p.at) && !is_definition(l);) {
        uint32_t next;
        CN_TRY(parse_lark_repeat(l, depth, &next));
        cn_item_add(&l->p, *out, next);
    }
    if (!try_take(l, "->")) return CN_OK;
    skip_blank(l);
    l->p.at += name_at(l->p.at, l->p.end);
    skip_blank(l);
    return CN_OK;
}

static cn_status parse_lark_either(parser *l, uint32_t depth, uint32_t *out)
{
    CN_TRY(cn_item_new(&l->p, (cn_item){.kind = CN_ITEM_EITHER}, out));
    for (bool more = true; more;) {
        uint32_t next;
        CN_TRY(parse_lark_then(l, depth, &next));
        cn_item_add(&l->p, *out, next);
        more = try_take(l, "|");
    }
    return CN_OK;
}

/* ---- directives ---- */

/* Makes the name, which is here, mean the terminal of `common`. */
static cn_status define_common(parser *l, const char *terminal, size_t len, const char *name,
                               size_t name_len)
{
    cn_productions *p = &l->p;
    uint32_t production, regex, then, either, i = 0;
    while (i < sizeof common / sizeof *common &&
           !(strlen(common[i].name) == len && memcmp(common[i].name, terminal, len) == 0))
        i++;
    if (i == sizeof common / sizeof *common)
        return cn_productions_wrong(p, terminal, "common has no terminal %.*s that is supported",
                                    len < SHOWN_NAME ? (int)len : SHOWN_NAME, terminal);
    const size_t from = p->bytes.len, n = strlen(common[i].regex);
    CN_TRY(cn_buf_add(&p->bytes, common[i].regex, n));
    CN_TRY(cn_item_new(
        p, (cn_item){.kind = CN_ITEM_REGEX, .value = (uint32_t)from, .len = (uint32_t)n}, &regex));
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_THEN}, &then));
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_EITHER}, &either));
    cn_item_add(p, then, regex);
    cn_item_add(p, either, then);
    CN_TRY(cn_production_find(p, name, name_len, &production));
    return cn_production_define(p, production, name, either);
}

/* A name here, with its length; refused if there is none. */
static cn_status take_lark_name(parser *l, const char **name, size_t *len)
{
    skip_blank(l);
    *name = l->p.at;
    *len = name_at(*name, l->p.end);
    l->p.at += *len;
    return *len > 0 ? CN_OK : cn_productions_wrong(&l->p, *name, "expected a name");
}

/* common.NAME, common.NAME -> NAME or common (NAME, NAME), after the %import. */
static cn_status parse_import(parser *l)
{
    const char *module, *name, *as;
    size_t len, as_len;
    skip_blank(l);
    module = l->p.at;
    if (!try_take(l, "common"))
        return cn_productions_wrong(&l->p, module, "%%import: only common is supported");
    if (try_take(l, ".")) {
        CN_TRY(take_lark_name(l, &name, &len));
        as = name, as_len = len;
        skip_blank(l);
        if (try_take(l, "->")) CN_TRY(take_lark_name(l, &as, &as_len));
        return define_common(l, name, len, as, as_len);
    }
    skip_blank(l);
    if (!try_take(l, "("))
        return cn_productions_wrong(&l->p, l->p.at, "%%import: expected common.NAME");
    do {
        CN_TRY(take_lark_name(l, &name, &len));
        CN_TRY(define_common(l, name, len, name, len));
        skip_blank(l);
    } while (try_take(l, ","));
    return try_take(l, ")") ? CN_OK : cn_productions_wrong(&l->p, l->p.at, "expected )");
}

static cn_status parse_ignore(parser *l)
{
    uint32_t either;
    l->in_rule = false;
    CN_TRY(parse_lark_either(l, 0, &either));
    if (!l->ignored) return l->ignored = either, CN_OK;
    cn_item_add(&l->p, l->ignored, either);
    return CN_OK;
}

/* The options of llguidance, which must be empty. */
static cn_status parse_llguidance(parser *l)
{
    skip_blank(l);
    const char *at = l->p.at;
    if (try_take(l, "{")) {
        skip_blank(l);
        if (try_take(l, "}")) return CN_OK;
    }
    return cn_productions_wrong(&l->p, at,
                                "%%llguidance: expected {}: its options are not "
                                "supported");
}

static cn_status parse_directive(parser *l)
{
    const char *at = l->p.at;
    if (try_take(l, "%import")) return parse_import(l);
    if (try_take(l, "%llguidance")) return parse_llguidance(l);
    if (try_take(l, "%ignore")) return parse_ignore(l);
    const size_t n = 1 + name_at(at + 1, l->p.end);
    return cn_productions_wrong(&l->p, at, "%.*s is not supported: expected %%import or %%ignore",
                                n < SHOWN_NAME ? (int)n : SHOWN_NAME, at);
}

/* Attributes that have no effect on the texts that match are accepted: capture, temperature. */
static cn_status check_attributes(const parser *l, const char *at)
{
    const char *end = skip_attributes(at, l->p.end);
    while (at < end && at + 1 < end) {
        const char *name = skip_lark(at + 1, end);
        const size_t n = name_at(name, end);
        const bool known = (n == 7 && memcmp(name, "capture", n) == 0) ||
                           (n == 11 && memcmp(name, "temperature", n) == 0);
        if (!known)
            return cn_productions_wrong(&l->p, name,
                                        "attribute %.*s is not supported: expected capture or "
                                        "temperature",
                                        n < SHOWN_NAME ? (int)n : SHOWN_NAME, name);
        bool quoted = false;
        for (at = name + n; at < end - 1 && (quoted || *at != ','); at++)
            quoted ^= *at == '"' && at[-1] != '\\';
    }
    return CN_OK;
}

static cn_status parse_definition(parser *l)
{
    cn_productions *p = &l->p;
    const char *at = p->at, *name;
    size_t len;
    uint32_t production, item;
    if (!try_definition(l, &name, &len))
        return cn_productions_wrong(p, at, "expected a rule, name: ..., %%import or %%ignore");
    CN_TRY(check_attributes(l, name + len));
    l->in_rule = !is_terminal(name, len);
    CN_TRY(cn_production_find(p, name, len, &production));
    CN_TRY(parse_lark_either(l, 0, &item));
    return cn_production_define(p, production, name, item);
}

/* Makes what is ignored a production of its own: any number of ignored texts. */
static cn_status define_ignored(parser *l)
{
    static const char name[] = "%ignore";
    cn_productions *p = &l->p;
    uint32_t repeat, then, either;
    if (!l->ignored) return CN_OK;
    CN_TRY(cn_item_repeat(p, l->ignored, 0, UINT32_MAX, &repeat));
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_THEN}, &then));
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_EITHER}, &either));
    cn_item_add(p, then, repeat);
    cn_item_add(p, either, then);
    CN_TRY(cn_production_find(p, name, sizeof name - 1, &p->ignore));
    return cn_production_define(p, p->ignore, p->begin, either);
}

static cn_status parse_lark_all(parser *l)
{
    for (skip_blank(l); l->p.at < l->p.end; skip_blank(l))
        CN_TRY(*l->p.at == '%' ? parse_directive(l) : parse_definition(l));
    return define_ignored(l);
}

cn_status cn_lark_emit(const char *text, size_t len, cn_net *net)
{
    parser l = {.ignored = 0};
    cn_status status = cn_productions_begin(&l.p, text, len, net);
    if (status == CN_OK) status = parse_lark_all(&l);
    if (status == CN_OK) status = cn_productions_emit(&l.p, "start");
    cn_productions_free(&l.p);
    return status;
}
