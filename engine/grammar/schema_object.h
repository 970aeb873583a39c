/* schema_object.h - the members of an object, which schema_members.c finds and schema_object.c
 * emits. Internal to them and to schema_names.c. */
#pragma once

#include "engine/grammar/schema_parts.h"

enum { CN_SCHEMA_MAX_GROUPS = 17 };

typedef struct cn_schema_member {
    char *text; /* the name as a JSON string; from json_dumps */
    uint32_t value;
    bool required;
} cn_schema_member;

/* Members of other names: rules of name and value. */
typedef struct cn_schema_group {
    uint32_t name, value;
} cn_schema_group;

typedef struct cn_schema_members {
    cn_schema_member *list;
    size_t n;
    cn_schema_group groups[CN_SCHEMA_MAX_GROUPS];
    uint32_t n_groups;
    uint32_t least, most; /* members; most UINT32_MAX: no limit */
} cn_schema_members;

/* Zero *out first; free it with cn_schema_members_free, also after a failure. */
cn_status cn_schema_find_members(cn_schema_job *job, uint32_t part, cn_schema_members *out);
void cn_schema_members_free(cn_schema_members *m);

/* A rule that reads a string which is none of the names; they are as in JSON without the quotes,
 * and are sorted. */
cn_status cn_schema_other_names(cn_schema_job *job, uint32_t part, cn_net_word *names, size_t n,
                                uint32_t *rule);
