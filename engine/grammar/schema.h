/* schema.h - a JSON Schema as a network that reads JSON texts valid under it.
 *
 * The network reads a part of the valid texts: members come in the order of `properties`; where
 * additionalProperties is absent and `properties` is not, there are no others.
 * docs/STRUCTURED_OUTPUT.md lists the keywords. It reads an invalid text only where a keyword is
 * not enforced, which a warning names with its place.
 *
 * Thread: any; no state. */
#pragma once

#include <jansson.h>

#include "engine/grammar/json_rules.h"

enum {
    CN_SCHEMA_MAX_BYTES = 64 << 10, /* of its text */
    CN_SCHEMA_MAX_DEPTH = 64,
    CN_SCHEMA_MAX_PARTS = 4096 /* schemas inside it */
};

/* Adds rules to a network, and makes `rule`, which is empty, read the schema. `shared` is from
 * cn_json_rules_add. What cannot be enforced is noted by cn_net_warn, or with `strict` is an error.
 * CN_ERR_ARG names the keyword and its place. */
cn_status cn_schema_emit(json_t *schema, bool strict, cn_net *net, const cn_json_rules *shared,
                         uint32_t rule);
