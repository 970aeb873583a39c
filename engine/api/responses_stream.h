/* responses_stream.h - a response as server-sent events, in OpenAI's order:
 *
 *   response.created, response.in_progress
 *   of each item: response.output_item.added
 *                 of a message or of reasoning: response.content_part.added (of a summary
 *                 response.reasoning_summary_part.added)
 *                 the deltas: response.output_text.delta, response.reasoning_text.delta,
 *                 response.reasoning_summary_text.delta or response.function_call_arguments.delta
 *                 the same with "done" in place of "delta", then of the part, then of the item
 *   response.completed, response.incomplete or response.failed
 *
 * The result keeps its output, because the last event repeats all of it: the events are a reading
 * of the growing output, so their deltas together are the response that is not streamed.
 *
 * Owner: the caller. Thread: the result's. Stage: 8. */
#pragma once

#include "engine/api/api_response.h"

/* Zero, then set id, model, created and digits of the writer. */
typedef struct cn_response_stream {
    cn_api_writer writer; /* of the last event; its place is that of the item being sent */
    enum {
        CN_STREAM_CREATED,
        CN_STREAM_IN_PROGRESS,
        CN_STREAM_ITEM, /* waits for the next item, or for the end */
        CN_STREAM_PART,
        CN_STREAM_DELTAS,
        CN_STREAM_TEXT_DONE,
        CN_STREAM_PART_DONE,
        CN_STREAM_ITEM_DONE,
        CN_STREAM_LAST,
        CN_STREAM_DONE
    } step;
    uint64_t n_events; /* written or begun */
    cn_response_place place;
    size_t sent;     /* bytes of the item's text */
    size_t n_tokens; /* of the logprobs, those before the next delta's */
    /* The event being written has the logprobs of tokens [first, until), as far as `token`, and
     * then `rest`. NULL: no event is being written. */
    size_t first, token, until;
    const char *rest;
} cn_response_stream;

/* Appends the next events, in pieces, until they have n_bytes or there is no new output. Without
 * the last event if the result has failed. */
cn_status cn_response_stream_write(const cn_api_result *r, cn_response_stream *s, cn_buf *out,
                                   size_t n_bytes);

/* Appends the end of the event that is being written, and response.failed as the last one. `code`:
 * one of OpenAI's for responses. r may have any state. */
cn_status cn_response_stream_fail(const cn_api_result *r, cn_response_stream *s, const char *code,
                                  const char *message, cn_buf *out);
