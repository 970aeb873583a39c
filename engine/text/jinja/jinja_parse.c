/* jinja_parse.c - tokens to statements. See jinja_ast.h. */

#include "engine/text/jinja/jinja_ast.h"

/* ---- tokens ---- */

cn_status cn_jparse_advance(cn_jparser *p)
{
    p->now = p->ahead;
    return p->now.kind == CN_JT_END ? CN_OK : cn_jlex_next(&p->lex, &p->ahead);
}

cn_status cn_jparse_node(cn_jparser *p, cn_jnode_kind kind, cn_jnode **out)
{
    CN_TRY(cn_jalloc(p->lex.arena, 1, sizeof **out, out));
    (*out)->kind = kind;
    (*out)->line = p->now.line;
    return CN_OK;
}

cn_status cn_jparse_fail(const cn_jparser *p, const char *want)
{
    static const char *const kinds[] = {
        [CN_JT_END] = "the end of the template",
        [CN_JT_DATA] = "text",
        [CN_JT_PRINT_OPEN] = "{{",
        [CN_JT_PRINT_CLOSE] = "}}",
        [CN_JT_BLOCK_OPEN] = "{%",
        [CN_JT_BLOCK_CLOSE] = "%}",
        [CN_JT_NAME] = NULL,
        [CN_JT_CONST] = "a constant",
        [CN_JT_SIGN] = NULL,
    };
    const char *kind = kinds[p->now.kind];
    cn_jtext text = kind ? (cn_jtext){kind, strlen(kind)} : p->now.text;
    return cn_fail(CN_ERR_MODEL, "line %u: expected %s, got %.*s", p->now.line, want,
                   (int)(text.n < 40 ? text.n : 40), text.at);
}

bool cn_jparse_at_sign(const cn_jparser *p, const char *sign)
{
    return p->now.kind == CN_JT_SIGN && cn_jtext_is(p->now.text, sign);
}

bool cn_jparse_at_name(const cn_jparser *p, const char *name)
{
    return p->now.kind == CN_JT_NAME && cn_jtext_is(p->now.text, name);
}

cn_status cn_jparse_sign(cn_jparser *p, const char *sign)
{
    return cn_jparse_at_sign(p, sign) ? cn_jparse_advance(p) : cn_jparse_fail(p, sign);
}

cn_status cn_jparse_deeper(cn_jparser *p)
{
    if (++p->depth <= CN_JPARSE_DEPTH) return CN_OK;
    return cn_fail(CN_ERR_MODEL, "line %u: more than %d nested statements and expressions",
                   p->now.line, CN_JPARSE_DEPTH);
}

static cn_status expect_kind(cn_jparser *p, cn_jtoken_kind kind, const char *want)
{
    return p->now.kind == kind ? cn_jparse_advance(p) : cn_jparse_fail(p, want);
}

/* ---- bodies ---- */

static cn_status parse_statement(cn_jparser *p, cn_jnode **out);

/* True if the token ahead is one of the words, which are separated by spaces. */
static bool ends_with_word(const cn_jparser *p, const char *words)
{
    if (p->now.kind != CN_JT_BLOCK_OPEN || p->ahead.kind != CN_JT_NAME) return false;
    for (const char *w = words; *w; w += *w == ' ') {
        size_t n = strcspn(w, " ");
        if (cn_jtext_same(p->ahead.text, (cn_jtext){w, n})) return true;
        w += n;
    }
    return false;
}

/* Reads statements up to {% and one of the words, which stays the current token. */
static cn_status parse_until(cn_jparser *p, const char *words, cn_jnode **end)
{
    while (!ends_with_word(p, words)) {
        if (p->now.kind == CN_JT_END) {
            if (!*words) return CN_OK;
            return cn_fail(CN_ERR_MODEL, "line %u: expected %s, got the end of the template",
                           p->now.line, words);
        }
        if (p->now.kind == CN_JT_DATA) {
            CN_TRY(cn_jparse_node(p, CN_JN_TEXT, end));
            (*end)->value = cn_jstring(p->now.text);
            CN_TRY(cn_jparse_advance(p));
        } else if (p->now.kind == CN_JT_PRINT_OPEN) {
            CN_TRY(cn_jparse_advance(p));
            CN_TRY(cn_jparse_node(p, CN_JN_PRINT, end));
            CN_TRY(cn_jparse_exprs(p, true, &(*end)->a));
            CN_TRY(expect_kind(p, CN_JT_PRINT_CLOSE, "}}"));
        } else {
            CN_TRY(expect_kind(p, CN_JT_BLOCK_OPEN, "{%"));
            CN_TRY(parse_statement(p, end));
            CN_TRY(expect_kind(p, CN_JT_BLOCK_CLOSE, "%}"));
        }
        end = &(*end)->next;
    }
    return cn_jparse_advance(p);
}

static cn_status parse_template_body(cn_jparser *p, const char *words, cn_jnode **out)
{
    CN_TRY(cn_jparse_deeper(p));
    if (cn_jparse_at_sign(p, ":")) CN_TRY(cn_jparse_advance(p));
    CN_TRY(expect_kind(p, CN_JT_BLOCK_CLOSE, "%}"));
    CN_TRY(parse_until(p, words, out));
    p->depth--;
    return CN_OK;
}

/* ---- statements; the current token is the word after {% ---- */

static cn_status parse_if(cn_jparser *p, cn_jnode **out)
{
    for (uint32_t depth = p->depth;;) {
        CN_TRY(cn_jparse_node(p, CN_JN_IF, out));
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(cn_jparse_exprs(p, false, &(*out)->a));
        CN_TRY(parse_template_body(p, "elif else endif", &(*out)->b));
        if (cn_jparse_at_name(p, "elif")) {
            CN_TRY(cn_jparse_deeper(p)); /* an elif is an if inside the else */
            out = &(*out)->c;
            continue;
        }
        p->depth = depth;
        break;
    }
    if (cn_jparse_at_name(p, "else")) {
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(parse_template_body(p, "endif", &(*out)->c));
    }
    return cn_jparse_advance(p);
}

static cn_status parse_for(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(cn_jparse_node(p, CN_JN_FOR, out));
    cn_jnode *loop = *out;
    CN_TRY(cn_jparse_advance(p));
    CN_TRY(cn_jparse_target(p, &loop->a));
    CN_TRY(cn_jparse_at_name(p, "in") ? cn_jparse_advance(p) : cn_jparse_fail(p, "in"));
    CN_TRY(cn_jparse_exprs(p, false, &loop->b));
    if (cn_jparse_at_name(p, "if")) {
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(cn_jparse_expr(p, true, &loop->c));
    }
    loop->recursive = cn_jparse_at_name(p, "recursive");
    if (loop->recursive) CN_TRY(cn_jparse_advance(p));
    CN_TRY(parse_template_body(p, "else endfor", &loop->d));
    if (cn_jparse_at_name(p, "else")) {
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(parse_template_body(p, "endfor", &loop->e));
    }
    return cn_jparse_advance(p);
}

static cn_status parse_set(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(cn_jparse_node(p, CN_JN_SET, out));
    CN_TRY(cn_jparse_advance(p));
    CN_TRY(cn_jparse_target(p, &(*out)->a));
    if (cn_jparse_at_sign(p, "=")) {
        CN_TRY(cn_jparse_advance(p));
        return cn_jparse_exprs(p, true, &(*out)->b);
    }
    (*out)->kind = CN_JN_SET_BLOCK;
    if (cn_jparse_at_sign(p, "|")) {
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(cn_jparse_filters(p, NULL, &(*out)->b));
    }
    CN_TRY(parse_template_body(p, "endset", &(*out)->c));
    return cn_jparse_advance(p);
}

/* (a, b=1), the parameters of a macro or a call block. */
static cn_status parse_params(cn_jparser *p, cn_jnode **end)
{
    CN_TRY(cn_jparse_sign(p, "("));
    for (bool first = true; !cn_jparse_at_sign(p, ")"); first = false) {
        if (!first) CN_TRY(cn_jparse_sign(p, ","));
        if (p->now.kind != CN_JT_NAME) return cn_jparse_fail(p, "the name of a parameter");
        CN_TRY(cn_jparse_node(p, CN_JN_PARAM, end));
        (*end)->value = cn_jstring(p->now.text);
        CN_TRY(cn_jparse_advance(p));
        if (cn_jparse_at_sign(p, "=")) {
            CN_TRY(cn_jparse_advance(p));
            CN_TRY(cn_jparse_expr(p, true, &(*end)->a));
        }
        end = &(*end)->next;
    }
    return cn_jparse_advance(p);
}

static cn_status parse_macro(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(cn_jparse_node(p, CN_JN_MACRO, out));
    CN_TRY(cn_jparse_advance(p));
    if (p->now.kind != CN_JT_NAME) return cn_jparse_fail(p, "the name of a macro");
    (*out)->value = cn_jstring(p->now.text);
    CN_TRY(cn_jparse_advance(p));
    CN_TRY(parse_params(p, &(*out)->a));
    CN_TRY(parse_template_body(p, "endmacro", &(*out)->b));
    return cn_jparse_advance(p);
}

static cn_status parse_call_block(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(cn_jparse_node(p, CN_JN_CALL_BLOCK, out));
    CN_TRY(cn_jparse_advance(p));
    if (cn_jparse_at_sign(p, "(")) CN_TRY(parse_params(p, &(*out)->b));
    CN_TRY(cn_jparse_expr(p, true, &(*out)->a));
    if ((*out)->a->kind != CN_JN_CALL) return cn_jparse_fail(p, "a call after 'call'");
    cn_jnode *arg, **end = &(*out)->a->b;
    while (*end) end = &(*end)->next;
    CN_TRY(cn_jparse_node(p, CN_JN_ARG, &arg));
    CN_TRY(cn_jparse_node(p, CN_JN_NAME, &arg->a));
    arg->value = arg->a->value = cn_jstring(CN_JTEXT("caller"));
    *end = arg;
    CN_TRY(parse_template_body(p, "endcall", &(*out)->c));
    return cn_jparse_advance(p);
}

static cn_status parse_filter_block(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(cn_jparse_node(p, CN_JN_FILTER_BLOCK, out));
    CN_TRY(cn_jparse_advance(p));
    CN_TRY(cn_jparse_filters(p, NULL, &(*out)->a));
    CN_TRY(parse_template_body(p, "endfilter", &(*out)->b));
    return cn_jparse_advance(p);
}

static cn_status parse_with(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(cn_jparse_node(p, CN_JN_WITH, out));
    cn_jnode **end = &(*out)->a;
    CN_TRY(cn_jparse_advance(p));
    while (p->now.kind == CN_JT_NAME) {
        CN_TRY(cn_jparse_node(p, CN_JN_PARAM, end));
        (*end)->value = cn_jstring(p->now.text);
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(cn_jparse_sign(p, "="));
        CN_TRY(cn_jparse_expr(p, true, &(*end)->a));
        end = &(*end)->next;
        if (!cn_jparse_at_sign(p, ",")) break;
        CN_TRY(cn_jparse_advance(p));
    }
    CN_TRY(parse_template_body(p, "endwith", &(*out)->b));
    return cn_jparse_advance(p);
}

/* {% generation %} marks an answer for training; here it is only a scope. */
static cn_status parse_generation(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(cn_jparse_node(p, CN_JN_SCOPE, out));
    CN_TRY(cn_jparse_advance(p));
    CN_TRY(parse_template_body(p, "endgeneration", &(*out)->a));
    return cn_jparse_advance(p);
}

static cn_status parse_statement(cn_jparser *p, cn_jnode **out)
{
    static const struct {
        const char *word;
        cn_status (*parse)(cn_jparser *, cn_jnode **);
    } statements[] = {
        {"if", parse_if},           {"for", parse_for},
        {"set", parse_set},         {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"generation", parse_generation},
    };
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (cn_jparse_at_name(p, statements[i].word)) return statements[i].parse(p, out);
    const bool breaks = cn_jparse_at_name(p, "break");
    if (breaks || cn_jparse_at_name(p, "continue")) {
        CN_TRY(cn_jparse_node(p, breaks ? CN_JN_BREAK : CN_JN_CONTINUE, out));
        return cn_jparse_advance(p);
    }
    return cn_jparse_fail(p, "a statement: if, for, set, macro, call, filter, with, generation, "
                             "break or continue");
}

cn_status cn_jparse(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(cn_jlex_next(&p->lex, &p->ahead));
    CN_TRY(cn_jparse_advance(p));
    return parse_until(p, "", out);
}
