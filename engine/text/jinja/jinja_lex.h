/* jinja_lex.h - the tokens of a template.
 * Private to engine/text/jinja/. Owner: the parser. */
#pragma once

#include "engine/text/jinja/jinja_value.h"

typedef enum cn_jtoken_kind {
    CN_JT_END,
    CN_JT_DATA, /* text outside tags, after white-space control */
    CN_JT_PRINT_OPEN,
    CN_JT_PRINT_CLOSE,
    CN_JT_BLOCK_OPEN,
    CN_JT_BLOCK_CLOSE,
    CN_JT_NAME,
    CN_JT_CONST, /* a string or number */
    CN_JT_SIGN
} cn_jtoken_kind;

typedef struct cn_jtoken {
    cn_jtoken_kind kind;
    uint32_t line;
    cn_jtext text;   /* as written; DATA: the text */
    cn_jvalue value; /* CONST */
} cn_jtoken;

typedef struct cn_jlex {
    cn_jarena *arena;
    const char *src; /* lines end in \n */
    size_t n, at;
    uint32_t line;
    uint32_t brackets; /* open ( [ { of the tag */
    char tag;          /* '{' inside {{ }}, '%' inside {% %}, 0 outside */
    bool opened;       /* the opening of `tag` is the next token */
    bool line_start;   /* the last tag ended in a newline, or the template begins */
    bool after_dot;    /* the last token is ".": a.0 is not a float */
} cn_jlex;

/* Starts with a copy of source[n] in the arena, with the line ends of jinja2. */
cn_status cn_jlex_open(cn_jlex *l, cn_jarena *arena, const char *source, size_t n);
/* CN_ERR_MODEL names the line. */
cn_status cn_jlex_next(cn_jlex *l, cn_jtoken *out);
