/* chat_params.h - reads the messages of a request's chat. Thread: any. */
#pragma once

#include <jansson.h>

#include "engine/cinch.h"

static inline size_t chat_size(const cn_request_params *p)
{
    return json_array_size(json_object_get(p->chat, "messages"));
}

static inline json_t *chat_member(const cn_request_params *p, size_t i, const char *key)
{
    return json_object_get(json_array_get(json_object_get(p->chat, "messages"), i), key);
}

/* A member as text; NULL: it is absent or no string. */
static inline const char *chat_text(const cn_request_params *p, size_t i, const char *key)
{
    return json_string_value(chat_member(p, i, key));
}
