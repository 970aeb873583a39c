/* python_arguments.h - the arguments of a call in Python, f(a=1, b="x"), as a JSON object. Models
 * with calls like [f(a=1), g()] write them.
 *
 * Only literals are read: numbers, strings in all quotes, True, False, None, lists, tuples and
 * dictionaries. Anything else is passed on as it is, so that the object is not JSON then.
 *
 * Owner: cn_tool_finder. Thread: the engine's. Stage: 8. */
#pragma once

#include "engine/base/base.h"

/* How far an item is: none, the key of a dictionary, a ':' or '=' after it, a value. */
typedef enum cn_python_part {
    CN_PYTHON_NOTHING,
    CN_PYTHON_KEY,
    CN_PYTHON_COLON,
    CN_PYTHON_VALUE
} cn_python_part;

/* Zero at first. */
typedef struct cn_python_args {
    bool begun; /* the object */
    bool in_key, in_value;
    bool comma;          /* one was read and is not written */
    bool gap;            /* white space follows a number or name */
    uint32_t depth;      /* open brackets of the value */
    uint64_t dicts;      /* bit i: the open bracket i is a '{' */
    cn_python_part part; /* what is written of the innermost one, or of the argument */
    char quote;          /* of the string being read; 0: none */
    bool raw, triple;    /* of the string */
    uint8_t n_open;      /* quotes that may open it */
    uint8_t n_close;     /* quotes that may close a triple one */
    char escape[10];     /* an unfinished escape sequence */
    uint8_t n_escape;
    char word[12]; /* the start of a number or name */
    uint8_t n_word;
} cn_python_args;

/* Takes a byte of what follows "f(" and appends JSON. *ended: it closed the call. */
cn_status cn_python_args_add(cn_python_args *p, char c, cn_buf *out, bool *ended);

/* The text of the call ends early. `is_whole`: the model ended it, so what is open is closed, and a
 * key without a value gets null. Otherwise appends what there is. */
cn_status cn_python_args_cut(cn_python_args *p, bool is_whole, cn_buf *out);

/* Appends the literal text[n] as JSON. */
cn_status cn_python_literal(const char *text, size_t n, cn_buf *out);
