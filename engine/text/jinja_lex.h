/* jinja_lex.h - the words of a Jinja program. They are enough to recognise the program, not to run
 * it.
 * Private to chat_recognize.c. No shared state. */
#ifndef CN_JINJA_LEX_H
#define CN_JINJA_LEX_H

#include "engine/base.h"

typedef enum cn_jinja_kind {
    CN_JINJA_END,
    CN_JINJA_NAME,   /* an identifier or keyword inside a tag */
    CN_JINJA_STRING, /* a string literal inside a tag, escapes resolved */
    CN_JINJA_SIGN,   /* any other character inside a tag, except white space */
    CN_JINJA_RAW     /* text outside tags that remains after white-space control */
} cn_jinja_kind;

/* Set src and n, zero the rest. Free with cn_jinja_lex_free. */
typedef struct cn_jinja_lex {
    const char *src;
    size_t n, at;
    char tag;                     /* '{' inside {{ }}, '%' inside {% %}, 0 outside */
    bool after_dash, after_block; /* the last tag closed with a dash (-%}); with %} or #} */
    cn_buf text;                  /* of the current word */
} cn_jinja_lex;

/* Reads the next word into l->text; *kind is CN_JINJA_END at the end. White-space control is that
 * of transformers: trim_blocks and lstrip_blocks. */
cn_status cn_jinja_next(cn_jinja_lex *l, cn_jinja_kind *kind);
void cn_jinja_lex_free(cn_jinja_lex *l);

#endif
