/* schema_parts.h - the compilation of one schema: its parts, and the files that emit them. Internal
 * to schema.c, schema_nested.c and schema_disjoint.c. */
#ifndef CN_SCHEMA_PARTS_H
#define CN_SCHEMA_PARTS_H

#include "engine/grammar/json_rules.h"
#include "engine/grammar/schema.h"

#define CN_SCHEMA_NO_INDEX SIZE_MAX
enum { CN_SCHEMA_TABLE = 4 * CN_SCHEMA_MAX_PARTS };

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

/* A schema inside the schema, and where it is, for messages: keyword, then name or index. */
typedef struct cn_schema_part {
    json_t *schema;
    uint32_t rule, parent;
    const char *keyword, *name;
    size_t index; /* CN_SCHEMA_NO_INDEX: none */
} cn_schema_part;

typedef struct cn_schema_job {
    json_t *root;
    cn_net *net;
    cn_json_rules rules;
    cn_schema_part *parts; /* [CN_SCHEMA_MAX_PARTS]; 0 is the root */
    uint32_t n_parts;
    uint32_t *table; /* [CN_SCHEMA_TABLE] finds the part of a schema; 0: none */
} cn_schema_job;

/* CN_ERR_ARG with the place of the part. */
cn_status cn_schema_wrong(const cn_schema_job *job, uint32_t part, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The rule of a schema, which becomes a part if it is none yet. `place` has parent, keyword, name
 * and index. */
cn_status cn_schema_rule(cn_schema_job *job, json_t *schema, cn_schema_part place, uint32_t *rule);

/* Follows a $ref, a string of the form #/a/b/0. NULL when there is nothing. */
json_t *cn_schema_find(const cn_schema_job *job, const json_t *ref);

/* Bytes of a value's text, about: what a loop over it costs. */
size_t cn_schema_size(const json_t *v);

/* Returns the bit of a type's name; 0: no type has it. */
unsigned cn_schema_type(const char *name);

/* Returns whether a value has one of these types. */
bool cn_schema_has_type(const json_t *v, unsigned types);

/* Reads a whole number; *out keeps its value if the keyword is absent. */
cn_status cn_schema_count(const cn_schema_job *job, uint32_t part, const char *key, uint32_t *out);

/* schema_nested.c */
cn_status cn_schema_emit_object(cn_schema_job *job, uint32_t part, cn_net_rule rule);
cn_status cn_schema_emit_array(cn_schema_job *job, uint32_t part, cn_net_rule rule);
bool cn_schema_requires(const json_t *schema, const char *name); /* whether `required` names it */

/* schema_disjoint.c: fails with the numbers of two schemas under both of which a value may be
 * valid, or if it is not plain from their types, constants and required members that none is. */
cn_status cn_schema_check_one_of(const cn_schema_job *job, uint32_t part, json_t *schemas);

#endif
