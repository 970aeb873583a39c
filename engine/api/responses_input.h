/* responses_input.h - the input of /v1/responses as messages of a chat. Private to engine/api/.
 * Owner: cn_api_request, which owns the variables. Thread: any. Stage: 1.
 *
 * Items that one answer of a model consists of (reasoning, message, function calls) become one
 * assistant message, as the chat template wrote them. */
#pragma once

#include <jansson.h>

#include "engine/api/api_unknown.h"

/* Sets "messages" of `variables`: `instructions`, unless it is NULL or null, as a system message,
 * and the items of `input`, or its text. CN_ERR_ARG names the item, and for what is not supported
 * what to send instead. */
cn_status cn_responses_messages(json_t *variables, json_t *instructions, json_t *input,
                                cn_api_unknown *unknown, json_t **warnings);
