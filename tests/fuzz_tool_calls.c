/* fuzz_tool_calls.c - feeds hostile answers to the finder of tool calls. The first two bytes choose
 * the parser, what the request asks for, and the length of pieces. Must hold: the content and the
 * calls are the same for the whole text, for single bytes, and for the deltas of a stream. */
#include <string.h>

#include "engine/api/api_tools.h"
#include "engine/base/utf8.h"
#include "tests/lib/fuzz.h"

static json_t *names;

/* All that a client gets: the content, a 0, then NAME 1 ARGUMENTS 2 for each call. */
static void add_calls(const cn_tool_finder *f, cn_buf *out)
{
    for (uint32_t i = 0; i < f->n_calls; i++) {
        const cn_tool_call *call = &f->calls[i];
        cn_buf_addf(out, "%s\1%s\2", json_string_value(call->name),
                    call->arguments.data ? call->arguments.data : "");
    }
}

static void take_deltas(cn_tool_finder *f, cn_buf *out)
{
    while (cn_tool_finder_has_more(f)) {
        json_t *delta = cn_tool_finder_take(f);
        FUZZ_CHECK(delta);
        json_t *function = json_object_get(json_array_get(delta, 0), "function");
        const json_t *name = json_object_get(function, "name");
        if (name && f->n_taken > 1) cn_buf_addf(out, "\2");
        if (name) cn_buf_addf(out, "%s\1", json_string_value(name));
        cn_buf_addf(out, "%s", json_string_value(json_object_get(function, "arguments")));
        json_decref(delta);
    }
}

static cn_tool_finder make_finder(uint8_t flags)
{
    static const cn_opt_tool_parser forms[] = {CN_OPT_TOOLS_HERMES, CN_OPT_TOOLS_LLAMA3_JSON,
                                               CN_OPT_TOOLS_MISTRAL, CN_OPT_TOOLS_PYTHONIC};
    return (cn_tool_finder){.form = forms[flags % 4],
                            .names = names,
                            .only_one = flags >> 2 & 1,
                            .is_forced = flags >> 3 & 1,
                            .is_either = flags >> 4 & 1,
                            .is_stopped = flags >> 5 & 1};
}

/* Gives the text in pieces of `most` bytes. In a stream, a piece ends with a character. */
static cn_buf find(uint8_t flags, const cn_buf *text, size_t most, bool is_stream)
{
    cn_tool_finder f = make_finder(flags);
    cn_buf out = {0}, calls = {0};
    for (size_t at = 0, n; at < text->len; at += n) {
        n = most < text->len - at ? most : text->len - at;
        while (is_stream && ((unsigned char)text->data[at + n] & 0xc0) == 0x80) n++;
        FUZZ_CHECK(cn_tool_finder_add(&f, text->data + at, n, false, &out) == CN_OK);
        if (is_stream) take_deltas(&f, &calls);
    }
    FUZZ_CHECK(cn_tool_finder_add(&f, NULL, 0, true, &out) == CN_OK);
    if (is_stream) take_deltas(&f, &calls);
    if (is_stream && calls.len > 0) cn_buf_addf(&calls, "\2");
    if (!is_stream) add_calls(&f, &calls);
    FUZZ_CHECK(f.held.len == 0);
    cn_buf_add(&out, "", 1);
    cn_buf_add(&out, calls.data ? calls.data : "", calls.len);
    cn_buf_free(&calls);
    cn_tool_finder_free(&f);
    return out;
}

static void expect(const cn_buf *whole, cn_buf cut)
{
    FUZZ_CHECK(cut.len == whole->len && memcmp(cut.data, whole->data, cut.len) == 0);
    cn_buf_free(&cut);
}

static void run(const uint8_t *data, size_t size)
{
    cn_buf text = {0};
    if (size < 3) return;
    cn_utf8_add_lossy(&text, (const char *)data + 2, size - 2);
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] == '\0') text.data[i] = ' ';
    cn_buf whole = find(data[0], &text, text.len, false);
    expect(&whole, find(data[0], &text, 1, false));
    expect(&whole, find(data[0], &text, 1, true));
    expect(&whole, find(data[0], &text, 1 + data[1] % 64, true));
    cn_buf_free(&whole);
    cn_buf_free(&text);
}

#define TAGS "<function=g>\n<parameter=s>\nx\n</parameter>\n</function>\n"
static const fuzz_input corpus[] = {
    FUZZ_TEXT(
        "\x20\x07Hm. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call>"),
    FUZZ_TEXT("\x21\x03{\"name\": \"f\", \"parameters\": \"{\\\"a\\\": 1}\"}; {\"name\": \"g\"}"),
    FUZZ_TEXT("\x22\x05[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}][TOOL_CALLS]g[ARGS]{}"),
    FUZZ_TEXT("\x23\x02[f(a=1, b='x\\n'), g(s=[1, {'k': None}])] ok"),
    FUZZ_TEXT("\x20\x09<tool_call>\n" TAGS "</tool_call>\n```xml\n" TAGS "```"),
    FUZZ_TEXT("\x20\x05<tool_call>g\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"),
    FUZZ_TEXT("\x01\x04```json\n{\"name\": \"f\", \"parameters\": {}}\n```\n```py\nx\n```"),
};

static const char *const words[] = {
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<function=g>",
    "</function>",
    "<parameter=m>",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "```",
    "```json\n",
    "{\"name\": \"f\", ",
    "\"arguments\": ",
    "\"parameters\": {",
    "f(",
    "[f(a=",
    "'''",
    "\\u00e9",
    "é",
    "    ",
    "\n",
    "null",
    "[ARGS]",
    "[CALL_ID]a1",
    "{\"name\": \"h\"",
    "</tool",
};

static const fuzz_target target = {
    .name = "tool_calls",
    .run = run,
    .corpus = corpus,
    .n_corpus = sizeof corpus / sizeof *corpus,
    .words = words,
    .n_words = sizeof words / sizeof *words,
    .max_size = 1500,
};

int main(int argc, char **argv)
{
    json_t *tools = json_loads(
        "[{\"function\":{\"name\":\"f\"}},{\"function\":{\"name\":\"g\",\"parameters\":"
        "{\"properties\":{\"s\":{\"type\":\"string\"},\"m\":{\"anyOf\":[{\"$ref\":\"#/d\"},"
        "{\"type\":\"null\"}]}},\"d\":{\"type\":\"object\"}}}}]",
        0, NULL);
    names = cn_tool_names(tools);
    const int rc = fuzz_main(argc, argv, &target);
    json_decref(names);
    json_decref(tools);
    return rc;
}
