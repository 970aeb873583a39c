/* responses_request.h - the members of /v1/responses that chats do not have. Private to
 * engine/api/.
 * Owner: cn_api_request. Thread: any. Stage: 1.
 *
 * Nothing is stored, whatever "store" says. A member that needs storage, or a tool that the server
 * would run, is refused by its name. Items and tools become those of a chat. */
#pragma once

#include "engine/api/api_request.h"

/* Reads the member `key` with the value v. *known: it is one of /v1/responses alone. */
cn_status cn_responses_set(cn_api_request *r, const char *key, json_t *v, bool *known);

/* After all members: reads those that depend on each other, and sets r->repeated. *key: the member
 * at fault. */
cn_status cn_responses_finish(cn_api_request *r, json_t *body, cn_opt_tool_parser parser,
                              const char **key);
