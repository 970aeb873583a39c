/* test_responses_stream.c - the output of /v1/responses: items in the order of the model, whole
 * bodies, and streams whose events are in OpenAI's order and together say what the whole body
 * says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/api/responses_stream.h"
#include "engine/offline/batch_line.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/result_body.h"

/* A token is one byte of text; the ids of bytes that no text has are special. */
static const char *token_bytes(void *user, uint32_t token, size_t *n, bool *special)
{
    static char bytes[256];
    (void)user;
    bytes[token & 255] = (char)token;
    *special = token == 1;
    *n = 1;
    return &bytes[token & 255];
}

typedef struct request_form {
    bool logprobs, summarizes, one_call;
} request_form;

static cn_api_result *new_result(request_form f)
{
    cn_api_request q = {
        .endpoint = CN_API_RESPONSES,
        .params.sampling = {.n = 1, .logprobs = f.logprobs ? 1 : -1, .skip_special_tokens = true},
        .prompt_logprobs = -1,
        .n_prompts = 1,
        .summarizes = f.summarizes,
        .one_tool_call = f.one_call,
        .tool_parser = CN_OPT_TOOLS_HERMES};
    cn_api_result *out;
    q.chat = json_loads("{\"tools\": [{\"function\": {\"name\": \"f\"}}, {\"function\": "
                        "{\"name\": \"g\"}}]}",
                        0, NULL);
    static const char repeated[] = "\"store\":false";
    assert_int_equal(cn_buf_add(&q.repeated, repeated, sizeof repeated - 1), CN_OK);
    assert_int_equal(cn_api_result_create(&out, &q, token_bytes, NULL), CN_OK);
    cn_buf_free(&q.repeated);
    json_decref(q.chat);
    return out;
}

static const cn_usage usage = {
    .prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 3, .reasoning_tokens = 1};

/* Adds one event: a piece of reasoning, of text, or both. */
static void add(cn_api_result *r, const char *reasoning, size_t n_reasoning, const char *text,
                size_t n_text, cn_finish finish)
{
    enum { MOST = 256 };
    cn_token_logprobs logprobs[MOST];
    uint32_t tokens[MOST], n = 0;
    for (size_t i = 0; i < n_reasoning + n_text; i++) {
        tokens[n] = (unsigned char)(i < n_reasoning ? reasoning[i] : text[i - n_reasoning]);
        logprobs[n] = (cn_token_logprobs){.chosen = {.token = tokens[n], .logprob = -0.5f}};
        n++;
    }
    cn_api_result_add(r, &(cn_event){.reasoning = reasoning,
                                     .reasoning_len = n_reasoning,
                                     .text = text,
                                     .text_len = n_text,
                                     .tokens = tokens,
                                     .n_tokens = n ? n : 1,
                                     .logprobs = n ? logprobs : NULL,
                                     .finish = finish,
                                     .stop_token = -1,
                                     .usage = finish ? &usage : NULL,
                                     .last = finish != 0});
}

static void add_text(cn_api_result *r, const char *reasoning, const char *text, cn_finish finish)
{
    add(r, reasoning, strlen(reasoning), text, strlen(text), finish);
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    if (!text) fail_msg("no text %s", key);
    return text;
}

static json_t *item_of(const json_t *body, size_t i)
{
    return json_array_get(json_object_get(body, "output"), i);
}

static json_t *part_of(const json_t *item, const char *key)
{
    return json_array_get(json_object_get(item, key), 0);
}

/* ---- whole bodies ---- */

static void a_body_has_openai_members(void **state)
{
    (void)state;
    cn_api_result *r = new_result((request_form){0});
    add_text(r, "why", "", CN_FINISH_NONE);
    add_text(r, "", "4", CN_FINISH_NONE);
    add_text(r, "", "2", CN_FINISH_STOP);
    json_t *b = result_body(r, "77", "m", 17);
    assert_string_equal(text_of(b, "id"), "resp_77");
    assert_string_equal(text_of(b, "object"), "response");
    assert_string_equal(text_of(b, "status"), "completed");
    assert_string_equal(text_of(b, "model"), "m");
    assert_true(json_is_false(json_object_get(b, "store")));
    assert_true(json_is_null(json_object_get(b, "error")));
    assert_true(json_is_null(json_object_get(b, "incomplete_details")));
    assert_int_equal(json_array_size(json_object_get(b, "output")), 2);
    assert_string_equal(text_of(item_of(b, 0), "type"), "reasoning");
    assert_string_equal(text_of(part_of(item_of(b, 0), "content"), "text"), "why");
    assert_string_equal(text_of(item_of(b, 1), "role"), "assistant");
    assert_string_equal(text_of(part_of(item_of(b, 1), "content"), "text"), "42");
    const json_t *u = json_object_get(b, "usage");
    assert_int_equal(json_integer_value(json_object_get(u, "input_tokens")), 10);
    assert_int_equal(json_integer_value(json_object_get(u, "output_tokens")), 3);
    assert_int_equal(json_integer_value(json_object_get(u, "total_tokens")), 13);
    assert_non_null(json_object_get(u, "kv"));
    json_decref(b);
    cn_api_result_free(r);
}

#define MARK(name) "<tool_call>{\"name\": \"" name "\", \"arguments\": {\"a\": 1}}</tool_call>"

/* Kinds of the items of an output: r, m, c; and the status of the last. */
static const struct {
    const char *reasoning, *text;
    cn_finish finish;
    const char *kinds, *status;
} outputs[] = {
    {"", "", CN_FINISH_STOP, "m", "completed"},
    {"", " \n", CN_FINISH_STOP, "m", "completed"},
    {"x", "", CN_FINISH_LENGTH, "r", "incomplete"},
    {"x", "\n\n", CN_FINISH_STOP, "r", "completed"},
    {"x", "\n\na", CN_FINISH_LENGTH, "rm", "incomplete"},
    {"x", "a", CN_FINISH_REPETITION, "rm", "incomplete"},
    {"", MARK("f"), CN_FINISH_STOP, "c", "completed"},
    {"x", "say " MARK("f") "\n" MARK("g"), CN_FINISH_STOP, "rmcc", "completed"},
    {"x", "\n" MARK("f") "\n and more", CN_FINISH_STOP, "rcm", "completed"},
    {"", "a" MARK("f") "b" MARK("g") "c", CN_FINISH_LENGTH, "mcmcm", "incomplete"},
    {"", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", CN_FINISH_LENGTH, "c",
     "incomplete"},
};

static void items_come_in_the_order_of_the_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        char kinds[16] = "";
        size_t k;
        json_t *item;
        cn_api_result *r = new_result((request_form){0});
        if (*outputs[i].reasoning) add_text(r, outputs[i].reasoning, "", CN_FINISH_NONE);
        add_text(r, "", outputs[i].text, outputs[i].finish);
        json_t *b = result_body(r, "1", "m", 0);
        json_array_foreach(json_object_get(b, "output"), k, item)
        {
            const char *type = text_of(item, "type");
            kinds[k] = *type == 'f' ? 'c' : *type;
            const bool last = k + 1 == json_array_size(json_object_get(b, "output"));
            assert_string_equal(text_of(item, "status"), last ? outputs[i].status : "completed");
        }
        assert_string_equal(kinds, outputs[i].kinds);
        assert_string_equal(text_of(b, "status"), outputs[i].status);
        json_decref(b);
        cn_api_result_free(r);
    }
}

static void a_batch_line_has_the_usage(void **state)
{
    (void)state;
    cn_api_result *r = new_result((request_form){0});
    const cn_batch_notes notes = {.of = 1};
    cn_batch_line_figures f;
    cn_buf line = {0};
    cn_id id;
    assert_true(cn_id_parse("0123456789abcdef0123456789abcdec", &id));
    add_text(r, "", "a", CN_FINISH_STOP);
    assert_int_equal(cn_batch_line_format(&line, id, "c", 200, result_body(r, "1", "m", 0), &notes),
                     CN_OK);
    assert_int_equal(cn_batch_line_parse(&f, line.data, line.len), CN_OK);
    assert_int_equal(f.prompt_tokens, 10);
    assert_int_equal(f.cached_tokens, 4);
    assert_int_equal(f.completion_tokens, 3);
    assert_int_equal(f.reasoning_tokens, 1);
    cn_buf_free(&line);
    cn_api_result_free(r);
}

/* ---- streams ---- */

/* What a client has understood from the events. */
typedef struct listener {
    int n_events, n_created;
    json_t *items; /* as output_item.done had them */
    json_t *open;  /* the item that was added last; NULL: it is done */
    enum { ADDED, PART, TEXT_DONE, PART_DONE } at; /* of `open` */
    cn_buf text;                                   /* deltas of `open` */
    json_t *logprobs;                              /* of its deltas */
    json_t *last;                                  /* the response of the last event */
} listener;

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static void hear_item(listener *l, const char *type, json_t *event)
{
    json_t *item = json_object_get(event, "item");
    const json_t *index = json_object_get(event, "output_index");
    assert_int_equal(json_integer_value(index), json_array_size(l->items));
    if (ends_in(type, ".added")) {
        assert_null(l->open);
        assert_string_equal(text_of(item, "status"), "in_progress");
        l->open = json_incref(item);
        l->logprobs = json_array();
        l->at = strcmp(text_of(item, "type"), "function_call") == 0 ? PART : ADDED;
        cn_buf_clear(&l->text);
        return;
    }
    const bool call = strcmp(text_of(item, "type"), "function_call") == 0;
    assert_int_equal(l->at, call ? TEXT_DONE : PART_DONE);
    assert_string_equal(text_of(item, "id"), text_of(l->open, "id"));
    json_array_append(l->items, item);
    json_decref(l->open);
    json_decref(l->logprobs);
    l->open = l->logprobs = NULL;
}

static const char *kind_name(const json_t *item, bool summarizes)
{
    switch (*text_of(item, "type")) {
    case 'r': return summarizes ? "reasoning_summary_text" : "reasoning_text";
    case 'm': return "output_text";
    default: return "function_call_arguments";
    }
}

static void assert_text_is(const cn_buf *want, const json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    assert_int_equal(json_string_length(v), want->len);
    if (want->len) assert_memory_equal(json_string_value(v), want->data, want->len);
}

static void hear_text(listener *l, const char *type, json_t *event, bool summarizes)
{
    char want[64];
    assert_non_null(l->open);
    assert_string_equal(text_of(event, "item_id"), text_of(l->open, "id"));
    snprintf(want, sizeof want, "response.%s.", kind_name(l->open, summarizes));
    const bool message = *text_of(l->open, "type") == 'm';
    if (ends_in(type, "part.added")) {
        assert_int_equal(l->at, ADDED);
        l->at = PART;
    } else if (ends_in(type, "part.done")) {
        assert_int_equal(l->at, TEXT_DONE);
        assert_text_is(&l->text, json_object_get(event, "part"), "text");
        l->at = PART_DONE;
    } else if (ends_in(type, ".delta")) {
        assert_int_equal(l->at, PART);
        assert_memory_equal(type, want, strlen(want));
        const char *delta = text_of(event, "delta");
        assert_int_equal(cn_buf_add(&l->text, delta, strlen(delta)), CN_OK);
        json_array_extend(l->logprobs, json_object_get(event, "logprobs"));
    } else {
        assert_int_equal(l->at, PART);
        assert_memory_equal(type, want, strlen(want));
        assert_text_is(&l->text, event, *want && strstr(want, "call") ? "arguments" : "text");
        if (message) assert_true(json_equal(json_object_get(event, "logprobs"), l->logprobs));
        l->at = TEXT_DONE;
    }
}

static void hear(listener *l, const char *type, json_t *event, bool summarizes)
{
    assert_string_equal(text_of(event, "type"), type);
    assert_int_equal(json_integer_value(json_object_get(event, "sequence_number")), l->n_events++);
    assert_null(l->last);
    const bool first = l->n_created < 2 && strcmp(type, "response.failed") != 0;
    json_t *response = json_object_get(event, "response");
    if (first) {
        assert_string_equal(type, l->n_created++ ? "response.in_progress" : "response.created");
        assert_string_equal(text_of(response, "status"), "in_progress");
    } else if (response) {
        assert_true(!l->open || strcmp(type, "response.failed") == 0);
        assert_string_equal(type + strlen("response."), text_of(response, "status"));
        l->last = json_incref(response);
    } else if (strstr(type, "output_item")) {
        hear_item(l, type, event);
    } else {
        hear_text(l, type, event, summarizes);
    }
}

/* Reads the events that the text has as a whole, and leaves the rest. */
static void read_events(listener *l, cn_buf *text, bool summarizes)
{
    size_t used = 0;
    for (char *at = text->data, *end; at && (end = strstr(at, "\n\n")); at = end + 2) {
        char type[96];
        const char *data = strstr(at, "\ndata: ");
        assert_true(sscanf(at, "event: %95s\n", type) == 1 && data && data < end);
        data += strlen("\ndata: ");
        json_t *event = json_loadb(data, (size_t)(end - data), 0, NULL);
        if (!event) fail_msg("no JSON: %.*s", (int)(end - data), data);
        hear(l, type, event, summarizes);
        json_decref(event);
        used = (size_t)(end + 2 - text->data);
    }
    if (used == 0) return;
    memmove(text->data, text->data + used, text->len - used);
    text->len -= used;
    text->data[text->len] = '\0';
}

static void free_listener(listener *l)
{
    json_decref(l->items);
    json_decref(l->open);
    json_decref(l->logprobs);
    json_decref(l->last);
    cn_buf_free(&l->text);
}

/* Takes what there is to take, in pieces. */
static void pump(const cn_api_result *r, cn_response_stream *s, cn_buf *text, size_t n_bytes)
{
    for (size_t n = SIZE_MAX; n != text->len;) {
        n = text->len;
        assert_int_equal(cn_response_stream_write(r, s, text, n_bytes), CN_OK);
    }
}

static void assert_logprobs_are_of_the_text(const json_t *item)
{
    const json_t *part = part_of(item, "content");
    const json_t *logprobs = json_object_get(part, "logprobs");
    const char *text = text_of(part, "text");
    size_t n_text = strlen(text);
    for (size_t i = 0; i < json_array_size(logprobs) && i < n_text; i++)
        assert_int_equal(*text_of(json_array_get(logprobs, i), "token"), text[i]);
    assert_int_equal(json_array_size(logprobs), n_text);
}

static void stream_and_compare(const char *reasoning, const char *text, request_form form,
                               uint64_t seed)
{
    static const size_t sizes[] = {1, 40, 700, SIZE_MAX};
    test_rng rng = {seed};
    cn_api_result *r = new_result(form);
    cn_response_stream s = {.writer = {.id = "1", .model = "m", .created = 5, .digits = 17}};
    listener l = {.items = json_array()};
    cn_buf sent = {0};
    const size_t n_bytes = sizes[test_rng_below(&rng, 4)],
                 left[2] = {strlen(reasoning), strlen(text)};
    size_t at[2] = {0, 0};
    const cn_finish finish = test_rng_below(&rng, 3) ? CN_FINISH_STOP : CN_FINISH_LENGTH;
    do {
        size_t n[2] = {0, 0};
        const int first = at[0] < left[0] ? 0 : 1;
        for (int k = first; k < 2; k++) {
            const size_t most = 1 + test_rng_below(&rng, 9), rest = left[k] - at[k];
            n[k] = rest < most ? rest : most;
            if (at[k] + n[k] < left[k]) break;
        }
        const bool end = at[0] + n[0] == left[0] && at[1] + n[1] == left[1];
        add(r, reasoning + at[0], n[0], text + at[1], n[1], end ? finish : CN_FINISH_NONE);
        for (int k = 0; k < 2; k++) at[k] += n[k];
        if (end || test_rng_below(&rng, 3) == 0) pump(r, &s, &sent, n_bytes);
        read_events(&l, &sent, form.summarizes);
    } while (at[0] < left[0] || at[1] < left[1]);
    assert_int_equal(s.step, CN_STREAM_DONE);
    assert_int_equal(sent.len, 0);
    json_t *whole = result_body(r, "1", "m", 5);
    json_object_set(whole, "completed_at", json_object_get(l.last, "completed_at"));
    assert_true(json_equal(whole, l.last));
    assert_true(json_equal(json_object_get(whole, "output"), l.items));
    size_t i;
    json_t *item;
    json_array_foreach(l.items, i, item)
    {
        if (form.logprobs && *text_of(item, "type") == 'm' && json_array_size(l.items) <= 2 &&
            !strstr(text, "<tool"))
            assert_logprobs_are_of_the_text(item);
    }
    json_decref(whole);
    cn_buf_free(&sent);
    free_listener(&l);
    cn_api_result_free(r);
}

static void streams_say_what_the_body_says(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        " ",
        "hello world",
        "\n\nhello",
        MARK("f"),
        "say " MARK("f") MARK("g") " done",
        MARK("f") "\n" MARK("g") "\n",
        "a<tool_call>no</tool_call> b",
        "x <tool_c",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
        "\n" MARK("f") " \n z",
    };
    static const char *const reasonings[] = {"", "because it is so", "\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t k = 0; k < sizeof reasonings / sizeof *reasonings; k++)
            for (uint64_t seed = 1; seed <= 40; seed++)
                stream_and_compare(reasonings[k], texts[i],
                                   (request_form){seed & 1, seed & 2, seed & 4}, seed);
}

static void a_stream_that_fails_ends_so_at_any_place(void **state)
{
    (void)state;
    for (size_t n_bytes = 1; n_bytes < 6000; n_bytes += n_bytes < 700 ? 13 : 401) {
        cn_api_result *r = new_result((request_form){.logprobs = true});
        cn_response_stream s = {.writer = {.id = "1", .model = "m", .digits = 17}};
        listener l = {.items = json_array()};
        cn_buf sent = {0};
        add_text(r, "why", "", CN_FINISH_NONE);
        add_text(r, "", "some text that is long enough for several slices of logprobs",
                 n_bytes & 1 ? CN_FINISH_STOP : CN_FINISH_NONE);
        assert_int_equal(cn_response_stream_write(r, &s, &sent, n_bytes), CN_OK);
        const bool last = s.step == CN_STREAM_DONE || s.writer.state != CN_WRITE_HEAD;
        assert_int_equal(cn_response_stream_fail(r, &s, "server_error", "it stopped", &sent),
                         CN_OK);
        assert_int_equal(s.step, CN_STREAM_DONE);
        read_events(&l, &sent, false);
        assert_int_equal(sent.len, 0);
        assert_string_equal(text_of(l.last, "status"), last ? "completed" : "failed");
        if (!last) {
            const json_t *error = json_object_get(l.last, "error");
            assert_string_equal(text_of(error, "code"), "server_error");
            assert_string_equal(text_of(error, "message"), "it stopped");
        }
        free_listener(&l);
        cn_buf_free(&sent);
        cn_api_result_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_has_openai_members),
        cmocka_unit_test(items_come_in_the_order_of_the_text),
        cmocka_unit_test(a_batch_line_has_the_usage),
        cmocka_unit_test(streams_say_what_the_body_says),
        cmocka_unit_test(a_stream_that_fails_ends_so_at_any_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
