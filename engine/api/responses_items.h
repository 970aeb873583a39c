/* responses_items.h - the output items of a response: reasoning, messages and function calls, in
 * the order in which the model wrote them. Private to engine/api/. Owner: the caller. Thread: the
 * result's. Stage: 8.
 *
 * The output of a result only grows, so the items before the last never change, and the last one is
 * the beginning of what it will be. White space alone is not a message, unless the output has
 * nothing else. */
#pragma once

#include "engine/api/api_response.h"

typedef enum cn_item_kind { CN_OUT_REASONING, CN_OUT_MESSAGE, CN_OUT_CALL } cn_item_kind;

typedef struct cn_response_item {
    cn_item_kind kind;
    uint32_t index;   /* in the output */
    const char *text; /* [n] of reasoning or message; the arguments of a call */
    size_t n;
    uint32_t call;     /* of a call: its number */
    bool complete;     /* nothing will be added to it */
    bool cut;          /* the end of the output cut it off */
    size_t first, end; /* of a message: its tokens among the logprobs so far */
} cn_response_item;

/* Finds the item at a place, which skips white space. False: there is none yet, or if the output
 * has ended, none at all. */
bool cn_response_item_at(const cn_api_result *r, cn_response_place *place, cn_response_item *out);
/* Moves the place past a complete item. */
void cn_response_item_leave(const cn_response_item *item, cn_response_place *place);

/* The output has ended, and not as the model wanted: by a length or a limit. */
bool cn_response_is_cut(const cn_api_result *r);

/* The item as JSON, without its text and with "status": "in_progress". NULL: out of memory. */
json_t *cn_response_item_opened(const cn_api_result *r, const char *id,
                                const cn_response_item *item);
/* The item as JSON. The array "logprobs" of a message is empty and ends the item, before its
 * brackets. NULL: out of memory. */
json_t *cn_response_item_json(const cn_api_result *r, const char *id, const cn_response_item *item);

/* The part of a message or of reasoning with text[n]. NULL: out of memory. */
json_t *cn_response_part_json(const cn_api_result *r, const cn_response_item *item,
                              const char *text, size_t n);
/* The id of an item of the response `id`. */
enum { CN_ITEM_ID_BYTES = 192 };
void cn_response_item_id(char *out, const char *id, const cn_response_item *item);
