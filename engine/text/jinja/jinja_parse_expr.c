/* jinja_parse_expr.c - expressions, by precedence from the loosest to the tightest as in jinja2's
 * parser. See jinja_ast.h. */
#include "engine/text/jinja/jinja_ast.h"

static cn_status parse_unary(cn_jparser *p, bool with_filter, cn_jnode **out);

/* Makes *left the left operand of a new node, and reads the right one with `next`. */
static cn_status join_jinja(cn_jparser *p, cn_jnode_kind kind, cn_jop op,
                            cn_status (*next)(cn_jparser *, cn_jnode **), cn_jnode **left)
{
    cn_jnode *node;
    CN_TRY(cn_jparse_node(p, kind, &node));
    node->op = op;
    node->a = *left;
    *left = node;
    return next(p, &node->b);
}

/* Takes the operator of the table that is the current token. CN_JOP_NONE: there is none. */
typedef struct sign_op {
    const char *sign;
    cn_jop op;
} sign_op;
static cn_status take_op(cn_jparser *p, const sign_op *ops, cn_jop *out)
{
    *out = CN_JOP_NONE;
    for (; ops->sign; ops++) {
        if (!cn_jparse_at_sign(p, ops->sign)) continue;
        *out = ops->op;
        return cn_jparse_advance(p);
    }
    return CN_OK;
}

static cn_status parse_binary(cn_jparser *p, const sign_op *ops,
                              cn_status (*operand)(cn_jparser *, cn_jnode **), cn_jnode **out)
{
    CN_TRY(operand(p, out));
    for (;;) {
        cn_jop op;
        CN_TRY(take_op(p, ops, &op));
        if (op == CN_JOP_NONE) return CN_OK;
        CN_TRY(join_jinja(p, CN_JN_BINARY, op, operand, out));
    }
}

static cn_status parse_operand(cn_jparser *p, cn_jnode **out) { return parse_unary(p, true, out); }

static cn_status parse_power(cn_jparser *p, cn_jnode **out)
{
    static const sign_op ops[] = {{"**", CN_JOP_POW}, {0}};
    return parse_binary(p, ops, parse_operand, out);
}

static cn_status parse_product(cn_jparser *p, cn_jnode **out)
{
    static const sign_op ops[] = {
        {"*", CN_JOP_MUL}, {"/", CN_JOP_DIV}, {"//", CN_JOP_FLOORDIV}, {"%", CN_JOP_MOD}, {0}};
    return parse_binary(p, ops, parse_power, out);
}

static cn_status parse_concat(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(parse_product(p, out));
    if (!cn_jparse_at_sign(p, "~")) return CN_OK;
    cn_jnode *node;
    CN_TRY(cn_jparse_node(p, CN_JN_CONCAT, &node));
    node->a = *out;
    *out = node;
    for (cn_jnode *last = node->a; cn_jparse_at_sign(p, "~"); last = last->next) {
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(parse_product(p, &last->next));
    }
    return CN_OK;
}

static cn_status parse_sum(cn_jparser *p, cn_jnode **out)
{
    static const sign_op ops[] = {{"+", CN_JOP_ADD}, {"-", CN_JOP_SUB}, {0}};
    return parse_binary(p, ops, parse_concat, out);
}

static cn_status take_comparison(cn_jparser *p, cn_jop *out)
{
    static const sign_op ops[] = {{"==", CN_JOP_EQ},
                                  {"!=", CN_JOP_NE},
                                  {"<", CN_JOP_LT},
                                  {"<=", CN_JOP_LE},
                                  {">", CN_JOP_GT},
                                  {">=", CN_JOP_GE},
                                  {0}};
    CN_TRY(take_op(p, ops, out));
    if (*out != CN_JOP_NONE) return CN_OK;
    bool negated = cn_jparse_at_name(p, "not") && p->ahead.kind == CN_JT_NAME &&
                   cn_jtext_is(p->ahead.text, "in");
    if (!negated && !cn_jparse_at_name(p, "in")) return CN_OK;
    if (negated) CN_TRY(cn_jparse_advance(p));
    *out = negated ? CN_JOP_NOT_IN : CN_JOP_IN;
    return cn_jparse_advance(p);
}

static cn_status parse_comparison(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(parse_sum(p, out));
    for (cn_jnode *before = NULL;;) {
        cn_jop op;
        CN_TRY(take_comparison(p, &op));
        if (op == CN_JOP_NONE) return CN_OK;
        cn_jnode *left = before ? NULL : *out;
        CN_TRY(join_jinja(p, CN_JN_COMPARE, op, parse_sum, &left));
        if (before)
            before->c = left;
        else
            *out = left;
        before = left;
    }
}

static cn_status parse_not(cn_jparser *p, cn_jnode **out)
{
    if (!cn_jparse_at_name(p, "not")) return parse_comparison(p, out);
    CN_TRY(cn_jparse_deeper(p));
    CN_TRY(cn_jparse_node(p, CN_JN_NOT, out));
    CN_TRY(cn_jparse_advance(p));
    CN_TRY(parse_not(p, &(*out)->a));
    p->depth--;
    return CN_OK;
}

/* operand (word operand)*, grouped from the left. */
static cn_status parse_word_chain(cn_jparser *p, const char *word, cn_jnode_kind kind,
                                  cn_status (*operand)(cn_jparser *, cn_jnode **),
                                  cn_jnode **out)
{
    CN_TRY(operand(p, out));
    while (cn_jparse_at_name(p, word)) {
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(join_jinja(p, kind, CN_JOP_NONE, operand, out));
    }
    return CN_OK;
}

static cn_status parse_and(cn_jparser *p, cn_jnode **out)
{
    return parse_word_chain(p, "and", CN_JN_AND, parse_not, out);
}

static cn_status parse_or(cn_jparser *p, cn_jnode **out)
{
    return parse_word_chain(p, "or", CN_JN_OR, parse_and, out);
}

static cn_status parse_cond(cn_jparser *p, cn_jnode **out)
{
    while (cn_jparse_at_name(p, "if")) {
        cn_jnode *node;
        CN_TRY(cn_jparse_node(p, CN_JN_COND, &node));
        CN_TRY(cn_jparse_advance(p));
        node->b = *out;
        CN_TRY(parse_or(p, &node->a));
        *out = node;
        if (!cn_jparse_at_name(p, "else")) continue;
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(cn_jparse_expr(p, true, &node->c));
    }
    return CN_OK;
}

cn_status cn_jparse_expr(cn_jparser *p, bool with_cond, cn_jnode **out)
{
    CN_TRY(cn_jparse_deeper(p));
    CN_TRY(parse_or(p, out));
    if (with_cond) CN_TRY(parse_cond(p, out));
    p->depth--;
    return CN_OK;
}

/* ---- tuples, lists, dicts ---- */

static bool ends_tuple(const cn_jparser *p)
{
    return p->now.kind == CN_JT_PRINT_CLOSE || p->now.kind == CN_JT_BLOCK_CLOSE ||
           cn_jparse_at_sign(p, ")") || cn_jparse_at_name(p, "recursive");
}

/* Continues after the first expression: a comma makes a tuple. */
static cn_status parse_tuple_rest(cn_jparser *p, bool with_cond, cn_jnode **out)
{
    if (!cn_jparse_at_sign(p, ",")) return CN_OK;
    cn_jnode *tuple;
    CN_TRY(cn_jparse_node(p, CN_JN_TUPLE, &tuple));
    tuple->a = *out;
    *out = tuple;
    for (cn_jnode *last = tuple->a; cn_jparse_at_sign(p, ","); last = last->next) {
        CN_TRY(cn_jparse_advance(p));
        if (ends_tuple(p)) break;
        CN_TRY(cn_jparse_expr(p, with_cond, &last->next));
    }
    return CN_OK;
}

cn_status cn_jparse_exprs(cn_jparser *p, bool with_cond, cn_jnode **out)
{
    CN_TRY(cn_jparse_expr(p, with_cond, out));
    return parse_tuple_rest(p, with_cond, out);
}

static cn_status parse_jinja_group(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(cn_jparse_advance(p));
    if (cn_jparse_at_sign(p, ")"))
        CN_TRY(cn_jparse_node(p, CN_JN_TUPLE, out));
    else
        CN_TRY(cn_jparse_exprs(p, true, out));
    /* An expression in brackets may already be an item of no list: next stays free. */
    return cn_jparse_sign(p, ")");
}

/* [a, b] and {a: b, c: d}, after the opening. */
static cn_status parse_items(cn_jparser *p, const char *close, bool pairs, cn_jnode **end)
{
    for (bool first = true; !cn_jparse_at_sign(p, close); first = false) {
        if (!first) CN_TRY(cn_jparse_sign(p, ","));
        if (cn_jparse_at_sign(p, close)) break;
        CN_TRY(cn_jparse_expr(p, true, end));
        end = &(*end)->next;
        if (!pairs) continue;
        CN_TRY(cn_jparse_sign(p, ":"));
        CN_TRY(cn_jparse_expr(p, true, end));
        end = &(*end)->next;
    }
    return cn_jparse_advance(p);
}

static cn_status parse_display(cn_jparser *p, cn_jnode **out)
{
    bool pairs = cn_jparse_at_sign(p, "{");
    CN_TRY(cn_jparse_node(p, pairs ? CN_JN_DICT : CN_JN_LIST, out));
    CN_TRY(cn_jparse_advance(p));
    return parse_items(p, pairs ? "}" : "]", pairs, &(*out)->a);
}

/* ---- names and literals ---- */

/* Adjacent strings are one. */
static cn_status parse_const(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(cn_jparse_node(p, CN_JN_CONST, out));
    cn_jvalue *v = &(*out)->value;
    *v = p->now.value;
    CN_TRY(cn_jparse_advance(p));
    while (v->kind == CN_J_STRING && p->now.kind == CN_JT_CONST &&
           p->now.value.kind == CN_J_STRING) {
        char *text;
        cn_jtext more = p->now.value.text;
        CN_TRY(cn_jalloc(p->lex.arena, v->text.n + more.n + 1, 1, &text));
        if (v->text.n) __builtin_memcpy(text, v->text.at, v->text.n);
        if (more.n) __builtin_memcpy(text + v->text.n, more.at, more.n);
        v->text = (cn_jtext){text, v->text.n + more.n};
        CN_TRY(cn_jparse_advance(p));
    }
    return CN_OK;
}

static cn_status parse_jinja_name(cn_jparser *p, cn_jnode **out)
{
    static const struct {
        const char *word;
        cn_jvalue value;
    } constants[] = {
        {"true", {.kind = CN_J_BOOL, .truth = true}},
        {"True", {.kind = CN_J_BOOL, .truth = true}},
        {"false", {.kind = CN_J_BOOL}},
        {"False", {.kind = CN_J_BOOL}},
        {"none", {.kind = CN_J_NONE}},
        {"None", {.kind = CN_J_NONE}},
    };
    CN_TRY(cn_jparse_node(p, CN_JN_NAME, out));
    (*out)->value = cn_jstring(p->now.text);
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (!cn_jparse_at_name(p, constants[i].word)) continue;
        (*out)->kind = CN_JN_CONST;
        (*out)->value = constants[i].value;
    }
    return cn_jparse_advance(p);
}

static cn_status parse_primary(cn_jparser *p, cn_jnode **out)
{
    if (p->now.kind == CN_JT_NAME) return parse_jinja_name(p, out);
    if (p->now.kind == CN_JT_CONST) return parse_const(p, out);
    if (cn_jparse_at_sign(p, "(")) return parse_jinja_group(p, out);
    if (cn_jparse_at_sign(p, "[") || cn_jparse_at_sign(p, "{")) return parse_display(p, out);
    return cn_jparse_fail(p, "an expression");
}

/* ---- after a value: members, items, calls, filters, tests ---- */

static cn_status parse_args(cn_jparser *p, cn_jnode **end)
{
    CN_TRY(cn_jparse_advance(p));
    for (bool first = true; !cn_jparse_at_sign(p, ")"); first = false) {
        if (!first) CN_TRY(cn_jparse_sign(p, ","));
        if (cn_jparse_at_sign(p, ")")) break;
        CN_TRY(cn_jparse_node(p, CN_JN_ARG, end));
        cn_jnode *arg = *end;
        end = &arg->next;
        static const sign_op unpacks[] = {
            {"*", CN_JOP_UNPACK_LIST}, {"**", CN_JOP_UNPACK_DICT}, {0}};
        CN_TRY(take_op(p, unpacks, &arg->op));
        if (p->now.kind == CN_JT_NAME && p->ahead.kind == CN_JT_SIGN &&
            cn_jtext_is(p->ahead.text, "=")) {
            arg->value = cn_jstring(p->now.text);
            CN_TRY(cn_jparse_advance(p));
            CN_TRY(cn_jparse_advance(p));
        }
        CN_TRY(cn_jparse_expr(p, true, &arg->a));
    }
    return cn_jparse_advance(p);
}

static bool ends_slice_part(const cn_jparser *p)
{
    return cn_jparse_at_sign(p, ":") || cn_jparse_at_sign(p, "]") || cn_jparse_at_sign(p, ",");
}

/* [key] or [start:stop:step], after the object. */
static cn_status parse_item(cn_jparser *p, cn_jnode *object, cn_jnode **out)
{
    CN_TRY(cn_jparse_node(p, CN_JN_ITEM, out));
    cn_jnode *item = *out;
    item->a = object;
    CN_TRY(cn_jparse_advance(p));
    if (!cn_jparse_at_sign(p, ":")) CN_TRY(cn_jparse_exprs(p, true, &item->b));
    if (cn_jparse_at_sign(p, ":")) {
        item->kind = CN_JN_SLICE;
        CN_TRY(cn_jparse_advance(p));
        if (!ends_slice_part(p)) CN_TRY(cn_jparse_expr(p, true, &item->c));
        if (cn_jparse_at_sign(p, ":")) {
            CN_TRY(cn_jparse_advance(p));
            if (!ends_slice_part(p)) CN_TRY(cn_jparse_expr(p, true, &item->d));
        }
    }
    return cn_jparse_sign(p, "]");
}

static cn_status parse_member(cn_jparser *p, cn_jnode *object, cn_jnode **out)
{
    CN_TRY(cn_jparse_advance(p));
    bool index = p->now.kind == CN_JT_CONST && p->now.value.kind == CN_J_INT;
    if (!index && p->now.kind != CN_JT_NAME) return cn_jparse_fail(p, "a name after '.'");
    CN_TRY(cn_jparse_node(p, index ? CN_JN_ITEM : CN_JN_MEMBER, out));
    (*out)->a = object;
    if (index) return parse_const(p, &(*out)->b);
    (*out)->value = cn_jstring(p->now.text);
    return cn_jparse_advance(p);
}

static cn_status parse_call(cn_jparser *p, cn_jnode *function, cn_jnode **out)
{
    CN_TRY(cn_jparse_node(p, CN_JN_CALL, out));
    (*out)->a = function;
    return parse_args(p, &(*out)->b);
}

static cn_status parse_postfix(cn_jparser *p, cn_jnode **out)
{
    for (;;) {
        if (cn_jparse_at_sign(p, "."))
            CN_TRY(parse_member(p, *out, out));
        else if (cn_jparse_at_sign(p, "["))
            CN_TRY(parse_item(p, *out, out));
        else if (cn_jparse_at_sign(p, "("))
            CN_TRY(parse_call(p, *out, out));
        else
            return CN_OK;
    }
}

static cn_status parse_filter(cn_jparser *p, cn_jnode *operand, cn_jnode **out)
{
    if (p->now.kind != CN_JT_NAME) return cn_jparse_fail(p, "the name of a filter");
    CN_TRY(cn_jparse_node(p, CN_JN_FILTER, out));
    (*out)->value = cn_jstring(p->now.text);
    (*out)->a = operand;
    (*out)->builtin = cn_jfind_filter(p->now.text);
    CN_TRY(cn_jparse_advance(p));
    return cn_jparse_at_sign(p, "(") ? parse_args(p, &(*out)->b) : CN_OK;
}

cn_status cn_jparse_filters(cn_jparser *p, cn_jnode *operand, cn_jnode **out)
{
    CN_TRY(parse_filter(p, operand, out));
    while (cn_jparse_at_sign(p, "|")) {
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(parse_filter(p, *out, out));
    }
    return CN_OK;
}

static bool begins_test_operand(const cn_jparser *p)
{
    if (p->now.kind == CN_JT_NAME)
        return !cn_jparse_at_name(p, "else") && !cn_jparse_at_name(p, "or") &&
               !cn_jparse_at_name(p, "and");
    return p->now.kind == CN_JT_CONST || cn_jparse_at_sign(p, "[") || cn_jparse_at_sign(p, "{");
}

/* is [not] NAME [argument or (args)] */
static cn_status parse_test(cn_jparser *p, cn_jnode *operand, cn_jnode **out)
{
    cn_jnode *test;
    CN_TRY(cn_jparse_advance(p));
    bool negated = cn_jparse_at_name(p, "not");
    if (negated) {
        CN_TRY(cn_jparse_node(p, CN_JN_NOT, out));
        CN_TRY(cn_jparse_advance(p));
    }
    if (p->now.kind != CN_JT_NAME) return cn_jparse_fail(p, "the name of a test");
    CN_TRY(cn_jparse_node(p, CN_JN_TEST, &test));
    test->value = cn_jstring(p->now.text);
    test->a = operand;
    test->builtin = cn_jfind_test(p->now.text);
    if (negated)
        (*out)->a = test;
    else
        *out = test;
    CN_TRY(cn_jparse_advance(p));
    if (cn_jparse_at_sign(p, "(")) return parse_args(p, &test->b);
    if (cn_jparse_at_name(p, "is")) return cn_jparse_fail(p, "one test: 'is' cannot be chained");
    if (!begins_test_operand(p)) return CN_OK;
    CN_TRY(cn_jparse_node(p, CN_JN_ARG, &test->b));
    CN_TRY(parse_primary(p, &test->b->a));
    return parse_postfix(p, &test->b->a);
}

static cn_status parse_filters_and_tests(cn_jparser *p, cn_jnode **out)
{
    for (;;) {
        if (cn_jparse_at_sign(p, "|")) {
            CN_TRY(cn_jparse_advance(p));
            CN_TRY(parse_filter(p, *out, out));
        } else if (cn_jparse_at_name(p, "is")) {
            CN_TRY(parse_test(p, *out, out));
        } else if (cn_jparse_at_sign(p, "(")) {
            CN_TRY(parse_call(p, *out, out));
        } else {
            return CN_OK;
        }
    }
}

static cn_status parse_unary(cn_jparser *p, bool with_filter, cn_jnode **out)
{
    bool negated = cn_jparse_at_sign(p, "-");
    CN_TRY(cn_jparse_deeper(p));
    if (negated || cn_jparse_at_sign(p, "+")) {
        CN_TRY(cn_jparse_node(p, negated ? CN_JN_NEGATE : CN_JN_PLUS, out));
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(parse_unary(p, false, &(*out)->a));
    } else {
        CN_TRY(parse_primary(p, out));
    }
    CN_TRY(parse_postfix(p, out));
    if (with_filter) CN_TRY(parse_filters_and_tests(p, out));
    p->depth--;
    return CN_OK;
}

/* ---- targets ---- */

static cn_status parse_one_target(cn_jparser *p, cn_jnode **out)
{
    bool group = cn_jparse_at_sign(p, "(");
    if (group) {
        CN_TRY(cn_jparse_deeper(p));
        CN_TRY(cn_jparse_advance(p));
        CN_TRY(cn_jparse_target(p, out));
        p->depth--;
        return cn_jparse_sign(p, ")");
    }
    if (p->now.kind != CN_JT_NAME) return cn_jparse_fail(p, "a variable");
    CN_TRY(parse_jinja_name(p, out));
    if ((*out)->kind != CN_JN_NAME || cn_jtext_is((*out)->value.text, "loop"))
        return cn_jparse_fail(p, "a variable that can be assigned to");
    return cn_jparse_at_sign(p, ".") ? parse_member(p, *out, out) : CN_OK;
}

cn_status cn_jparse_target(cn_jparser *p, cn_jnode **out)
{
    CN_TRY(parse_one_target(p, out));
    if (!cn_jparse_at_sign(p, ",")) return CN_OK;
    cn_jnode *tuple;
    CN_TRY(cn_jparse_node(p, CN_JN_TUPLE, &tuple));
    tuple->a = *out;
    *out = tuple;
    for (cn_jnode *last = tuple->a; cn_jparse_at_sign(p, ","); last = last->next) {
        CN_TRY(cn_jparse_advance(p));
        if (cn_jparse_at_name(p, "in") || cn_jparse_at_sign(p, "=") || ends_tuple(p)) break;
        CN_TRY(parse_one_target(p, &last->next));
    }
    return CN_OK;
}
