/* jinja_ast.h - the tree of a template, and the parts of the parser.
 * Private to engine/text/jinja/. Owner: cn_jinja. Immutable after parsing; any thread.
 *
 * Fields that a node uses; `body`, `items` and `args` are lists linked by `next`:
 *   statement     value    a            b            c            d
 *   TEXT          text
 *   PRINT                  expression
 *   IF                     condition    body         else body
 *   FOR                    target       sequence     condition    body; e: else body
 *   SET                    target       expression
 *   SET_BLOCK              target       filters      body
 *   MACRO         name     parameters   body
 *   CALL_BLOCK             call         parameters   body
 *   FILTER_BLOCK           filters      body
 *   WITH                   parameters   body
 *   SCOPE                  body
 *   BREAK, CONTINUE
 *   expression
 *   CONST         constant
 *   NAME          name
 *   MEMBER        name     object
 *   ITEM                   object       key
 *   SLICE                  object       start        stop         step
 *   CALL                   function     args
 *   FILTER, TEST  name     operand      args                              builtin; NULL: unknown
 *   NOT, NEGATE, PLUS      operand
 *   AND, OR                left         right
 *   BINARY, COMPARE        left         right                             op. A chain a < b < c:
 *                                                                         `c` is the COMPARE that
 *                                                                         takes b from the left
 *   CONCAT                 items
 *   COND                   condition    value        other value
 *   LIST, TUPLE            items
 *   DICT                   items, keys and values in turn
 *   ARG           name     value        op '*' and '^' (**): unpacked; name of a keyword
 *   PARAM         name     default
 * A target is a NAME, a TUPLE of targets, or a MEMBER of a NAME (namespace).
 * The operand of a filter of a block is NULL: it takes the text of the block. */
#pragma once

#include "engine/text/jinja/jinja_builtin.h"
#include "engine/text/jinja/jinja_lex.h"

typedef enum cn_jnode_kind {
    CN_JN_TEXT,
    CN_JN_PRINT,
    CN_JN_IF,
    CN_JN_FOR,
    CN_JN_SET,
    CN_JN_SET_BLOCK,
    CN_JN_MACRO,
    CN_JN_CALL_BLOCK,
    CN_JN_FILTER_BLOCK,
    CN_JN_WITH,
    CN_JN_SCOPE,
    CN_JN_BREAK,
    CN_JN_CONTINUE,
    CN_JN_CONST,
    CN_JN_NAME,
    CN_JN_MEMBER,
    CN_JN_ITEM,
    CN_JN_SLICE,
    CN_JN_CALL,
    CN_JN_FILTER,
    CN_JN_TEST,
    CN_JN_NOT,
    CN_JN_NEGATE,
    CN_JN_PLUS,
    CN_JN_AND,
    CN_JN_OR,
    CN_JN_BINARY,
    CN_JN_COMPARE,
    CN_JN_CONCAT,
    CN_JN_COND,
    CN_JN_LIST,
    CN_JN_TUPLE,
    CN_JN_DICT,
    CN_JN_ARG,
    CN_JN_PARAM,
    CN_JN_KINDS
} cn_jnode_kind;

typedef enum cn_jop {
    CN_JOP_NONE,
    CN_JOP_ADD,
    CN_JOP_SUB,
    CN_JOP_MUL,
    CN_JOP_DIV,
    CN_JOP_FLOORDIV,
    CN_JOP_MOD,
    CN_JOP_POW,
    CN_JOP_EQ,
    CN_JOP_NE,
    CN_JOP_LT,
    CN_JOP_LE,
    CN_JOP_GT,
    CN_JOP_GE,
    CN_JOP_IN,
    CN_JOP_NOT_IN,
    CN_JOP_UNPACK_LIST,
    CN_JOP_UNPACK_DICT
} cn_jop;

struct cn_jnode {
    cn_jnode_kind kind;
    cn_jop op;
    uint32_t line;
    bool recursive; /* FOR */
    cn_jvalue value;
    cn_jnode *a, *b, *c, *d, *e, *next;
    const cn_jbuiltin *builtin;
};

/* ---- the parser ---- */

typedef struct cn_jparser {
    cn_jlex lex;
    cn_jtoken now, ahead; /* the current token and the one after it */
    uint32_t depth;
} cn_jparser;

enum { CN_JPARSE_DEPTH = 200 };

cn_status cn_jparse_advance(cn_jparser *p);
cn_status cn_jparse_node(cn_jparser *p, cn_jnode_kind kind, cn_jnode **out);
/* Fails with "line N: expected WANT, got TOKEN". */
cn_status cn_jparse_fail(const cn_jparser *p, const char *want);
bool cn_jparse_at_sign(const cn_jparser *p, const char *sign);
bool cn_jparse_at_name(const cn_jparser *p, const char *name);
cn_status cn_jparse_sign(cn_jparser *p, const char *sign);
/* Counts a level of nesting; the caller decrements p->depth on success. */
cn_status cn_jparse_deeper(cn_jparser *p);

/* An expression. With_cond: "a if b else c" is allowed. */
cn_status cn_jparse_expr(cn_jparser *p, bool with_cond, cn_jnode **out);
/* One or more expressions; several make a tuple. */
cn_status cn_jparse_exprs(cn_jparser *p, bool with_cond, cn_jnode **out);
/* What `set` and `for` assign to. */
cn_status cn_jparse_target(cn_jparser *p, cn_jnode **out);
/* NAME | NAME(args) | ..., the current token is the first name. */
cn_status cn_jparse_filters(cn_jparser *p, cn_jnode *operand, cn_jnode **out);

/* The whole template, as a list of statements. */
cn_status cn_jparse(cn_jparser *p, cn_jnode **out);
