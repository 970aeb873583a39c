/* productions.h - a context-free grammar that is written as text: what its parsers (gbnf.h, lark.h)
 * share, and the network that it becomes.
 *
 * A production is a name and an item; items form a tree. Direct left recursion, a: a "x" | "y",
 * becomes a repetition. Other left recursion is refused, because the places of a state would have
 * no end.
 *
 * Owner: the parser; on its stack. Thread: any. Errors are CN_ERR_ARG and name line and column. */
#pragma once

#include "engine/grammar/charset.h"

enum {
    CN_GRAMMAR_TEXT_MAX_BYTES = 64 << 10,
    CN_GRAMMAR_MAX_GROUPS = 64, /* inside one another */
    CN_GRAMMAR_MAX_MARKS = 4,   /* of repetition after one item */
    CN_GRAMMAR_MAX_REPEAT = 65535,
    CN_NO_PRODUCTION = UINT32_MAX
};

typedef enum cn_item_kind {
    CN_ITEM_TEXT,   /* bytes */
    CN_ITEM_SET,    /* one character of a set */
    CN_ITEM_REGEX,  /* a match of an expression in bytes */
    CN_ITEM_RULE,   /* a production */
    CN_ITEM_THEN,   /* its children one after the other */
    CN_ITEM_EITHER, /* one of its children */
    CN_ITEM_REPEAT  /* its child, least to most times; most UINT32_MAX: no limit */
} cn_item_kind;

typedef struct cn_item {
    cn_item_kind kind;
    bool any_case;              /* of text: ASCII letters in either case */
    bool token;                 /* ignored text may follow it */
    uint32_t value, len;        /* the set or production; or where its bytes begin, and how many */
    uint32_t first, last, next; /* children, sibling; 0: none */
    uint32_t least, most;
    uint32_t rule;  /* of the network, that reads it; 0: not made */
    const char *at; /* in the text */
} cn_item;

typedef struct cn_production {
    const char *name; /* [len] in the text */
    uint32_t len;
    uint32_t item; /* 0: not defined yet */
    uint32_t rule; /* of the network; 0: not made, or the root */
    bool made;
    bool holds[3]; /* properties, see productions.c */
} cn_production;

typedef struct cn_productions {
    const char *begin, *end, *at; /* the text, and what is read next */
    cn_item *items;               /* item 0 is unused */
    cn_charset *sets;
    cn_production *list;
    uint32_t n_items, n_sets, n;
    cn_buf bytes;    /* of texts and expressions */
    uint32_t ignore; /* production of ignored text, or CN_NO_PRODUCTION */
    uint32_t *made;  /* productions that the network has */
    uint32_t n_made;
    cn_net *net;
} cn_productions;

/* CN_ERR_ARG: the text is too long. */
cn_status cn_productions_begin(cn_productions *p, const char *text, size_t len, cn_net *net);
void cn_productions_free(cn_productions *p);

/* CN_ERR_ARG with a message that begins with line and column of `at`. */
cn_status cn_productions_wrong(const cn_productions *p, const char *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* *out: a new item whose place is p->at. */
cn_status cn_item_new(cn_productions *p, cn_item item, uint32_t *out);
void cn_item_add(cn_productions *p, uint32_t parent, uint32_t child);
/* Another mark of repetition may follow so many. */
cn_status cn_productions_check_marks(const cn_productions *p, uint32_t n);
/* A new item of the set, which is normalized. An empty set is refused. */
cn_status cn_item_set(cn_productions *p, cn_charset *set, uint32_t *out);
cn_status cn_item_repeat(cn_productions *p, uint32_t child, uint32_t least, uint32_t most,
                         uint32_t *out);
/* *out: the production with this name in the text, a new one if there is none. */
cn_status cn_production_find(cn_productions *p, const char *name, size_t len, uint32_t *out);
/* The name, which is at this place, means the item, a CN_ITEM_EITHER of CN_ITEM_THEN. A name that
 * has one is refused. */
cn_status cn_production_define(cn_productions *p, uint32_t production, const char *name,
                               uint32_t item);

/* Read at p->at. */
cn_status cn_productions_char(cn_productions *p, uint32_t *out);
cn_status cn_productions_number(cn_productions *p, uint32_t *out);
/* What follows a backslash in a literal or class: a control, \xHH, \uHHHH, \UHHHHHHHH or a mark. */
cn_status cn_productions_escape(cn_productions *p, uint32_t *out);
/* A literal in double quotes, from the quote on, as an item. */
cn_status cn_productions_literal(cn_productions *p, uint32_t *out);
size_t cn_productions_name(const char *at, const char *end, const char *more);

/* Checks all productions and makes the root rule of the network, which must be the only one, read
 * the production of this name. */
cn_status cn_productions_emit(cn_productions *p, const char *root);
