/* batch_input.h - a line of a batch file as a request: OpenAI's batch lines
 *   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 * or, with a prompt field, any JSON object that has the prompt under that name (text, sent as one
 * user message, or an array of messages) and, if wanted, an id and a reference answer.
 *
 * Owner: the caller. Thread: one. Stage: 1.
 *
 * Reading is in two steps, so that a line which was answered before costs no more than its id:
 * identify, then read. */
#ifndef CN_BATCH_INPUT_H
#define CN_BATCH_INPUT_H

#include "engine/api/api_request.h"
#include "engine/base.h"
#include "engine/offline/id_set.h"
#include "engine/offline/line_reader.h"

enum {
    CN_BATCH_MAX_LINE_BYTES = 32 << 20,
    CN_BATCH_MAX_DEPTH = CN_API_MAX_DEPTH + 1 /* the body is one level down */
};

typedef struct cn_batch_format {
    const char *prompt_field; /* NULL: OpenAI batch lines */
    const char *id_field;     /* with a prompt field; NULL: the id is the line number */
    const char *answer_field; /* NULL: no reference answers */
} cn_batch_format;

typedef struct cn_batch_item {
    uint64_t line;
    cn_id id;        /* of the custom_id; of number and text of a line that has none of its own */
    char *custom_id; /* NULL: the line has none */
    /* Hash of what the line asks, however its JSON is spelled: endpoint and body, or the prompt. 0:
     * unknown, for it has no object, or memory was out. */
    uint64_t asked;
    char *reference; /* the reference answer, or NULL */
    json_t *object;  /* the line */
    cn_api_request request;
    cn_buf at_fault; /* after a failure: the field, or empty */
} cn_batch_item;     /* zero-initialise */

/* Step 1: object, what it asks, custom_id, reference, id. CN_ERR_ARG: the line is at fault; line
 * and id are set in any case, the other fields as far as they could be read. */
cn_status cn_batch_item_identify(cn_batch_item *item, const cn_line *line,
                                 const cn_batch_format *format);

/* Gives an item whose custom_id another line has the id of its own line. */
void cn_batch_item_use_line_id(cn_batch_item *item, const cn_line *line);

/* Whether an identified OpenAI line asks this endpoint and has a body, without reading that.
 * CN_ERR_ARG: the line is at fault. */
cn_status cn_batch_item_check(cn_batch_item *item, cn_api_endpoint endpoint);

/* Step 2: the request, with custom_id and class set. CN_ERR_ARG: the line is at fault. */
cn_status cn_batch_item_read(cn_batch_item *item, const cn_batch_format *format,
                             const cn_api_defaults *defaults);

/* Drops what only submitting needs: the line's JSON and the request. */
void cn_batch_item_drop_request(cn_batch_item *item);
void cn_batch_item_free(cn_batch_item *item); /* leaves an empty one */

#endif
