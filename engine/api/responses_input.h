/* responses_input.h - the input of /v1/responses as messages of a chat. Private to engine/api/.
 * Owner: cn_api_request, which owns the variables. Thread: any. Stage: 1.
 *
 * Items that one answer of a model consists of (reasoning, message, function calls) become one
 * assistant message, as the chat template wrote them. */
#pragma once

#include <jansson.h>

#include "engine/api/api_request.h"

/* Sets "messages" of r->chat: `instructions`, unless it is NULL or null, as a system message,
 * and the items of `input`, or its text. CN_ERR_ARG names the item, and for what is not supported
 * what to send instead. */
cn_status cn_responses_messages(cn_api_request *r, json_t *instructions, json_t *input);
/* Whether v is absent, null, false or empty. */
bool cn_responses_is_nothing(const json_t *v);
