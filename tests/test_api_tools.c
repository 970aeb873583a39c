/* test_api_tools.c - tool calls in the text of an answer, cut into pieces at any place, and in the
 * bodies and chunks of a response. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/api/api_response.h"
#include "engine/api/api_tools.h"
#include "engine/philox.h"

/* The content and the calls "name arguments;" that a text has. */
typedef struct found {
    char content[1024], calls[1024];
} found;

static void describe_whole(const cn_tool_finder *f, const cn_buf *content, found *out)
{
    size_t i, len = 0;
    json_t *call, *calls = cn_tool_finder_calls(f);
    snprintf(out->content, sizeof out->content, "%s", content->data ? content->data : "");
    *out->calls = '\0';
    assert_true(calls ? json_array_size(calls) > 0 : f->n_calls == 0);
    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        assert_int_equal(json_object_size(call), 3);
        assert_int_equal(json_string_length(json_object_get(call, "id")), 29);
        assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
        len += (size_t)snprintf(out->calls + len, sizeof out->calls - len, "%s %s;",
                                json_string_value(json_object_get(function, "name")),
                                json_string_value(json_object_get(function, "arguments")));
    }
    json_decref(calls);
}

/* Takes all deltas that are there, as a client does: a name begins a call, arguments follow. */
static void take_deltas(cn_tool_finder *f, found *out)
{
    json_t *delta;
    while (cn_tool_finder_has_more(f)) {
        assert_non_null(delta = cn_tool_finder_take(f));
        assert_int_equal(json_array_size(delta), 1);
        const json_t *call = json_array_get(delta, 0);
        const json_t *function = json_object_get(call, "function");
        const json_t *name = json_object_get(function, "name");
        const char *arguments = json_string_value(json_object_get(function, "arguments"));
        const json_int_t index = json_integer_value(json_object_get(call, "index"));
        const size_t len = strlen(out->calls);
        assert_int_equal(index, f->n_taken - 1);
        if (name) {
            assert_int_equal(json_string_length(json_object_get(call, "id")), 29);
            assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
            assert_string_equal(arguments, "");
        } else {
            assert_true(json_object_size(call) == 2 && json_object_size(function) == 1);
            assert_true(strlen(arguments) > 0);
        }
        snprintf(out->calls + len, sizeof out->calls - len, "%s%s%s%s",
                 name && index > 0 ? ";" : "", name ? json_string_value(name) : "",
                 name ? " " : "", arguments);
        json_decref(delta);
    }
    assert_null(cn_tool_finder_take(f));
}

/* Gives the text in pieces: the first `first` bytes, then `rest` bytes each. The deltas of a stream
 * must be those of the whole answer. */
static found find(cn_opt_tool_parser form, bool only_one, const char *text, size_t first,
                  size_t rest)
{
    cn_tool_finder f = {.form = form, .only_one = only_one}, s = f;
    cn_buf content = {0}, streamed = {0};
    found out, deltas = {0};
    size_t at = 0, n = strlen(text);
    for (size_t most = first; at < n; most = rest) {
        size_t len = most < n - at ? most : n - at;
        assert_int_equal(cn_tool_finder_add(&f, text + at, len, false, &content), CN_OK);
        assert_int_equal(cn_tool_finder_add(&s, text + at, len, false, &streamed), CN_OK);
        at += len;
        const bool is_inside_character = ((unsigned char)text[at] & 0xc0) == 0x80;
        if (!is_inside_character) take_deltas(&s, &deltas);
    }
    assert_int_equal(cn_tool_finder_add(&f, NULL, 0, true, &content), CN_OK);
    assert_int_equal(cn_tool_finder_add(&s, NULL, 0, true, &streamed), CN_OK);
    take_deltas(&s, &deltas);
    describe_whole(&f, &content, &out);
    if (*deltas.calls) strcat(deltas.calls, ";");
    assert_string_equal(deltas.calls, out.calls);
    assert_string_equal(streamed.data ? streamed.data : "", out.content);
    assert_int_equal(s.held.len + f.held.len, 0);
    cn_tool_finder_free(&f);
    cn_tool_finder_free(&s);
    cn_buf_free(&content);
    cn_buf_free(&streamed);
    return out;
}

#define CALL(name, args) \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " args "}\n</tool_call>"

static const struct {
    cn_opt_tool_parser form;
    const char *text, *content, *calls;
} answers[] = {
    {CN_OPT_TOOLS_NONE, CALL("f", "{}"), CALL("f", "{}"), ""},
    {CN_OPT_TOOLS_HERMES, "", "", ""},
    {CN_OPT_TOOLS_HERMES, " plain < text\n\n", " plain < text\n\n", ""},
    {CN_OPT_TOOLS_HERMES, CALL("f", "{\"a\": 1}"), "", "f {\"a\": 1};"},
    {CN_OPT_TOOLS_HERMES, "I look.\n\n" CALL("f", "{}") "\n" CALL("g", "{\"x\": \"é\"}") "\n",
     "I look.", "f {};g {\"x\": \"é\"};"},
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"name\": \"f\"}</tool_call>", "", "f {};"},
    {CN_OPT_TOOLS_HERMES, CALL("f", "{\"a\": 0.30000000000000004}"), "",
     "f {\"a\": 0.30000000000000004};"},
    {CN_OPT_TOOLS_HERMES, CALL("f", "{\"a\": [0.1, 2.0, -1e-7]}"), "",
     "f {\"a\": [0.1, 2.0, -1e-7]};"},
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "", "f {};"},
    {CN_OPT_TOOLS_HERMES, "a <tool_call>{\"name\": \"f\"", "a <tool_call>{\"name\": \"f\"", ""},
    {CN_OPT_TOOLS_HERMES, "<tool_call>no</tool_call> x " CALL("f", "{}"),
     "<tool_call>no</tool_call> x", "f {};"},
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"name\": 1}</tool_call>",
     "<tool_call>{\"name\": 1}</tool_call>", ""},
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": 1}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": 1}</tool_call>", ""},
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>", ""},
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"arguments\": {}}</tool_call>",
     "<tool_call>{\"arguments\": {}}</tool_call>", ""},
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"name\": \"\\q\", \"arguments\": {}}</tool_call>",
     "<tool_call>{\"name\": \"\\q\", \"arguments\": {}}</tool_call>", ""},
    {CN_OPT_TOOLS_HERMES, "the <tool_cal", "the <tool_cal", ""},
    /* The arguments are the text of the model. */
    {CN_OPT_TOOLS_HERMES, CALL("f", "{\"a\" :1.50,\n \"b\": \"\\u00e9\\n\"  }"), "",
     "f {\"a\" :1.50,\n \"b\": \"\\u00e9\\n\"  };"},
    {CN_OPT_TOOLS_HERMES,
     "<tool_call>{\"id\": [1, \"}\"], \"arguments\": {\"a\": {}}, \"x\": -1.5, "
     "\"name\": \"\\u0066\", \"name\": \"g\", \"parameters\": {}, \"y\": null}</tool_call>",
     "", "f {\"a\": {}};"},
    {CN_OPT_TOOLS_HERMES,
     "<tool_call>{\"name\": \"f\", \"name\": \"g\", \"arguments\": {}, "
     "\"name\": 1}</tool_call>",
     "", "f {};"},
    /* A call whose text is cut off or is no JSON remains a call. */
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x", "",
     "f {\"a\": \"x;"},
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_", "", "f {};"},
    {CN_OPT_TOOLS_HERMES,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>" CALL("g", "{}"), "",
     "f {\"a\": 1};g {};"},
    {CN_OPT_TOOLS_HERMES,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1</tool_call> x " CALL("g", "{}"), " x",
     "f {\"a\": [1;g {};"},
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n" CALL("g", "{}"), "",
     "f {};g {};"},
    {CN_OPT_TOOLS_HERMES, CALL("f", "{'a': 'it is'}") " x", " x", "f {'a': 'it is'};"},
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}} no</tool_call>",
     " no</tool_call>", "f {};"},
    {CN_OPT_TOOLS_HERMES, CALL("f", "{\"a\": \"\\\"</tool_call>\"}") " x", " x",
     "f {\"a\": \"\\\"</tool_call>\"};"},
    {CN_OPT_TOOLS_HERMES, "<tool_call>{\"f</tool_call>" CALL("g", "{}"),
     "<tool_call>{\"f</tool_call>", "g {};"},
    {CN_OPT_TOOLS_LLAMA3_JSON, "{\"name\": \"f\", \"parameters\": {\"a\": [1]}}", "",
     "f {\"a\": [1]};"},
    {CN_OPT_TOOLS_LLAMA3_JSON,
     " <|python_tag|> {\"name\": \"f\", \"arguments\": {}}; {\"name\": "
     "\"g\", \"parameters\": {}} ",
     "", "f {};g {};"},
    {CN_OPT_TOOLS_LLAMA3_JSON, "It is {\"name\": \"f\"}", "It is {\"name\": \"f\"}", ""},
    {CN_OPT_TOOLS_LLAMA3_JSON, "{\"name\": \"f\", \"parameters\": {}} and more", " and more",
     "f {};"},
    {CN_OPT_TOOLS_LLAMA3_JSON, "{\"name\": \"f\", \"parameters\": {}};", "", "f {};"},
    {CN_OPT_TOOLS_LLAMA3_JSON, "{\"name\": \"f\"}; {\"a\": 1}; {\"name\": \"g\"}",
     " {\"a\": 1}; {\"name\": \"g\"}", "f {};"},
    {CN_OPT_TOOLS_LLAMA3_JSON, "{\"name\": \"f\", \"parameters\": {\"a\": ", "", "f {\"a\": ;"},
    {CN_OPT_TOOLS_LLAMA3_JSON, "{\"name\": \"f\", \"para", "{\"name\": \"f\", \"para", ""},
    {CN_OPT_TOOLS_LLAMA3_JSON, "{\"answer\": 1}", "{\"answer\": 1}", ""},
    {CN_OPT_TOOLS_LLAMA3_JSON, "<|python_tag|>print(1)", "<|python_tag|>print(1)", ""},
    {CN_OPT_TOOLS_LLAMA3_JSON, "  ", "  ", ""},
};

static void calls_are_found_however_the_text_is_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        const char *text = answers[i].text;
        for (size_t first = 1; first <= strlen(text) + 1; first++)
            for (size_t rest = 1; rest <= 200; rest += 199) {
                found got = find(answers[i].form, false, text, first, rest);
                if (strcmp(got.content, answers[i].content) || strcmp(got.calls, answers[i].calls))
                    fail_msg("'%s' cut at %zu: content '%s', calls '%s'", text, first, got.content,
                             got.calls);
            }
    }
}

static size_t draw(uint32_t *at, size_t n) { return cn_philox_u64(7, 0, (*at)++) % n; }

/* Random texts that resemble calls, cut at random: `find` compares whole and streamed. */
static void random_texts_have_the_same_calls_however_cut(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "<tool_call>", "</tool_call>", "{", "}", "\"name\"", ":", "\"f\"", ",", "\"arguments\"",
        "{\"a\": 1}", "\"", "\\", " ", "\n", ";", "é", "<", "[", "]", "7", "{\"name\": \"f\"",
        ", \"parameters\": {", "<|python_tag|>", "x"};
    uint32_t at = 0;
    for (int i = 0; i < 20000; i++) {
        char text[512] = "";
        const size_t n = 1 + draw(&at, 16);
        for (size_t k = 0; k < n; k++)
            strcat(text, parts[draw(&at, sizeof parts / sizeof *parts)]);
        const cn_opt_tool_parser form =
            i % 2 ? CN_OPT_TOOLS_HERMES : CN_OPT_TOOLS_LLAMA3_JSON;
        const found whole = find(form, i % 3 == 0, text, strlen(text), 1);
        const found cut = find(form, i % 3 == 0, text, 1 + draw(&at, 20),
                               1 + draw(&at, 20));
        if (strcmp(whole.content, cut.content) || strcmp(whole.calls, cut.calls))
            fail_msg("'%s': content '%s', '%s', calls '%s', '%s'", text, whole.content, cut.content,
                     whole.calls, cut.calls);
    }
}

/* The name comes first, then the arguments as their text arrives. */
static void arguments_are_not_held_back(void **state)
{
    (void)state;
    static const struct {
        cn_opt_tool_parser form;
        const char *pieces[6], *deltas[6];
    } streams[] = {
        {CN_OPT_TOOLS_HERMES,
         {"<tool_call>\n{\"name\": \"f\", ", "\"arguments\": {\"te", "xt\": \"one", " two\"}", "}"},
         {"", "f {\"te", "xt\": \"one", " two\"}", ""}},
        {CN_OPT_TOOLS_LLAMA3_JSON,
         {"{\"name\": \"f\"", ", \"parameters\": {", "\"a\": [1", ", 2]}", "}; {\"name\": \"g\"}"},
         {"", "f {", "\"a\": [1", ", 2]}", ";g {}"}},
    };
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        cn_tool_finder f = {.form = streams[i].form};
        cn_buf content = {0};
        for (int k = 0; k < 5; k++) {
            const char *piece = streams[i].pieces[k];
            found got = {0};
            assert_int_equal(cn_tool_finder_add(&f, piece, strlen(piece), false, &content), CN_OK);
            take_deltas(&f, &got);
            assert_string_equal(got.calls, streams[i].deltas[k]);
        }
        assert_int_equal(content.len, 0);
        cn_tool_finder_free(&f);
        cn_buf_free(&content);
    }
}

static void one_call_is_kept_if_they_may_not_be_parallel(void **state)
{
    (void)state;
    found got = find(CN_OPT_TOOLS_HERMES, true, CALL("f", "{}") CALL("g", "{}") "end", 7, 7);
    assert_string_equal(got.calls, "f {};");
    assert_string_equal(got.content, "end");
}

/* Text that cannot be part of a call is content at once: a stream does not stall. */
static void content_is_not_held_back(void **state)
{
    (void)state;
    cn_tool_finder f = {.form = CN_OPT_TOOLS_HERMES};
    cn_buf content = {0};
    assert_int_equal(cn_tool_finder_add(&f, "One two <tool", 13, false, &content), CN_OK);
    assert_string_equal(content.data, "One two");
    assert_int_equal(cn_tool_finder_add(&f, "box", 3, false, &content), CN_OK);
    assert_string_equal(content.data, "One two <toolbox");
    cn_tool_finder_free(&f);
    cn_buf_free(&content);
}

/* Each unit begins like a call and reads the next ones as its text: all of them would be read again
 * and again. Then no more calls are sought. */
static void text_that_begins_like_many_calls_is_content(void **state)
{
    (void)state;
    static const char unit[] = "<tool_call>{\"a\": [\\\"", call[] = CALL("f", "{}");
    for (int n_units = 10; n_units <= 5000; n_units += 4990) {
        cn_tool_finder f = {.form = CN_OPT_TOOLS_HERMES};
        cn_buf content = {0}, text = {0};
        for (int i = 0; i < n_units; i++) cn_buf_addf(&text, "%s", unit);
        cn_buf_addf(&text, "\"< %s", call);
        for (size_t at = 0; at < text.len; at += 1000)
            assert_int_equal(cn_tool_finder_add(&f, text.data + at,
                                                text.len - at < 1000 ? text.len - at : 1000, false,
                                                &content), CN_OK);
        assert_int_equal(cn_tool_finder_add(&f, NULL, 0, true, &content), CN_OK);
        assert_int_equal(f.n_calls, n_units == 10);
        assert_int_equal(content.len, text.len - (f.n_calls ? strlen(call) + 1 : 0));
        assert_memory_equal(content.data, text.data, content.len);
        cn_tool_finder_free(&f);
        cn_buf_free(&content);
        cn_buf_free(&text);
    }
}

/* ---- responses ---- */

static cn_api_result *result_with(const char *const *pieces, cn_api_tool_choice choice,
                                  cn_finish finish)
{
    const cn_api_request request = {.endpoint = CN_API_CHAT,
                                    .params = {.sampling = {.n = 1, .logprobs = -1}},
                                    .tool_choice = choice,
                                    .tool_parser = CN_OPT_TOOLS_HERMES};
    cn_api_result *r;
    assert_int_equal(cn_api_result_create(&r, &request, NULL, NULL), CN_OK);
    for (; *pieces; pieces++) {
        const bool end = !pieces[1];
        const cn_event ev = {.text = *pieces,
                             .text_len = strlen(*pieces),
                             .n_tokens = 1,
                             .stop_token = -1,
                             .finish = end ? finish : CN_FINISH_NONE,
                             .last = end};
        cn_api_result_add(r, &ev);
    }
    return r;
}

static cn_api_result *result_of(const char *const *pieces, cn_api_tool_choice choice)
{
    return result_with(pieces, choice, CN_FINISH_STOP);
}

static json_t *body_of(const cn_api_result *r)
{
    cn_api_writer writer = {.id = "x", .model = "m", .created = 1, .digits = 17};
    cn_buf text = {0};
    bool done = false;
    assert_int_equal(cn_api_result_write(r, &writer, &text, SIZE_MAX, &done), CN_OK);
    assert_true(done);
    json_t *body = json_loadb(text.data, text.len, 0, NULL);
    cn_buf_free(&text);
    return body;
}

static void a_body_has_the_calls(void **state)
{
    (void)state;
    const char *const pieces[] = {"<tool_call>{\"name\": \"f\"}</tool", "_call>", NULL};
    cn_api_result *r = result_of(pieces, CN_API_TOOL_AUTO);
    json_t *body = body_of(r);
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    const json_t *message = json_object_get(choice, "message");
    const json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "tool_calls");
    assert_true(json_is_null(json_object_get(message, "content")));
    assert_null(json_object_get(call, "index"));
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(call, "function"), "name")), "f");
    json_decref(body);
    cn_api_result_free(r);
}

/* The deltas of all chunks. The last chunk, and only it, has the finish. */
typedef struct streamed {
    char content[2048], calls[2048], finish[32];
    int n_chunks;
} streamed;

static streamed stream_of(cn_api_result *r)
{
    streamed out = {0};
    for (json_t *chunk; (chunk = cn_api_result_take_chunk(r, "x", "m", 1, false)); out.n_chunks++) {
        const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
        const json_t *delta = json_object_get(choice, "delta");
        const json_t *calls = json_object_get(delta, "tool_calls");
        const json_t *function = json_object_get(json_array_get(calls, 0), "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const char *texts[] = {json_string_value(json_object_get(delta, "content")),
                               json_string_value(json_object_get(function, "arguments")),
                               json_string_value(json_object_get(choice, "finish_reason"))};
        assert_string_equal(out.finish, "");
        assert_int_equal(json_array_size(calls), calls ? 1 : 0);
        if (name) strcat(strcat(strcat(out.calls, *out.calls ? ";" : ""), name), " ");
        strcat(out.content, texts[0] ? texts[0] : "");
        strcat(out.calls, texts[1] ? texts[1] : "");
        strcat(out.finish, texts[2] ? texts[2] : "");
        json_decref(chunk);
    }
    return out;
}

/* As in OpenAI: "stop" if tool_choice names the function. The length is told in any case. */
static void the_finish_depends_on_the_tool_choice(void **state)
{
    (void)state;
    static const char *const names[] = {
        [CN_API_TOOL_AUTO] = "tool_calls",
        [CN_API_TOOL_REQUIRED] = "tool_calls",
        [CN_API_TOOL_NAMED] = "stop",
    };
    const char *const pieces[] = {CALL("f", "{}"), NULL};
    for (int choice = CN_API_TOOL_AUTO; choice <= CN_API_TOOL_NAMED; choice++) {
        cn_api_result *r = result_of(pieces, (cn_api_tool_choice)choice);
        json_t *body = body_of(r);
        const json_t *c = json_array_get(json_object_get(body, "choices"), 0);
        const json_t *message = json_object_get(c, "message");
        const streamed chunks = stream_of(r);
        assert_int_equal(json_array_size(json_object_get(message, "tool_calls")), 1);
        assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), names[choice]);
        assert_string_equal(chunks.calls, "f {}");
        assert_string_equal(chunks.finish, names[choice]);
        json_decref(body);
        cn_api_result_free(r);
    }
}

/* --max-reply-bytes bounds text that may become a call, and calls. */
static void calls_count_as_bytes_of_the_result(void **state)
{
    (void)state;
    static const char head[] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"";
    static char text[sizeof head + 1000];
    memcpy(text, head, sizeof head - 1);
    memset(text + sizeof head - 1, 'x', 1000);
    cn_event ev = {.text = text, .text_len = sizeof head + 999, .n_tokens = 1, .stop_token = -1};
    cn_api_result *r = result_of((const char *const[]){NULL}, CN_API_TOOL_AUTO);
    cn_api_result_add(r, &ev);
    assert_in_range(cn_api_result_bytes(r), 1000, 1200);
    ev.text = "\"}}</tool_call>";
    ev.text_len = strlen(ev.text);
    cn_api_result_add(r, &ev);
    assert_in_range(cn_api_result_bytes(r), 1000, 1300);
    stream_of(r);
    assert_in_range(cn_api_result_bytes(r), 1, 200); /* the arguments were taken */
    cn_api_result_free(r);
}

/* A schema may allow arguments that are no object. */
static void forced_calls_have_arguments_of_any_type(void **state)
{
    (void)state;
    const char *const pieces[] = {CALL("f", "7"), NULL};
    for (int choice = CN_API_TOOL_AUTO; choice <= CN_API_TOOL_NAMED; choice++) {
        cn_api_result *r = result_of(pieces, (cn_api_tool_choice)choice);
        json_t *body = body_of(r);
        const json_t *c = json_array_get(json_object_get(body, "choices"), 0);
        const json_t *message = json_object_get(c, "message");
        const json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
        const char *arguments =
            json_string_value(json_object_get(json_object_get(call, "function"), "arguments"));
        assert_true(choice == CN_API_TOOL_AUTO ? !call : arguments && !strcmp(arguments, "7"));
        json_decref(body);
        cn_api_result_free(r);
    }
}

/* The name of a call is in one chunk and its arguments are in the next, also when all are there. */
static void a_stream_has_chunks_for_each_call(void **state)
{
    (void)state;
    const char *const pieces[] = {"Hm. <tool_call>{\"name\": \"f\"}</tool_call>",
                                  CALL("g", "{\"a\": 1}"), NULL};
    cn_api_result *r = result_of(pieces, CN_API_TOOL_AUTO);
    const streamed chunks = stream_of(r);
    assert_string_equal(chunks.content, "Hm.");
    assert_string_equal(chunks.calls, "f {};g {\"a\": 1}");
    assert_string_equal(chunks.finish, "tool_calls");
    assert_int_equal(chunks.n_chunks, 4);
    cn_api_result_free(r);
}

/* As in OpenAI, whole and streamed: it has the arguments so far, and the finish is "length". */
static void a_call_that_max_tokens_cuts_off_is_a_call(void **state)
{
    (void)state;
    const char *const pieces[] = {"<tool_call>{\"name\": \"f\", \"argu", "ments\": {\"a\": \"x",
                                  NULL};
    for (int choice = CN_API_TOOL_AUTO; choice <= CN_API_TOOL_NAMED; choice++) {
        cn_api_result *r = result_with(pieces, (cn_api_tool_choice)choice, CN_FINISH_LENGTH);
        json_t *body = body_of(r);
        const json_t *c = json_array_get(json_object_get(body, "choices"), 0);
        const json_t *message = json_object_get(c, "message");
        const json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
        const json_t *function = json_object_get(call, "function");
        const streamed chunks = stream_of(r);
        assert_true(json_is_null(json_object_get(message, "content")));
        assert_string_equal(json_string_value(json_object_get(function, "arguments")),
                            "{\"a\": \"x");
        assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "length");
        assert_string_equal(chunks.content, "");
        assert_string_equal(chunks.calls, "f {\"a\": \"x");
        assert_string_equal(chunks.finish, "length");
        json_decref(body);
        cn_api_result_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_found_however_the_text_is_cut),
        cmocka_unit_test(random_texts_have_the_same_calls_however_cut),
        cmocka_unit_test(arguments_are_not_held_back),
        cmocka_unit_test(one_call_is_kept_if_they_may_not_be_parallel),
        cmocka_unit_test(content_is_not_held_back),
        cmocka_unit_test(text_that_begins_like_many_calls_is_content),
        cmocka_unit_test(a_body_has_the_calls),
        cmocka_unit_test(the_finish_depends_on_the_tool_choice),
        cmocka_unit_test(calls_count_as_bytes_of_the_result),
        cmocka_unit_test(forced_calls_have_arguments_of_any_type),
        cmocka_unit_test(a_stream_has_chunks_for_each_call),
        cmocka_unit_test(a_call_that_max_tokens_cuts_off_is_a_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
