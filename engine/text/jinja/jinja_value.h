/* jinja_value.h - the values of a template, and the memory of a tree or of one rendering.
 * Private to engine/text/jinja/. Owner: cn_jinja or cn_jrun. Thread: that of the owner. */
#pragma once

#include "engine/base/base.h"

/* ---- arena ---- */

typedef struct cn_jchunk cn_jchunk;

/* Memory that is freed all at once. Set `limit` (bytes) and `error`, zero the rest. */
typedef struct cn_jarena {
    cn_jchunk *chunks;
    size_t used, limit;
    cn_status error; /* the status when the limit is reached */
    bool exceeded;   /* this limit or another of a rendering */
} cn_jarena;

/* Stores zeroed memory for n objects of `size` bytes in *(void **)out. */
cn_status cn_jalloc(cn_jarena *a, size_t n, size_t size, void *out);
void cn_jarena_free(cn_jarena *a);

/* ---- values ---- */

typedef enum cn_jkind {
    CN_J_MISSING, /* an argument that was not given; never the value of an expression */
    CN_J_UNDEFINED,
    CN_J_NONE,
    CN_J_BOOL,
    CN_J_INT,
    CN_J_FLOAT,
    CN_J_STRING,
    CN_J_LIST,
    CN_J_TUPLE,
    CN_J_STREAM, /* an iterator in Python: always true, no length, no index */
    CN_J_DICT,
    CN_J_NAMESPACE,
    CN_J_LOOP,
    CN_J_MACRO,
    CN_J_BUILTIN
} cn_jkind;

/* UTF-8; not terminated. */
typedef struct cn_jtext {
    const char *at;
    size_t n;
} cn_jtext;
#define CN_JTEXT(literal) ((cn_jtext){(literal), sizeof(literal) - 1})

typedef struct cn_jlist cn_jlist;
typedef struct cn_jdict cn_jdict;

typedef struct cn_jvalue {
    cn_jkind kind;
    union {
        bool truth;
        int64_t integer;
        double real;
        cn_jtext text;  /* CN_J_STRING; the name of CN_J_UNDEFINED */
        cn_jlist *list; /* CN_J_LIST, CN_J_TUPLE, CN_J_STREAM */
        cn_jdict *dict; /* CN_J_DICT, CN_J_NAMESPACE */
        struct cn_jloop *loop;
        struct cn_jmacro *macro;
        struct cn_jbound *bound; /* CN_J_BUILTIN */
    };
} cn_jvalue;

/* Values are shared. Only a list or dict that nobody else has seen, and a namespace, may grow. */
struct cn_jlist {
    cn_jvalue *at;
    size_t n, cap;
};
typedef struct cn_jpair {
    cn_jvalue key, value;
} cn_jpair;
struct cn_jdict {
    cn_jpair *at;
    size_t n, cap;
};

static inline cn_jvalue cn_jbool(bool b) { return (cn_jvalue){.kind = CN_J_BOOL, .truth = b}; }
static inline cn_jvalue cn_jint(int64_t i) { return (cn_jvalue){.kind = CN_J_INT, .integer = i}; }
static inline cn_jvalue cn_jreal(double d) { return (cn_jvalue){.kind = CN_J_FLOAT, .real = d}; }
static inline cn_jvalue cn_jnone(void) { return (cn_jvalue){.kind = CN_J_NONE}; }
static inline cn_jvalue cn_jstring(cn_jtext t)
{
    return (cn_jvalue){.kind = CN_J_STRING, .text = t};
}
static inline cn_jvalue cn_jundefined(cn_jtext name)
{
    return (cn_jvalue){.kind = CN_J_UNDEFINED, .text = name};
}
static inline bool cn_jis_sequence(cn_jvalue v) /* has v.list */
{
    return v.kind == CN_J_LIST || v.kind == CN_J_TUPLE || v.kind == CN_J_STREAM;
}

/* A new list of `kind` with room for `cap` values. */
cn_status cn_jlist_new(cn_jarena *a, cn_jkind kind, size_t cap, cn_jvalue *out);
cn_status cn_jlist_add(cn_jarena *a, cn_jlist *list, cn_jvalue v);
cn_status cn_jpair_new(cn_jarena *a, cn_jvalue first, cn_jvalue second, cn_jvalue *out);
cn_status cn_jdict_new(cn_jarena *a, cn_jkind kind, size_t cap, cn_jvalue *out);
/* Adds the key or replaces its value. */
cn_status cn_jdict_put(cn_jarena *a, cn_jdict *dict, cn_jvalue key, cn_jvalue v);
/* NULL: not there. */
cn_jvalue *cn_jdict_find(const cn_jdict *dict, cn_jvalue key);
cn_jvalue *cn_jdict_find_text(const cn_jdict *dict, cn_jtext key);

cn_status cn_jtext_copy(cn_jarena *a, cn_jtext text, cn_jvalue *out);

static inline bool cn_jtext_is(cn_jtext t, const char *s)
{
    size_t n = __builtin_strlen(s);
    return t.n == n && __builtin_memcmp(t.at, s, n) == 0;
}
bool cn_jtext_same(cn_jtext a, cn_jtext b);

/* bool(v). */
bool cn_jtruth(cn_jvalue v);
/* v as a number: an int or a bool, or also a float. False: v is another kind. */
bool cn_jas_int(cn_jvalue v, int64_t *out);
bool cn_jas_real(cn_jvalue v, double *out);
/* a == b. */
bool cn_jsame(cn_jvalue a, cn_jvalue b);
/* a < 0, 0, > 0 like memcmp, in *out. False: Python cannot order them. */
bool cn_jorder(cn_jvalue a, cn_jvalue b, int *out);
/* Python's name of the type, for messages. */
const char *cn_jtype_name(cn_jvalue v);
/* Units of work to compare or scan v; counting stops above `most`. */
size_t cn_jsize(cn_jvalue v, size_t most);
