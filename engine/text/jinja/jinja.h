/* jinja.h - parses and renders a Jinja template as jinja2 does in the environment that transformers
 * uses for chat templates: sandboxed and immutable, trim_blocks, lstrip_blocks, break and continue,
 * `generation` blocks, raise_exception, strftime_now, and its `tojson`.
 *
 * Owner: cn_chat_template. Immutable after parsing; any thread renders it. Stage: 2.
 *
 *   jinja_lex.c         source to tokens, white-space control
 *   jinja_parse.c       statements; jinja_parse_expr.c: expressions. Tokens to the tree
 *   jinja_value.c       arena, values, comparison
 *   jinja_text.c        str() and repr(); jinja_tojson.c: JSON text, and JSON to values
 *   jinja_eval.c        expressions; jinja_operator.c: arithmetic and slices; jinja_exec.c:
 *                       statements, loops, macros
 *   jinja_builtin.c     arguments of functions; jinja_filter.c, jinja_filter_seq.c, jinja_method.c,
 *                       jinja_test.c, jinja_global.c: tables of functions
 *   jinja_pystring.c    Python's string functions over UTF-8
 *
 * Not supported: inheritance, includes, imports, `block`, `autoescape`, and the filters that make
 * HTML. Integers have 64 bits; a larger result is an error. upper() and lower() map each character
 * to one character. */
#pragma once

#include <jansson.h>

#include "engine/base/base.h"

/* Limits of one rendering; beyond them it fails with CN_ERR_ARG. */
enum {
    CN_JINJA_MAX_SOURCE = 4 << 20,
    CN_JINJA_MAX_STEPS = 20 * 1000 * 1000, /* nodes run, and units of 16 bytes that are scanned */
    CN_JINJA_MAX_OUTPUT = 64 << 20,        /* bytes */
    CN_JINJA_MAX_MEMORY = 256 << 20,       /* bytes of values */
    CN_JINJA_MAX_DEPTH = 600               /* nested nodes and macro calls */
};

typedef struct cn_jinja cn_jinja;

/* CN_ERR_MODEL names the line and what was expected there. */
cn_status cn_jinja_parse(cn_jinja **out, const char *source, size_t n);
void cn_jinja_free(cn_jinja *t); /* NULL is fine */

/* Appends the text. The members of the object `variables` are the template's variables. CN_ERR_ARG:
 * the template raised an exception, used a value in a way Python refuses, or exceeded a limit, for
 * which *exceeded is true. On failure `out` is unchanged. */
cn_status cn_jinja_render(const cn_jinja *t, const json_t *variables, cn_buf *out, bool *exceeded);

/* True if the template has a loop over the member `name` of a value, as in
 * {% for part in message['content'] %}, or over a variable of this name. */
bool cn_jinja_loops_over(const cn_jinja *t, const char *name);

/* True if the template has a variable of this name, also where it does not read it. */
bool cn_jinja_has_variable(const cn_jinja *t, const char *name);
