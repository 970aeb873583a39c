/* schema.h - a JSON Schema as a network that reads JSON texts valid under it.
 *
 * The network reads a part of the valid texts, never an invalid one: members come in the order of
 * `properties`; where additionalProperties is absent and `properties` is not, there are no others.
 * docs/STRUCTURED_OUTPUT.md lists the keywords. A keyword that is not supported is refused by name,
 * with its place.
 *
 * Thread: any; no state. */
#ifndef CN_SCHEMA_H
#define CN_SCHEMA_H

#include <jansson.h>

#include "engine/grammar/network.h"

enum {
    CN_SCHEMA_MAX_BYTES = 64 << 10, /* of its text */
    CN_SCHEMA_MAX_DEPTH = 64,
    CN_SCHEMA_MAX_PARTS = 4096 /* schemas inside it */
};

/* Adds rules to a network whose root rule is the only one, and makes the root read the schema.
 * CN_ERR_ARG names the keyword and its place. */
cn_status cn_schema_emit(json_t *schema, cn_net *net);
/* The same for any JSON object. */
cn_status cn_schema_emit_any_object(cn_net *net);

#endif
