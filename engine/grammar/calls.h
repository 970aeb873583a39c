/* calls.h - calls of functions as a network, for requests whose answer must be tool calls.
 *
 * The form is a JSON object:
 *   begin, between, end  the text before, between and after calls
 *   arguments            the name of the member that has the arguments
 *   one                  true: exactly one call, false: one or more
 *   functions            [{"name": ..., "parameters": a JSON Schema, "strict": true}]; no
 *                        parameters: no arguments; strict: as in cn_structure
 *   message              if set, a JSON Schema: the text may be a value of it in place of calls
 *   message_strict       true: strict, for the message
 *
 * A call is {"name": NAME, ARGUMENTS: VALUE}, where VALUE is valid under the parameters of NAME.
 * White space is that of cn_structure. Around a call a line break may stand in any case: models
 * write one between their tags and the call.
 *
 * Thread: any; no state. */
#pragma once

#include <jansson.h>

#include "engine/grammar/network.h"

enum { CN_CALLS_MAX_BYTES = 256 << 10 }; /* of the form's text */

/* Makes the root rule, which must be the only one, read the form. CN_ERR_ARG names the function and
 * the keyword of its parameters that is not supported. */
cn_status cn_calls_emit(json_t *form, const char *whitespace, cn_net *net);
