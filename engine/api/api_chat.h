/* api_chat.h - the fields of a chat body that become variables of the chat template.
 * Private to engine/api/. Owner: cn_api_request, which owns the variables. Stage: 1.
 *
 * Messages are copied in the form that templates expect: "developer" becomes "system", reasoning is
 * in reasoning_content and reasoning, the arguments of tool calls are objects where they are JSON,
 * and an absent content is null. */
#pragma once

#include <jansson.h>

#include "engine/api/api_request.h"

/* Each reads the field `key` with the value v and sets members of r->chat. CN_ERR_ARG names the
 * field, the value and what was expected. */
cn_status cn_api_chat_messages(cn_api_request *r, const char *key, json_t *v);
cn_status cn_api_chat_documents(cn_api_request *r, const char *key, json_t *v);
cn_status cn_api_chat_switch(cn_api_request *r, const char *key, json_t *v);
cn_status cn_api_chat_kwargs(cn_api_request *r, const char *key, json_t *v);
cn_status cn_api_chat_tools(cn_api_request *r, const char *key, json_t *v);

/* Fields that exclude each other. */
cn_status cn_api_chat_check(const json_t *variables);

/* "KEY: expected WANT, got FOUND". */
cn_status cn_api_refuse(const char *key, const char *want, const json_t *found);
