/* responses_stream.c - see responses_stream.h. */
#include "engine/api/responses_stream.h"

#include "engine/api/api_result_state.h"
#include "engine/api/responses_items.h"
#include "engine/api/responses_write.h"
#include "engine/base/json.h"

/* ---- events ---- */

/* {"type", "sequence_number"}; the caller adds members. */
static json_t *new_event(cn_response_stream *s, const char *type)
{
    return json_pack("{s:s, s:I}", "type", type, "sequence_number", (json_int_t)s->n_events++);
}

/* The same, about an item. */
static json_t *item_event(cn_response_stream *s, const cn_response_item *item, const char *type)
{
    char id[CN_ITEM_ID_BYTES];
    cn_response_item_id(id, s->writer.id, item);
    return json_pack("{s:s, s:I, s:s, s:i}", "type", type, "sequence_number",
                     (json_int_t)s->n_events++, "item_id", id, "output_index", (int)item->index);
}

/* Appends an event without its last n_cut characters, and releases it. */
static cn_status begin_event(cn_response_stream *s, json_t *event, size_t n_cut, cn_buf *out)
{
    const char *type = json_string_value(json_object_get(event, "type"));
    const cn_status status = type ? cn_buf_addf(out, "event: %s\ndata: ", type)
                                  : cn_fail(CN_ERR_MEMORY, "out of memory for an event");
    if (status != CN_OK) {
        json_decref(event);
        return status;
    }
    return cn_api_add_json(out, s->writer.digits, event, 0, n_cut);
}

static cn_status put_event(cn_response_stream *s, json_t *event, cn_buf *out)
{
    CN_TRY(begin_event(s, event, 0, out));
    return cn_buf_addf(out, "\n\n");
}

/* Begins an event whose JSON ends with the logprobs of tokens [first, end), which are empty in it,
 * and the brackets `rest`. */
static cn_status begin_tokens(cn_response_stream *s, json_t *event, size_t first, size_t end,
                              const char *rest, cn_buf *out)
{
    CN_TRY(begin_event(s, event, strlen(rest), out));
    s->first = s->token = first;
    s->until = end;
    s->rest = rest;
    return CN_OK;
}

/* Appends some logprobs of the event being written, or its end. */
static cn_status go_on(const cn_api_result *r, cn_response_stream *s, cn_buf *out)
{
    const char *rest = s->rest;
    if (s->token < s->until)
        return cn_responses_write_logprobs(r, s->writer.digits, s->first, &s->token, s->until, out);
    s->rest = NULL;
    return cn_buf_addf(out, "%s\n\n", rest);
}

/* ---- an item ---- */

static const struct item_events {
    const char *delta, *done, *part_added, *part_done;
    const char *part_index; /* the member with the number of the part */
    const char *text;       /* the member of `done` with the whole text */
} item_events[] =
    {
        [CN_OUT_REASONING] = {"response.reasoning_text.delta", "response.reasoning_text.done",
                              "response.content_part.added", "response.content_part.done",
                              "content_index", "text"},
        [CN_OUT_MESSAGE] = {"response.output_text.delta", "response.output_text.done",
                            "response.content_part.added", "response.content_part.done",
                            "content_index", "text"},
        [CN_OUT_CALL] = {"response.function_call_arguments.delta",
                         "response.function_call_arguments.done", NULL, NULL, NULL, "arguments"},
},
  summary_events = {"response.reasoning_summary_text.delta",
                    "response.reasoning_summary_text.done",
                    "response.reasoning_summary_part.added",
                    "response.reasoning_summary_part.done",
                    "summary_index",
                    "text"};

static const struct item_events *events_of(const cn_api_result *r, const cn_response_item *item)
{
    return item->kind == CN_OUT_REASONING && r->summarizes ? &summary_events
                                                           : &item_events[item->kind];
}

static json_t *part_event(const cn_api_result *r, cn_response_stream *s,
                          const cn_response_item *item, const char *type)
{
    const char *index = events_of(r, item)->part_index;
    json_t *o = item_event(s, item, type);
    if (o && index) json_object_set_new(o, index, json_integer(0));
    return o;
}

static cn_status put_added(const cn_api_result *r, cn_response_stream *s,
                           const cn_response_item *item, cn_buf *out)
{
    json_t *o = new_event(s, "response.output_item.added");
    if (o) json_object_set_new(o, "output_index", json_integer(item->index));
    if (o) json_object_set_new(o, "item", cn_response_item_opened(r, s->writer.id, item));
    s->step = events_of(r, item)->part_added ? CN_STREAM_PART : CN_STREAM_DELTAS;
    s->sent = 0;
    s->n_tokens = item->first;
    return put_event(s, o, out);
}

static cn_status put_part(const cn_api_result *r, cn_response_stream *s,
                          const cn_response_item *item, cn_buf *out)
{
    json_t *o = part_event(r, s, item, events_of(r, item)->part_added);
    if (o) json_object_set_new(o, "part", cn_response_part_json(r, item, "", 0));
    s->step = CN_STREAM_DELTAS;
    return put_event(s, o, out);
}

/* *more: there was something new. The logprobs of tokens whose text is not there yet come with the
 * next text, or at the end. */
static cn_status put_delta(const cn_api_result *r, cn_response_stream *s,
                           const cn_response_item *item, cn_buf *out, bool *more)
{
    const bool message = item->kind == CN_OUT_MESSAGE;
    const bool flush = message && item->complete && s->n_tokens < item->end;
    if (s->sent == item->n && !flush) {
        if (item->complete) s->step = CN_STREAM_TEXT_DONE;
        *more = item->complete;
        return CN_OK;
    }
    json_t *o = part_event(r, s, item, events_of(r, item)->delta);
    if (o) json_object_set_new(o, "delta", json_stringn(item->text + s->sent, item->n - s->sent));
    s->sent = item->n;
    if (!message) return put_event(s, o, out);
    const size_t first = s->n_tokens;
    s->n_tokens = item->end;
    if (o) json_object_set_new(o, "logprobs", json_array());
    return begin_tokens(s, o, first, item->end, "]}", out);
}

static cn_status put_text_done(const cn_api_result *r, cn_response_stream *s,
                               const cn_response_item *item, cn_buf *out)
{
    const struct item_events *names = events_of(r, item);
    json_t *o = part_event(r, s, item, names->done);
    if (o && item->kind == CN_OUT_CALL)
        json_object_set(o, "name", r->choices[0].tools.calls[item->call].name);
    if (o) json_object_set_new(o, names->text, json_stringn(item->text, item->n));
    s->step = names->part_done ? CN_STREAM_PART_DONE : CN_STREAM_ITEM_DONE;
    if (item->kind != CN_OUT_MESSAGE) return put_event(s, o, out);
    if (o) json_object_set_new(o, "logprobs", json_array());
    return begin_tokens(s, o, item->first, item->end, "]}", out);
}

static cn_status put_part_done(const cn_api_result *r, cn_response_stream *s,
                               const cn_response_item *item, cn_buf *out)
{
    json_t *o = part_event(r, s, item, events_of(r, item)->part_done);
    if (o) json_object_set_new(o, "part", cn_response_part_json(r, item, item->text, item->n));
    s->step = CN_STREAM_ITEM_DONE;
    if (item->kind != CN_OUT_MESSAGE) return put_event(s, o, out);
    return begin_tokens(s, o, item->first, item->end, "]}}", out);
}

static cn_status put_item_done(const cn_api_result *r, cn_response_stream *s,
                               const cn_response_item *item, cn_buf *out)
{
    json_t *o = new_event(s, "response.output_item.done");
    if (o) json_object_set_new(o, "output_index", json_integer(item->index));
    if (o) json_object_set_new(o, "item", cn_response_item_json(r, s->writer.id, item));
    s->step = CN_STREAM_ITEM;
    cn_response_item_leave(item, &s->place);
    if (item->kind != CN_OUT_MESSAGE) return put_event(s, o, out);
    return begin_tokens(s, o, item->first, item->end, "]}]}}", out);
}

/* ---- the response ---- */

/* An event with a response without output. Takes over error. */
static cn_status put_empty(const cn_api_result *r, cn_response_stream *s, const char *type,
                           const char *status, json_t *error, cn_buf *out)
{
    json_t *o = new_event(s, type);
    if (o) json_object_set_new(o, "response", json_null());
    const cn_status begun = begin_event(s, o, strlen("null}"), out);
    if (begun != CN_OK) {
        json_decref(error);
        return begun;
    }
    CN_TRY(cn_responses_write_empty(r, &s->writer, status, error, out));
    return cn_buf_addf(out, "}\n\n");
}

static cn_status put_created(const cn_api_result *r, cn_response_stream *s, cn_buf *out)
{
    const bool first = s->step == CN_STREAM_CREATED;
    s->step = first ? CN_STREAM_IN_PROGRESS : CN_STREAM_ITEM;
    return put_empty(r, s, first ? "response.created" : "response.in_progress", "in_progress",
                     json_null(), out);
}

/* Appends the next piece of the last event. */
static cn_status put_last(const cn_api_result *r, cn_response_stream *s, size_t n_bytes,
                          cn_buf *out)
{
    bool done = false;
    if (s->writer.state == CN_WRITE_HEAD) {
        const bool whole = strcmp(cn_responses_status(r), "completed") == 0;
        json_t *o = new_event(s, whole ? "response.completed" : "response.incomplete");
        if (o) json_object_set_new(o, "response", json_null());
        CN_TRY(begin_event(s, o, strlen("null}"), out));
    }
    CN_TRY(cn_responses_write(r, &s->writer, out, n_bytes, &done));
    if (!done) return CN_OK;
    s->step = CN_STREAM_DONE;
    return cn_buf_addf(out, "}\n\n");
}

/* Appends one event or piece. *more: there was one. */
static cn_status put_next(const cn_api_result *r, cn_response_stream *s, size_t n_bytes,
                          cn_buf *out, bool *more)
{
    cn_response_item item;
    *more = s->step != CN_STREAM_DONE;
    if (s->rest) return go_on(r, s, out);
    if (s->step <= CN_STREAM_IN_PROGRESS) return put_created(r, s, out);
    if (s->step >= CN_STREAM_LAST) return *more ? put_last(r, s, n_bytes, out) : CN_OK;
    if (!cn_response_item_at(r, &s->place, &item)) {
        CN_ASSERT(s->step == CN_STREAM_ITEM);
        *more = r->done && !r->error && !r->cancelled;
        if (*more) s->step = CN_STREAM_LAST;
        return CN_OK;
    }
    switch (s->step) {
    case CN_STREAM_ITEM: return put_added(r, s, &item, out);
    case CN_STREAM_PART: return put_part(r, s, &item, out);
    case CN_STREAM_DELTAS: return put_delta(r, s, &item, out, more);
    case CN_STREAM_TEXT_DONE: return put_text_done(r, s, &item, out);
    case CN_STREAM_PART_DONE: return put_part_done(r, s, &item, out);
    default: return put_item_done(r, s, &item, out);
    }
}

cn_status cn_response_stream_write(const cn_api_result *r, cn_response_stream *s, cn_buf *out,
                                   size_t n_bytes)
{
    const size_t most = n_bytes < SIZE_MAX - out->len ? out->len + n_bytes : SIZE_MAX;
    bool more = r->n_tokens > 0 || r->done; /* the reply begins with the first output */
    while (more && out->len < most) CN_TRY(put_next(r, s, most - out->len, out, &more));
    return CN_OK;
}

cn_status cn_response_stream_fail(const cn_api_result *r, cn_response_stream *s, const char *code,
                                  const char *message, cn_buf *out)
{
    while (s->rest) CN_TRY(go_on(r, s, out));
    bool done = s->step == CN_STREAM_DONE;
    if (s->step == CN_STREAM_LAST && s->writer.state != CN_WRITE_HEAD) {
        CN_TRY(put_last(r, s, SIZE_MAX, out));
        done = true;
    }
    s->step = CN_STREAM_DONE;
    if (done) return CN_OK;
    return put_empty(r, s, "response.failed", "failed",
                     json_pack("{s:s, s:o}", "code", code, "message", cn_json_text(message)), out);
}
