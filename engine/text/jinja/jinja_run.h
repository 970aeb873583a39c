/* jinja_run.h - one rendering: output, variables, limits.
 * Private to engine/text/jinja/. Owner: cn_jinja_render. Thread: that of the caller. */
#pragma once

#include <jansson.h>

#include "engine/text/jinja/jinja.h"
#include "engine/text/jinja/jinja_ast.h"

/* Variables of a loop, macro or block. Names are looked up from the inside to the outside. */
typedef struct cn_jscope {
    struct cn_jscope *parent;
    cn_jdict vars;
} cn_jscope;

typedef enum cn_jjump { CN_J_GO_ON, CN_J_BREAK, CN_J_CONTINUE } cn_jjump;

struct cn_jrun {
    cn_jarena arena;
    cn_buf *out;
    size_t start; /* bytes of `out` before the rendering */
    uint64_t steps;
    uint32_t depth;
    uint32_t line; /* of the statement that runs, for messages */
    cn_jscope *scope;
    cn_jjump jump; /* where the enclosing loop continues */
};

typedef struct cn_jmacro {
    const cn_jnode *params, *body;
    cn_jtext name;
    cn_jscope *scope; /* where it was defined */
} cn_jmacro;

typedef struct cn_jloop {
    const cn_jnode *node;
    cn_jlist *items;
    size_t index, depth;
    cn_jscope *scope; /* around the loop, for loop(...) */
} cn_jloop;

/* ---- limits ---- */

/* Counts n steps. */
cn_status cn_jwork(cn_jrun *run, size_t n);
static inline cn_status cn_jscan(cn_jrun *run, cn_jtext t) { return cn_jwork(run, 1 + t.n / 16); }
/* Counts a level of nesting; the caller decrements run->depth on success. */
cn_status cn_jdeeper(cn_jrun *run);

/* ---- output, also the place where text is put together ---- */

cn_status cn_jput(cn_jrun *run, const void *text, size_t n);
static inline cn_status cn_jputs(cn_jrun *run, cn_jtext t) { return cn_jput(run, t.at, t.n); }
cn_status cn_jput_char(cn_jrun *run, uint32_t cp);
static inline size_t cn_jmark(const cn_jrun *run) { return run->out->len; }
/* Takes what was put since the mark, as a string. */
cn_status cn_jcut(cn_jrun *run, size_t mark, cn_jvalue *out);

/* ---- text of values ---- */

cn_status cn_jput_str(cn_jrun *run, cn_jvalue v); /* str(v) */
cn_status cn_jput_repr(cn_jrun *run, cn_jvalue v);
cn_status cn_jput_real(cn_jrun *run, double d);
/* str(v) without a copy of a string. */
cn_status cn_jstr(cn_jrun *run, cn_jvalue v, cn_jtext *out);

typedef struct cn_json_style {
    bool ascii, sort_keys;
    bool lines; /* each item on a line of its own, after `indent` for each level */
    cn_jtext indent, item_separator, key_separator;
} cn_json_style;
cn_status cn_jput_json(cn_jrun *run, cn_jvalue v, const cn_json_style *style);

cn_status cn_jfrom_json(cn_jrun *run, const json_t *json, cn_jvalue *out);

/* ---- expressions ---- */

cn_status cn_jeval(cn_jrun *run, const cn_jnode *n, cn_jvalue *out);
/* A filter or a chain of filters; the innermost operand, if NULL, is `operand`. */
cn_status cn_jeval_filter(cn_jrun *run, const cn_jnode *n, cn_jvalue operand, cn_jvalue *out);
cn_status cn_jmember(cn_jrun *run, cn_jvalue object, cn_jtext name, cn_jvalue *out);
cn_status cn_jitem(cn_jrun *run, cn_jvalue object, cn_jvalue key, cn_jvalue *out);
cn_status cn_jslice(cn_jrun *run, cn_jvalue v, const cn_jvalue part[3], cn_jvalue *out);
cn_status cn_jbinary(cn_jrun *run, cn_jop op, cn_jvalue a, cn_jvalue b, cn_jvalue *out);
cn_status cn_jcompare(cn_jrun *run, cn_jop op, cn_jvalue a, cn_jvalue b, bool *out);
/* "%s ..." % args. */
cn_status cn_jformat(cn_jrun *run, cn_jtext format, const cn_jargs *args, cn_jvalue *out);
/* "'x' is undefined". */
cn_status cn_jfail_undefined(cn_jvalue v);

/* ---- statements ---- */

cn_status cn_jexec(cn_jrun *run, const cn_jnode *list);
cn_status cn_jmacro_call(cn_jrun *run, const cn_jmacro *m, const cn_jargs *args, cn_jvalue *out);
/* loop(items) of a recursive loop. */
cn_status cn_jloop_call(cn_jrun *run, const cn_jloop *loop, const cn_jargs *args, cn_jvalue *out);
cn_jvalue cn_jloop_member(cn_jvalue loop, cn_jtext name);
cn_status cn_jscope_new(cn_jrun *run, cn_jscope *parent, cn_jscope **out);
