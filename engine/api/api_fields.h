/* api_fields.h - readers of members that the chat and the responses routes share. Private to
 * engine/api/. Thread: any. Stage: 1. */
#pragma once

#include "engine/api/api_request.h"

/* The maximum length of the output under the name `key`, a literal. v: NULL and null are fine. */
cn_status cn_api_set_length(cn_api_request *r, const char *key, json_t *v);
/* The effort v as variables of the chat template. `key` names it in an error. */
cn_status cn_api_set_effort(cn_api_request *r, const char *key, json_t *v);
/* After r->chat has the tools: sets the parser and reads tool_choice in the form of chats.
 * *key: the member at fault. */
cn_status cn_api_finish_tools(cn_api_request *r, json_t *choice, cn_opt_tool_parser parser,
                              const char **key);
