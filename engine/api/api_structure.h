/* api_structure.h - the members of a body that ask for structured output: OpenAI's response_format
 * and tool_choice, and vLLM's structured_outputs. Internal to engine/api/.
 *
 * Thread: any. Stage: 1. */
#ifndef CN_API_STRUCTURE_H
#define CN_API_STRUCTURE_H

#include "engine/api/api_request.h"

/* Set r->params.structure. CN_ERR_ARG names the member. The engine checks schema and expression. */
cn_status cn_api_set_response_format(cn_api_request *r, const char *key, json_t *v);
cn_status cn_api_set_structured_outputs(cn_api_request *r, const char *key, json_t *v);
/* After all fields and r->tool_parser. "required" and a named function make the answer calls. */
cn_status cn_api_set_tool_choice(cn_api_request *r, const char *key, json_t *v);

/* After these: sets the white space of the structure. */
cn_status cn_api_finish_structure(cn_api_request *r, const char *key);

#endif
