/* batch_input.h - a line of a batch file as a request. A line is OpenAI's batch line
 *   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 * or, with a prompt field, any JSON object that has the prompt in that field: a string, sent as one
 * user message, or an array of messages. It may also have an id and a reference answer.
 *
 * Owner: the caller. Thread: one. Stage: 1.
 *
 * Parsing has two steps, identify and read. A line that is answered already needs only the
 * first. */
#pragma once

#include "engine/api/api_request.h"
#include "engine/base/base.h"
#include "engine/base/line_reader.h"
#include "engine/offline/id_set.h"

enum {
    CN_BATCH_MAX_LINE_BYTES = 32 << 20,
    CN_BATCH_MAX_VALUES = 1 << 20, /* JSON values of a line */
    CN_BATCH_MAX_DEPTH = CN_API_MAX_DEPTH + 1 /* the body is one level down */
};

typedef struct cn_batch_format {
    const char *prompt_field; /* NULL: OpenAI batch lines */
    const char *id_field;     /* with a prompt field; NULL: the id is the line number */
    const char *answer_field; /* NULL: no reference answers */
} cn_batch_format;

typedef struct cn_batch_item {
    uint64_t line;
    cn_id id;        /* hash of the custom_id, or of number and text of the line if that has none */
    char *custom_id; /* NULL: the line has none */
    /* Hash of the request, independent of the JSON's formatting: endpoint and body, or the prompt.
     * 0: unknown, because the line is not an object, or out of memory. */
    uint64_t request_hash;
    char *reference; /* the reference answer, or NULL */
    json_t *object;  /* the line, after step 2 without what the request does not point into */
    cn_api_request request;
} cn_batch_item;     /* zero-initialise */

/* Step 1: sets object, request_hash, custom_id, reference and id. CN_ERR_ARG: the line is invalid.
 * `line` and `id` are always set, the other fields as far as they could be read. */
cn_status cn_batch_item_identify(cn_batch_item *item, const cn_line *line,
                                 const cn_batch_format *format);

/* Sets the object of a line of an earlier item, for step 2. The text is that of its line. */
cn_status cn_batch_item_parse(cn_batch_item *item, const char *text, size_t n);

/* Sets the id of an item to the hash of its line, because an earlier line has its custom_id. */
void cn_batch_item_use_line_id(cn_batch_item *item, const cn_line *line);

/* Checks that an identified OpenAI line names this endpoint and has a body. Does not parse the
 * body. CN_ERR_ARG: the line is invalid. */
cn_status cn_batch_item_check(cn_batch_item *item, cn_api_endpoint endpoint);

/* Step 2: parses the request and sets its custom_id and class. CN_ERR_ARG: the line is invalid. */
cn_status cn_batch_item_read(cn_batch_item *item, const cn_batch_format *format,
                             const cn_api_defaults *defaults);

/* Frees what only submission needs: the line's JSON and the request. */
void cn_batch_item_drop_request(cn_batch_item *item);
void cn_batch_item_free(cn_batch_item *item); /* leaves an empty one */
