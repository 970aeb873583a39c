/* api_structure.h - the members of a body that ask for structured output: OpenAI's response_format
 * and tool_choice, and vLLM's structured_outputs. Internal to engine/api/.
 *
 * Thread: any. Stage: 1. */
#pragma once

#include "engine/api/api_request.h"

/* Set r->params.structure. CN_ERR_ARG names the member. The engine checks schema and expression. */
cn_status cn_api_set_response_format(cn_api_request *r, const char *key, json_t *v);
cn_status cn_api_set_structured_outputs(cn_api_request *r, const char *key, json_t *v);
/* Before r->tool_parser is set. With a choice that requires calls, forgets a response_format, which
 * is the form of a message, and warns. CN_ERR_ARG with --unknown-fields refuse. */
cn_status cn_api_drop_message_format(cn_api_request *r, const json_t *choice);
/* Whether the answer is calls or JSON: `choice` is "auto" and a response_format asks for JSON. */
bool cn_api_is_either(const cn_api_request *r, const json_t *choice);
/* After all fields and r->tool_parser. "required" and a named function make the answer calls, and
 * "auto" beside a response_format calls or JSON. */
cn_status cn_api_set_tool_choice(cn_api_request *r, const char *key, json_t *v);

/* After these: sets the white space of the structure. */
cn_status cn_api_finish_structure(cn_api_request *r, const char *key);
