/* jinja_builtin.h - functions that a template calls: filters, tests, methods, globals. Each is a
 * row of a table.
 * Private to engine/text/jinja/. Owner: none. Thread: any. */
#pragma once

#include "engine/text/jinja/jinja_value.h"

typedef struct cn_jrun cn_jrun;
typedef struct cn_jnode cn_jnode;

typedef struct cn_jargs {
    const cn_jvalue *at;
    size_t n;
    const cn_jdict *named; /* NULL: none */
} cn_jargs;

enum { CN_J_SLOTS = 5 };

/* A call. A filter and a test have their operand in `self`, a method its object. */
typedef struct cn_jcall {
    const char *name;
    cn_jvalue self;
    cn_jvalue slot[CN_J_SLOTS]; /* of each parameter; CN_J_MISSING: not given */
    const cn_jargs *args;       /* as written */
} cn_jcall;

typedef struct cn_jbuiltin {
    const char *name;
    const char *params; /* names, separated by spaces; "*": any, read from args */
    cn_status (*call)(cn_jrun *run, const cn_jcall *c, cn_jvalue *out);
} cn_jbuiltin;

/* A function with its object. */
typedef struct cn_jbound {
    const cn_jbuiltin *builtin;
    cn_jvalue self;
} cn_jbound;

/* NULL: there is none. A table ends with a row without a name. */
const cn_jbuiltin *cn_jfind(const cn_jbuiltin *table, cn_jtext name);
const cn_jbuiltin *cn_jfind_filter(cn_jtext name);
const cn_jbuiltin *cn_jfind_test(cn_jtext name);
const cn_jbuiltin *cn_jfind_method(cn_jvalue object, cn_jtext name);
const cn_jbuiltin *cn_jfind_global(cn_jtext name);

extern const cn_jbuiltin cn_jscalar_filters[], cn_jseq_filters[], cn_jtests[], cn_jglobals[];

/* Assigns the arguments to the parameters, and calls. CN_ERR_ARG names an argument that has no
 * parameter. */
cn_status cn_jbuiltin_call(cn_jrun *run, const cn_jbuiltin *b, cn_jvalue self, const cn_jargs *args,
                           cn_jvalue *out);

/* ---- reading arguments. `want` names the parameter in the error. ---- */

cn_status cn_jwant_text(const cn_jcall *c, cn_jvalue v, const char *want, cn_jtext *out);
/* A missing argument leaves *out unchanged. */
cn_status cn_jwant_int(const cn_jcall *c, cn_jvalue v, const char *want, int64_t *out);
static inline bool cn_jflag(cn_jvalue v, bool otherwise)
{
    return v.kind == CN_J_MISSING ? otherwise : cn_jtruth(v);
}
/* The values that a loop over v would visit, as a sequence. */
cn_status cn_jiterate(cn_jrun *run, cn_jvalue v, cn_jlist **out);
