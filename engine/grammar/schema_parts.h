/* schema_parts.h - the compilation of one schema: its parts, and the files that emit them. Internal
 * to the files schema*.c.
 *
 * A part is a set of schemas that hold at once, its terms: a schema, what its $ref leads to, and
 * the members of its allOf. A set that was met before has a rule already, so references may be
 * recursive. anyOf and oneOf are alternatives: each is a part of its own, with the other terms.
 * What cannot be enforced is left out with a warning, or refused if the request is strict
 * (cn_schema_drop). */
#pragma once

#include "engine/grammar/json_rules.h"
#include "engine/grammar/schema.h"
#include "engine/grammar/text_dfa.h"

#define CN_SCHEMA_NO_INDEX SIZE_MAX
enum { CN_SCHEMA_TABLE = 4 * CN_SCHEMA_MAX_PARTS, CN_SCHEMA_SHOWN_BYTES = 96 };

typedef enum cn_json_type {
    CN_JSON_STRING,
    CN_JSON_NUMBER,
    CN_JSON_INTEGER,
    CN_JSON_OBJECT,
    CN_JSON_ARRAY,
    CN_JSON_BOOLEAN,
    CN_JSON_NULL,
    CN_N_JSON_TYPES
} cn_json_type;

/* Keywords of a term that other parts take care of. */
enum { CN_SKIP_ANY_OF = 1, CN_SKIP_ONE_OF = 2 };

typedef struct cn_schema_term {
    json_t *schema; /* an object; its $ref and allOf are terms of their own */
    unsigned skip;
} cn_schema_term;

typedef struct cn_schema_terms {
    cn_schema_term *list; /* in the order in which they were met */
    uint32_t n;
    bool never; /* one of them is false */
} cn_schema_terms;

/* Where a schema is, for messages: below the part `parent`, keyword, then name or index. */
typedef struct cn_schema_place {
    uint32_t parent;
    const char *keyword, *name;
    size_t index; /* CN_SCHEMA_NO_INDEX: none */
} cn_schema_place;

typedef struct cn_schema_part {
    cn_schema_terms terms;
    cn_schema_place place;
    uint32_t rule;
} cn_schema_part;

typedef struct cn_schema_job {
    json_t *root;
    json_t *made; /* array: schemas that the compilation has made */
    cn_net *net;
    cn_json_rules rules;
    bool strict;
    cn_schema_part *parts; /* [CN_SCHEMA_MAX_PARTS + 1]; 0 is the root */
    uint32_t n_parts;
    uint32_t *table; /* [CN_SCHEMA_TABLE] finds the part of a set of terms: part + 1; 0: none */
    uint32_t never;  /* rule without texts; 0: not made */
    json_t *formats; /* object: the rules of formats, by their patterns */
    json_t *scalars; /* object: what cn_schema_are_scalar has found, by the address of a schema */
} cn_schema_job;

/* ---- schema.c ---- */

/* Adds the JSON Pointer of the part. */
cn_status cn_schema_add_place(const cn_schema_job *job, uint32_t part, cn_buf *out);
/* CN_ERR_ARG with the place of the part. */
cn_status cn_schema_wrong(const cn_schema_job *job, uint32_t part, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Notes that something is not enforced; the text names it. CN_ERR_ARG if the request is strict. */
cn_status cn_schema_drop(const cn_schema_job *job, uint32_t part, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, if it is an annotation: no error. */
cn_status cn_schema_warn(const cn_schema_job *job, uint32_t part, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds what holds if a schema does. Zero *io first; free it with cn_schema_terms_free. */
cn_status cn_schema_add_terms(cn_schema_job *job, cn_schema_place place, json_t *schema,
                              cn_schema_terms *io);
void cn_schema_terms_free(cn_schema_terms *t);
/* The rule of terms, which become a part if they are none yet. Takes and empties *terms, also on
 * failure. */
cn_status cn_schema_terms_rule(cn_schema_job *job, cn_schema_place place, cn_schema_terms *terms,
                               uint32_t *rule);

/* Follows a $ref, a string: a JSON Pointer (RFC 6901) after #, or the name of an $anchor. NULL when
 * there is nothing. */
json_t *cn_schema_find(const cn_schema_job *job, const json_t *ref);
/* Bytes of a value's text, about: what a loop over it costs. */
size_t cn_schema_size(const json_t *v);

/* ---- schema_keywords.c ---- */

/* The types of `type`, as bits; all without it. "number" has the bit of integers too. */
unsigned cn_schema_types(const json_t *schema);
/* Whether a value has one of these types. */
bool cn_schema_has_type(const json_t *v, unsigned types);
/* The types of the keywords that only concern some. */
unsigned cn_schema_inferred_types(const json_t *schema);
/* Whether a schema has keywords beyond notes, $ref, allOf and those that are skipped. */
bool cn_schema_has_effect(const json_t *schema, unsigned skip);
/* Checks the keywords of a term: drops those that are not supported. */
cn_status cn_schema_check_keywords(const cn_schema_job *job, uint32_t part,
                                   const cn_schema_term *term);
/* Reads the counts of two keywords. Of several terms, the largest minimum and the smallest maximum;
 * *least and *most keep their values if the keywords are absent. */
cn_status cn_schema_range(const cn_schema_job *job, uint32_t part, const char *least_key,
                          const char *most_key, uint32_t *least, uint32_t *most);

/* ---- one type ---- */

cn_status cn_schema_emit_number(cn_schema_job *job, uint32_t part, cn_net_rule rule, bool whole);
cn_status cn_schema_emit_string(cn_schema_job *job, uint32_t part, cn_net_rule rule);
cn_status cn_schema_emit_array(cn_schema_job *job, uint32_t part, cn_net_rule rule);
cn_status cn_schema_emit_object(cn_schema_job *job, uint32_t part, cn_net_rule rule);

/* schema_text.c: the strings that are valid under terms, for names. *any: all are. CN_ERR_ARG with
 * net->status CN_OK: they cannot be found. */
cn_status cn_schema_text_dfa(const cn_schema_job *job, const cn_schema_terms *terms, cn_dfa *out,
                             bool *any);

/* schema_formats.c: the pattern of a format, and a shorter form of it. NULL: it has none. */
const char *cn_schema_format_pattern(const char *name);
const char *cn_schema_shorter_format(const char *pattern);

/* schema_values.c: a new array of the values of enum and const that are valid under all terms;
 * NULL: the terms have neither, or out of memory, which *status says. */
json_t *cn_schema_values(const cn_schema_job *job, const cn_schema_terms *terms, cn_status *status);
/* Sets *out to false if an array or object may be valid under all terms. */
cn_status cn_schema_are_scalar(cn_schema_job *job, const cn_schema_terms *terms, bool *out);
/* Whether two values are equal: 1 and 1.0 are. */
bool cn_schema_same_value(const json_t *a, const json_t *b);
/* Reads one of the values. */
cn_status cn_schema_emit_values(cn_schema_job *job, const json_t *values, cn_net_rule rule);

bool cn_schema_requires(const json_t *schema, const char *name); /* whether `required` names it */

/* schema_disjoint.c: whether it is plain that no value is valid under two of the schemas: from
 * their types, constants and members. *tag: a member by which they differ, which each object must
 * then have; NULL: none. *a, *b: two that may have a common value. */
bool cn_schema_are_disjoint(const cn_schema_job *job, json_t *schemas, const char **tag, size_t *a,
                            size_t *b);
