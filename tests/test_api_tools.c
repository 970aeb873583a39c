/* test_api_tools.c - tool calls in the text of an answer, cut into pieces at any place. */
#include <ctype.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/api/api_tools.h"
#include "engine/base/philox.h"
#include "engine/text/call_marks.h"

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
        assert_int_equal(json_string_length(json_object_get(call, "id")),
                         f->form == CN_OPT_TOOLS_MISTRAL ? 9 : 29);
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
                 name && index > 0 ? ";" : "", name ? json_string_value(name) : "", name ? " " : "",
                 arguments);
        json_decref(delta);
    }
    assert_null(cn_tool_finder_take(f));
}

static json_t *tools; /* a body's, of the functions f and g; g has parameters */
static json_t *names;
static bool is_stopped; /* the model ends the texts */

static int make_tools(void **state)
{
    (void)state;
    static const char text[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\","
        "\"function\":"
        "{\"name\":\"g\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
        "\"i\":{\"type\":\"integer\"},\"o\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}"
        ","
        "\"m\":{\"anyOf\":[{\"$ref\":\"#/$defs/M%20a~1b\"},{\"type\":\"null\"}]},"
        "\"w\":{\"$ref\":\"#/$defs/W\"},\"u\":{\"anyOf\":[{\"$ref\":\"#/$defs/U\"},{}]},"
        "\"a\":{\"allOf\":[{\"$ref\":\"#/$defs/"
        "W\"}]},\"n\":{\"type\":\"string\",\"nullable\":true},"
        "\"b\":{\"type\":\"boolean\"},\"l\":{\"type\":\"array\"},\"e\":{\"enum\":[\"1\"]}},"
        "\"$defs\":{\"M a/b\":{\"type\":\"object\"},\"W\":{\"enum\":[\"1\",\"2\"]},"
        "\"U\":{\"anyOf\":[{\"$ref\":\"#/$defs/U\"}]}}}}}]";
    tools = json_loads(text, 0, NULL);
    names = cn_tool_names(tools);
    return tools && names ? 0 : -1;
}

static int free_tools(void **state)
{
    (void)state;
    json_decref(tools);
    json_decref(names);
    return 0;
}

/* Gives the text in pieces: the first `first` bytes, then `rest` bytes each. The deltas of a stream
 * must be those of the whole answer. */
static found find(cn_opt_tool_parser form, bool only_one, const char *text, size_t first,
                  size_t rest)
{
    cn_tool_finder f = {
        .form = form, .names = names, .only_one = only_one, .is_stopped = is_stopped};
    cn_tool_finder s = f;
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

#define NONE CN_OPT_TOOLS_NONE
#define HERMES CN_OPT_TOOLS_HERMES
#define GLM CN_OPT_TOOLS_GLM45
#define CODER CN_OPT_TOOLS_QWEN3_CODER
#define MISTRAL CN_OPT_TOOLS_MISTRAL
#define LLAMA3 CN_OPT_TOOLS_LLAMA3_JSON
#define PYTHONIC CN_OPT_TOOLS_PYTHONIC
#define ONE(name) "{\"name\": \"" name "\", \"arguments\": {}}"
#define CALL(name, args) \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " args "}\n</tool_call>"

static const struct {
    cn_opt_tool_parser form;
    const char *text, *content, *calls;
} answers[] = {
    {NONE, CALL("f", "{}"), CALL("f", "{}"), ""},
    {HERMES, "", "", ""},
    {HERMES, " plain < text\n\n", " plain < text\n\n", ""},
    {HERMES, CALL("f", "{\"a\": 1}"), "", "f {\"a\": 1};"},
    {HERMES, "I look.\n\n" CALL("f", "{}") "\n" CALL("g", "{\"x\": \"é\"}") "\n", "I look.",
     "f {};g {\"x\": \"é\"};"},
    {HERMES, CALL("f", "{\"a\": [0.30000000000000004, 2.0, -1e-7]}"), "",
     "f {\"a\": [0.30000000000000004, 2.0, -1e-7]};"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "", "f {};"},
    {HERMES, "the <tool", "the <tool", ""},
    /* The arguments are the text of the model. */
    {HERMES, CALL("f", "{\"a\" :1.50,\n \"b\": \"\\u00e9\\n\"  }"), "",
     "f {\"a\" :1.50,\n \"b\": \"\\u00e9\\n\"  };"},
    {HERMES,
     "<tool_call>{\"id\": [1, \"}\"], \"arguments\": {\"a\": {}}, \"x\": -1.5, "
     "\"name\": \"\\u0066\", \"name\": \"g\", \"parameters\": {}, \"y\": null}</tool_call>",
     "", "f {\"a\": {}};"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"name\": \"g\", \"arguments\": {}, \"name\": 1}", "",
     "f {};"},
    /* A call needs arguments and the name of a tool. */
    {HERMES, "<tool_call>{\"name\": \"f\"}</tool_call>", "{\"name\": \"f\"}", ""},
    {HERMES, CALL("h", "{\"a\": \"<tool_call>\"}") " x",
     "\n{\"name\": \"h\", \"arguments\": {\"a\": \"<tool_call>\"}}\n x", ""},
    {HERMES, "<tool_call>{\"arguments\": {}}</tool_call>", "{\"arguments\": {}}", ""},
    {HERMES, "<tool_call>{\"name\": 1}</tool_call>", "{\"name\": 1}", ""},
    {HERMES, "<tool_call>{\"name\": \"\\q\", \"arguments\": {}}</tool_call>",
     "{\"name\": \"\\q\", \"arguments\": {}}", ""},
    {LLAMA3, "{\"name\": \"f\"}", "{\"name\": \"f\"}", ""},
    {LLAMA3, "{\"name\": \"Bob\", \"age\": 5}", "{\"name\": \"Bob\", \"age\": 5}", ""},
    {LLAMA3, "{\"name\": \"h\", \"parameters\": {}} x", "{\"name\": \"h\", \"parameters\": {}} x",
     ""},
    {LLAMA3, "{\"answer\": [" ONE("f") "]}", "{\"answer\": [" ONE("f") "]}", ""},
    {LLAMA3, "[" ONE("h") ", " ONE("f") "]", "[" ONE("h") ", " ONE("f") "]", ""},
    {LLAMA3, "if (a[ 0]) {x} else {\"y\"} [{", "if (a[ 0]) {x} else {\"y\"} [{", ""},
    /* Arguments as text, null or empty; other values stay. */
    {HERMES, CALL("f", "\"{\\\"city\\\": \\\"Paris\\\"}\""), "", "f {\"city\": \"Paris\"};"},
    {HERMES, CALL("f", "\" \\n{\\\"a\\\": \\\"\\\\n\\u00e9\\uD83D\\uDE00\\ud83d\\t\\/\\\"}\""), "",
     "f  \n{\"a\": \"\\né😀\xEF\xBF\xBD\t/\"};"},
    {HERMES, CALL("f", "\"{\\q\\u12x\\u1\""), "", "f {\\q\\u12x;"},
    {HERMES, CALL("f", "null"), "", "f {};"},
    {HERMES, CALL("f", "\"\""), "", "f {};"},
    {HERMES, CALL("f", "\" \\n \""), "", "f {};"},
    {HERMES, CALL("f", "[ ]"), "", "f {};"},
    {HERMES, CALL("f", "{ }"), "", "f { };"},
    {HERMES, CALL("f", "\"it \\\"is\\\"\""), "", "f \"it \\\"is\\\"\";"},
    {HERMES, CALL("f", "[[1], \"]\"]"), "", "f [[1], \"]\"];"},
    {HERMES, CALL("f", "-7"), "", "f -7;"},
    {LLAMA3, "{\"parameters\": \"{}\", \"name\": \"f\"}", "", "f {};"},
    {LLAMA3, "{\"parameters\": null, \"name\": \"f\"}", "", "f {};"},
    /* Several calls. */
    {HERMES, CALL("f", "{}") CALL("g", "null") CALL("f", "\"\""), "", "f {};g {};f {};"},
    {HERMES, CALL("f", "{}") "\nThen:\n" CALL("g", "{}") "!", "\nThen:!", "f {};g {};"},
    {HERMES, "<tool_call>" ONE("f") "\n" ONE("g") "</tool_call>", "", "f {};g {};"},
    {HERMES, "<tool_call>\n[" ONE("f") ", " ONE("g") "]\n</tool_call>\n", "", "f {};g {};"},
    {HERMES, "<tool_call>" ONE("f") "<tool_call>" ONE("g"), "", "f {};g {};"},
    {HERMES, "<tool_call>" ONE("f") "}</tool_call> x", " x", "f {};"},
    {HERMES, "A [TOOL_CALLS] [" ONE("f") "," ONE("g") "][/TOOL_CALLS]", "A", "f {};g {};"},
    {HERMES, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]a1B2[ARGS]{}", "",
     "f {\"a\": 1};g {};"},
    {HERMES, "[TOOL_CALLS]f{\"a\": 1}[TOOL_CALLS]g{} x", " x", "f {\"a\": 1};g {};"},
    {HERMES, "<function=f>{\"a\": 1}</function>\n<function=g>{}</function>", "",
     "f {\"a\": 1};g {};"},
    {HERMES, "<tool_call>\n<function=f>{}</function></tool_call>", "", "f {};"},
    {HERMES, "<function=h>{}</function> [TOOL_CALLS]h[ARGS]{}",
     "<function=h>{}</function> h[ARGS]{}", ""},
    {LLAMA3, ONE("f") "\n" ONE("g"), "", "f {};g {};"},
    {LLAMA3, ONE("f") ONE("g") " ;\n" ONE("f") ", " ONE("g") ";", "", "f {};g {};f {};g {};"},
    {LLAMA3, "[" ONE("f") ",\n" ONE("g") "]", "", "f {};g {};"},
    {LLAMA3, " <|python_tag|> " ONE("f") "; " ONE("g") " ", "", "f {};g {};"},
    {LLAMA3, "Both: <|python_tag|>" ONE("f") "<|python_tag|>" ONE("g") " Done.", "Both: Done.",
     "f {};g {};"},
    {LLAMA3, "First: " ONE("f") " Then: " ONE("g") " Done.", "First: Then: Done.", "f {};g {};"},
    {LLAMA3, "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": [1]}}", "",
     "f {\"a\": [1]};"},
    {LLAMA3, "{\"type\": \"function\", \"function\": " ONE("f") "} x", " x", "f {};"},
    {LLAMA3, "{\"function\": \"f\", \"parameters\": {}}", "", "f {};"},
    /* Calls in Python. */
    {LLAMA3, "[f(a=1, b=\"x\"), g()]", "", "f {\"a\": 1, \"b\": \"x\"};g {};"},
    {LLAMA3, "Now: [ f(\n  a = [1, (2, 'é'), {'k': None,},],\n  b=-1.5e3,\n) ,g() ] Done.",
     "Now: Done.", "f {\"a\": [1, [2, \"é\"], {\"k\": null}], \"b\": -1.5e3};g {};"},
    {LLAMA3, "<|python_tag|>f(a=True); g(b=False)\nf()", "",
     "f {\"a\": true};g {\"b\": false};f {};"},
    {HERMES, "<tool_call>\n[f(a=''), g(a=\"\", b='''\"'\n''')]\n</tool_call>", "",
     "f {\"a\": \"\"};g {\"a\": \"\", \"b\": \"\\\"'\\n\"};"},
    {LLAMA3, "[f(a='it\\'s \\x41\\u00e9\\U0001f600\\q\\n\\\\', b=r'\\d', c=x+1, d='\\x4')]", "",
     "f {\"a\": \"it's \\u0041\\u00e9\\ud83d\\ude00\\\\q\\n\\\\\", \"b\": \"\\\\d\", \"c\": x+1, "
     "\"d\": \"\\\\x4\"};"},
    {LLAMA3, "[f(a=1), h(b=2)] x", " h(b=2)] x", "f {\"a\": 1};"},
    {LLAMA3, "[h(a=1)] [f(1)] [f(a==1)] [f (a=1)] [1, f(a=1)] f(a=1)",
     "[h(a=1)] [f(1)] [f(a==1)] [f (a=1)] [1, f(a=1)] f(a=1)", ""},
    {LLAMA3, "[f(a=\"x", "", "f {\"a\": \"x;"},
    {LLAMA3, "see [f(ci", "see", ""},
    {LLAMA3, "see [f", "see [f", ""},
    {HERMES, "[f(a=1)]", "[f(a=1)]", ""},
    /* Calls in tags. */
    {HERMES,
     "Hm.\n\n<tool_call>\n<function=g>\n<parameter=s>\n12\n</parameter>\n<parameter=i>\n12\n"
     "</parameter>\n<parameter=o>\nNone\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n"
     "<parameter=l>\n['a', \"b\"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
     "<function=f>\n</function>\n</tool_call>",
     "Hm.", "g {\"s\": \"12\", \"i\": 12, \"o\": null, \"b\": true, \"l\": [\"a\", \"b\"]};f {};"},
    {HERMES,
     "<function=g><parameter=o>\n\nif a < b:\n\t<p></p>\n\n</parameter><parameter=e>1"
     "</parameter><parameter=i>x</parameter></function> x",
     " x", "g {\"o\": \"\\nif a < b:\\n\\t<p></p>\\n\", \"e\": \"1\", \"i\": \"x\"};"},
    {HERMES,
     "<function=f><parameter=a>{\"x\": [1]}</parameter><parameter=b>x y</parameter></function>", "",
     "f {\"a\": {\"x\": [1]}, \"b\": \"x y\"};"},
    {HERMES, "<function=f><parameter=a>1\n<parameter=b>2</function></tool_call> x", " x",
     "f {\"a\": 1, \"b\": 2};"},
    {HERMES, "<tool_call><function=g><parameter=s>one\n</para", "", "g {\"s\": \"one;"},
    {HERMES, "<tool_call><function=g><parameter=i>1", "", "g {\"i\": 1;"},
    {HERMES, "<tool_call><function=f><param", "", ""},
    {HERMES, "<tool_call><function=f>no</function>", "no</function>", ""},
    {HERMES,
     "<function=g><parameter=m>{\"a\": 1}</parameter><parameter=w>1</parameter><parameter=a>2"
     "</parameter><parameter=u>3</parameter><parameter=n>null</parameter></function>",
     "", "g {\"m\": {\"a\": 1}, \"w\": \"1\", \"a\": \"2\", \"u\": 3, \"n\": null};"},
    {HERMES,
     "<function=g><parameter=m>{'a': None}</parameter><parameter=n>7</parameter></function>", "",
     "g {\"m\": {\"a\": null}, \"n\": \"7\"};"},
    {HERMES, "<function=g><parameter=l>[1 2 3]</parameter><parameter=i>1 2</parameter></function>",
     "", "g {\"l\": \"[1 2 3]\", \"i\": \"1 2\"};"},
    {LLAMA3, "[f(a=[1 2\n3], b=1 2 , c=x if y else z)]", "",
     "f {\"a\": [1 2 3], \"b\": 1 2, \"c\": x if y else z};"},
    {LLAMA3, "[f(a=abcdefgé, b=ééééé)]", "", "f {\"a\": abcdefgé, \"b\": ééééé};"},
    /* A tag in a value that closes the call, or does not. */
    {HERMES,
     "<tool_call>\n<function=g>\n<parameter=s>\nParis\n</tool_call>\nAnd more " CALL("f", "{}"),
     "\nAnd more", "g {\"s\": \"Paris\"};f {};"},
    {HERMES, "<tool_call><function=g><parameter=s>Paris</tool_call> x", " x",
     "g {\"s\": \"Paris\"};"},
    {HERMES,
     "<tool_call><function=g><parameter=s>1</tool_call><tool_call><function=g><parameter=s>2"
     "</tool_call><function=g><parameter=s>3</tool_call>",
     "", "g {\"s\": \"1\"};g {\"s\": \"2\"};g {\"s\": \"3\"};"},
    {HERMES,
     "<tool_call><function=g><parameter=s>ends with </tool_call>, as here</parameter>"
     "<parameter=i>1</parameter></function></tool_call> x",
     " x", "g {\"s\": \"ends with </tool_call>, as here\", \"i\": 1};"},
    {HERMES,
     "<function=g><parameter=s><tool_call>{}</tool_call></parameter></function></tool_call>", "",
     "g {\"s\": \"<tool_call>{}</tool_call>\"};"},
    {CODER,
     "<tool_call>\n<function=g>\n<parameter=s>\n</function>\n</parameter>\n<parameter=i>\n1\n"
     "</parameter>\n</function>\n</tool_call>\nx",
     "\nx", "g {\"s\": \"</function>\", \"i\": 1};"},
    {CODER,
     "<tool_call><function=g><parameter=s>a</function></tool_call>b</function>c</parameter>"
     "</function></tool_call>" CALL("f", "{}"),
     "", "g {\"s\": \"a</function></tool_call>b</function>c\"};f {};"},
    {CODER,
     "<tool_call><function=g><parameter=s><function=f></function> <function=f></function>"
     "</parameter></function></tool_call>",
     "", "g {\"s\": \"<function=f></function> <function=f></function>\"};"},
    {CODER,
     "<tool_call><function=g><parameter=s>\n1\n</function>\n</tool_call>\nSo <tool_call>"
     "<function=g><parameter=i>2</function></tool_call> x",
     "\nSo x", "g {\"s\": \"1\"};g {\"i\": 2};"},
    {CODER, "<function=g><parameter=s>1</function><parameter=s>2</parameter> x",
     "<parameter=s>2</parameter> x", "g {\"s\": \"1\"};"},
    {HERMES, "<tool_call><function=g><parameter=s>one\n</func", "", "g {\"s\": \"one;"},
    {HERMES, "<tool_call><function=g><parameter=s>one</parameter>\n", "", "g {\"s\": \"one\";"},
    {LLAMA3, "[f(a=\"x\", n=12", "", "f {\"a\": \"x\", \"n\": 12;"},
    /* The names that users of vLLM know. */
    {CODER,
     ONE("f") " <tool_call>\n<function=g>\n<parameter=s>\n1\n</parameter>\n</function>\n"
              "</tool_call>",
     ONE("f"), "g {\"s\": \"1\"};"},
    {GLM,
     "So.\n<tool_call>g\n<arg_key>s</arg_key>\n<arg_value>12</arg_value>\n<arg_key>i</arg_key>\n"
     "<arg_value>12</arg_value>\n<arg_key>l</arg_key>\n<arg_value>[\"a\"]</arg_value>\n"
     "</tool_call>\n<tool_call>f\n</tool_call>",
     "So.", "g {\"s\": \"12\", \"i\": 12, \"l\": [\"a\"]};f {};"},
    {GLM,
     "<tool_call>g<arg_key>s</arg_key><arg_value>\n</tool_call> x </arg_value></tool_call>"
     "<tool_call>f</tool_call> x",
     " x", "g {\"s\": \"\\n</tool_call> x \"};f {};"},
    {GLM,
     "<tool_call>g\n<arg_key>s</arg_key><arg_value>a<arg_key>i</arg_key><arg_value>2</tool_call> x",
     " x", "g {\"s\": \"a\", \"i\": 2};"},
    {GLM, "<tool_call>g\n<arg_key>s</arg_key>\n<arg_value>one</arg_va", "", "g {\"s\": \"one;"},
    {GLM, "<tool_call>g\n<arg_key>s</ar", "", ""},
    {GLM, "<tool_call>h\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
     "h\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n", ""},
    {GLM, "<tool_call>g says</tool_call>", "g says", ""},
    {PYTHONIC, "[f(a=1), g(s='x')]", "", "f {\"a\": 1};g {\"s\": \"x\"};"},
    {PYTHONIC, "[h(a=1)] " ONE("f"), "[h(a=1)]", "f {};"},
    /* Calls in fenced code. */
    {LLAMA3, "[f(a=1)]\n```python\nprint(1)\n```\nbye", "\n```python\nprint(1)\n```\nbye",
     "f {\"a\": 1};"},
    {HERMES, "<tool_call>```python\nprint(1)\n```\nbye", "```python\nprint(1)\n```\nbye", ""},
    {LLAMA3, "Here:\n```xml\n<function=f>{\"a\":1}</function>\n```\nbye", "Here:\nbye",
     "f {\"a\":1};"},
    {HERMES, "```xml\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n```", "",
     "f {\"a\": 1};"},
    {HERMES,
     "<tool_call>\n```xml\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n```\n"
     "</tool_call>",
     "", "f {\"a\": 1};"},
    {LLAMA3, "```json\n" CALL("f", "{}") "\n```\n", "", "f {};"},
    {HERMES, "```json\n" CALL("f", "{}") "\n```\nbye", "\nbye", "f {};"},
    {HERMES, "```\n<tool_call>no</tool_call>\n```", "```\nno\n```", ""},
    {LLAMA3, "```json\n" ONE("f") "\n{\"note\":1}\n```\nbye", "\n{\"note\":1}\n\nbye", "f {};"},
    {LLAMA3, "```json\n" ONE("f") "\nThen:\n```python\nprint(1)\n```",
     "\nThen:\n```python\nprint(1)\n```", "f {};"},
    {LLAMA3, "```json\n" ONE("f") "\n```python\nprint(1)\n```", "\n```python\nprint(1)\n```",
     "f {};"},
    {LLAMA3, "```python\nprint(1)\n```\n" ONE("f"), "```python\nprint(1)\n```", "f {};"},
    {LLAMA3, "```json\n{\"a\": 1}\n```\n" ONE("f"), "```json\n{\"a\": 1}\n```", "f {};"},
    {LLAMA3, "```python\nprint(1)\n```\n```json\n" ONE("f") "\n```\nbye",
     "```python\nprint(1)\n```\nbye", "f {};"},
    {HERMES, "<tool_call>" ONE("f") "</tool_call>\n```json\n" ONE("g") "\n```",
     "\n```json\n" ONE("g") "\n```", "f {};"},
    {LLAMA3, ONE("f") "\n```json\n" ONE("g") "\n```", "", "f {};g {};"},
    {LLAMA3, "```json\n" ONE("f") "\n```", "", "f {};"},
    {LLAMA3, "Both:\n```\n[" ONE("f") ", " ONE("g") "]\n```\nDone.", "Both:\nDone.", "f {};g {};"},
    {LLAMA3, "```json\n" ONE("f") "\n" ONE("g") "\n```\n```json\n" ONE("f") "\n```", "",
     "f {};g {};f {};"},
    {LLAMA3, "```python\n[f(a=1), g()]\n```", "", "f {\"a\": 1};g {};"},
    {HERMES, "<tool_call>\n```json\n" ONE("f") "\n```\n</tool_call>", "", "f {};"},
    {LLAMA3, "```json\n{\"a\": 1}\n``` ```x\ny```", "```json\n{\"a\": 1}\n``` ```x\ny```", ""},
    {LLAMA3, "```json\n" ONE("h") "\n```", "```json\n" ONE("h") "\n```", ""},
    {HERMES, "```json\n" ONE("f") "\n```", "```json\n" ONE("f") "\n```", ""},
    {LLAMA3, "a ```json", "a ```json", ""},
    {LLAMA3, "a ```json\n", "a ```json\n", ""},
    /* A call whose text is cut off or is no JSON remains a call. */
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x", "", "f {\"a\": \"x;"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\", "", "f {\"a;"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": \"", "", "f ;"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_", "", "f {};"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>" CALL("g", "{}"),
     "", "f {\"a\": 1};g {};"},
    {HERMES,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1</tool_call> x " CALL("g", "{}"), " x",
     "f {\"a\": [1;g {};"},
    {HERMES, CALL("f", "{'a': 'it is'}") " x", " x", "f {'a': 'it is'};"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}} no</tool_call>", " no", "f {};"},
    {HERMES, CALL("f", "{\"a\": \"\\\"</tool_call>\"}") " x", " x",
     "f {\"a\": \"\\\"</tool_call>\"};"},
    {LLAMA3, "{\"name\": \"f\", \"parameters\": {\"a\": ", "", "f {\"a\": ;"},
    {LLAMA3, ONE("f") " and more", " and more", "f {};"},
    {LLAMA3, ONE("f") "; {\"a\": 1}; " ONE("g"), " {\"a\": 1};", "f {};g {};"},
    /* No mark is content, nor is a call that is cut off before its arguments. */
    {HERMES, "<tool_call>no</tool_call> x " CALL("f", "{}"), "no x", "f {};"},
    {HERMES, "<tool_call>no", "no", ""},
    {HERMES, "a <tool_call>{\"name\": \"f\"", "a", ""},
    {HERMES, "a <tool_call>\n{", "a", ""},
    {HERMES, "a <tool_cal", "a", ""},
    {HERMES, ONE("f") "</tool_call>", ONE("f"), ""},
    {HERMES, "<tool_call>{\"f</tool_call>" CALL("g", "{}"), "{\"f", "g {};"},
    {HERMES, "a <function=f", "a", ""},
    {LLAMA3, "{\"name\": \"f\", \"para", "", ""},
    {LLAMA3, "{\"name\": \"", "", ""},
    {LLAMA3, "{\"name\": \"x", "{\"name\": \"x", ""},
    {LLAMA3, "{\"na", "{\"na", ""},
    {LLAMA3, "<|python_tag|>print(1)", "print(1)", ""},
    {LLAMA3, "  ", "  ", ""},
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

/* If the model ends the text, arguments that are made JSON are closed. */
static void arguments_are_closed_when_the_model_stops(void **state)
{
    (void)state;
    static const struct {
        cn_opt_tool_parser form;
        const char *text, *calls;
    } cases[] = {
        {HERMES, "<tool_call><function=g><parameter=s>Paris\n</parameter>\n",
         "g {\"s\": \"Paris\"};"},
        {HERMES, "<tool_call><function=g><parameter=s>Paris\n</func", "g {\"s\": \"Paris\"};"},
        {HERMES, "<tool_call><function=g><parameter=s>Paris\n</tool_ca", "g {\"s\": \"Paris\"};"},
        {HERMES, "<function=g><parameter=i>12", "g {\"i\": 12};"},
        {HERMES, "<function=g><parameter=s>a</parameter><parameter=", "g {\"s\": \"a\"};"},
        {HERMES, "<function=f><parameter=a>{\"x\": 1}</parameter></function",
         "f {\"a\": {\"x\": 1}};"},
        {LLAMA3, "[f(a=12", "f {\"a\": 12};"},
        {LLAMA3, "[f(a='it\\", "f {\"a\": \"it\\\\\"};"},
        {LLAMA3, "[f(a='', b=\"", "f {\"a\": \"\", \"b\": \"\"};"},
        {LLAMA3, "[f(a='', b=''", "f {\"a\": \"\", \"b\": \"\"};"},
        {LLAMA3, "[f(a=\"\"\"x\"\"", "f {\"a\": \"x\\\"\\\"\"};"},
        {LLAMA3, "[f(a=True, b", "f {\"a\": true, \"b\": null};"},
        {PYTHONIC, "[f(a=True, b=", "f {\"a\": true, \"b\": null};"},
        {PYTHONIC, "[f(a=[1, 'x", "f {\"a\": [1, \"x\"]};"},
        {PYTHONIC, "[f(a=[1, 2], b=(3, ", "f {\"a\": [1, 2], \"b\": [3]};"},
        {PYTHONIC, "[f(a={'x': [{'y': 1}, {", "f {\"a\": {\"x\": [{\"y\": 1}, {}]}};"},
        {PYTHONIC, "[f(a={'x': 1, 'y': ", "f {\"a\": {\"x\": 1, \"y\": null}};"},
        {PYTHONIC, "[f(a={'x': 1, 'y", "f {\"a\": {\"x\": 1, \"y\": null}};"},
        {PYTHONIC, "[f(a={'x': [1], 'y': 'z', ", "f {\"a\": {\"x\": [1], \"y\": \"z\"}};"},
        {PYTHONIC, "[f(a=[[{'x': {}}", "f {\"a\": [[{\"x\": {}}]]};"},
        {GLM, "<tool_call>g\n<arg_key>s</arg_key><arg_value>1", "g {\"s\": \"1\"};"},
        {GLM, "<tool_call>g\n<arg_key>i</arg_key><arg_value>1</arg_value><arg_k", "g {\"i\": 1};"},
        {CODER, "<function=g><parameter=s>1</function", "g {\"s\": \"1\"};"},
        {CODER, "<function=g><parameter=s>1</function>", "g {\"s\": \"1\"};"},
        {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", "f {\"a\": 1;"},
    };
    is_stopped = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t first = 1; first <= strlen(cases[i].text); first++) {
            const found got = find(cases[i].form, false, cases[i].text, first, 1);
            assert_string_equal(got.content, "");
            assert_string_equal(got.calls, cases[i].calls);
        }
    is_stopped = false;
}

static size_t draw(uint32_t *at, size_t n) { return cn_philox_u64(7, 0, (*at)++) % n; }

/* With a form of calls or JSON, the beginning decides: what is in JSON is not a call. */
static void json_beside_calls_is_content(void **state)
{
    (void)state;
    static const struct {
        cn_opt_tool_parser form;
        const char *text, *content, *calls;
    } cases[] = {
        {HERMES, CALL("f", "{}") CALL("g", "{}"), "", "f {};g {};"},
        {HERMES, "{\"a\": \"<tool_call>" ONE("f") "\"}", "{\"a\": \"<tool_call>" ONE("f") "\"}",
         ""},
        {HERMES, " {\"a\": \"</tool_call>\"}", " {\"a\": \"</tool_call>\"}", ""},
        {LLAMA3, ONE("f") ";" ONE("g"), "", "f {};g {};"},
        {LLAMA3, ONE("h"), ONE("h"), ""},
        {LLAMA3, "{\"name\": \"f\", \"age\": 5}", "{\"name\": \"f\", \"age\": 5}", ""},
        {LLAMA3, "{\"a\": [" ONE("f") "], \"b\": \"[f(a=1)] ```{\"}",
         "{\"a\": [" ONE("f") "], \"b\": \"[f(a=1)] ```{\"}", ""},
        {LLAMA3, "[{\"a\": 1}, " ONE("f") "]", "[{\"a\": 1}, " ONE("f") "]", ""},
        {LLAMA3, "\"<|python_tag|>" ONE("f"), "\"<|python_tag|>" ONE("f"), ""},
        {LLAMA3, "{\"a\": \"x", "{\"a\": \"x", ""},
        {HERMES, "<tool", "", ""},
        {HERMES, " <", "", ""},
        {MISTRAL, "[TOO", "", ""},
        {MISTRAL, "[TOOL_CALLS]" ONE("f"), "", "f {};"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t first = 1; first <= strlen(cases[i].text); first++) {
            cn_tool_finder f = {.form = cases[i].form, .names = names, .is_either = true};
            cn_buf content = {0};
            found got;
            cn_tool_finder_add(&f, cases[i].text, first, false, &content);
            cn_tool_finder_add(&f, cases[i].text + first, strlen(cases[i].text) - first, false,
                               &content);
            assert_int_equal(cn_tool_finder_add(&f, NULL, 0, true, &content), CN_OK);
            describe_whole(&f, &content, &got);
            assert_string_equal(got.content, cases[i].content);
            assert_string_equal(got.calls, cases[i].calls);
            cn_tool_finder_free(&f);
            cn_buf_free(&content);
        }
}

static const char *const parts[] = {"<tool_call>",
                                    "</tool_call>",
                                    "{",
                                    "}",
                                    "\"name\"",
                                    ":",
                                    "\"f\"",
                                    ",",
                                    "\"arguments\"",
                                    "{\"a\": 1}",
                                    "\"",
                                    "\\",
                                    " ",
                                    "\n",
                                    ";",
                                    "é",
                                    "<",
                                    "[",
                                    "]",
                                    "7",
                                    "{\"name\": \"f\"",
                                    ", \"parameters\": {",
                                    "<|python_tag|>",
                                    "x",
                                    "[TOOL_CALLS]",
                                    "f",
                                    "[ARGS]",
                                    "<function=f>",
                                    "</function>",
                                    "null",
                                    "{\"name\": \"g\", \"arguments\": ",
                                    "\"{\\\"a",
                                    "\\u00e9",
                                    "[{",
                                    "f(",
                                    "a=",
                                    "'",
                                    ")",
                                    "[f(a=",
                                    "<parameter=s>",
                                    "<arg_key>",
                                    "</arg_key>",
                                    "<arg_value>",
                                    "</arg_value>",
                                    "</parameter>",
                                    "```",
                                    "```json\n",
                                    "=",
                                    "1",
                                    "<function=g>",
                                    "(",
                                    "``",
                                    "```\n",
                                    "   ",
                                    "<parameter=m>",
                                    "[1 2]"};

/* Random texts that resemble calls, cut at random: `find` compares whole and streamed. */
static void random_texts_have_the_same_calls_however_cut(void **state)
{
    (void)state;
    uint32_t at = 0;
    for (int i = 0; i < 20000; i++) {
        char text[512] = "";
        const size_t n = 1 + draw(&at, 16);
        for (size_t k = 0; k < n; k++) strcat(text, parts[draw(&at, sizeof parts / sizeof *parts)]);
        const cn_opt_tool_parser form = i % 2 ? HERMES : LLAMA3;
        is_stopped = i % 5 == 0;
        const found whole = find(form, i % 3 == 0, text, strlen(text), 1);
        const found cut = find(form, i % 3 == 0, text, 1 + draw(&at, 20), 1 + draw(&at, 20));
        if (strcmp(whole.content, cut.content) || strcmp(whole.calls, cut.calls))
            fail_msg("'%s': content '%s', '%s', calls '%s', '%s'", text, whole.content, cut.content,
                     whole.calls, cut.calls);
    }
    is_stopped = false;
}

enum { N_PIECES = 4000, PIECE_BYTES = 80 };

/* Reads a text as whole pieces, and repeats a last one. Each byte is looked at a few times. */
static void expect_linear(uint32_t flags, const char *begin, const char *repeated, size_t n_whole)
{
    cn_tool_finder f = {.form = flags % 2 ? HERMES : LLAMA3, .names = names};
    cn_buf content = {0}, text = {0};
    f.is_either = flags / 2 % 2;
    cn_buf_addf(&text, "%s", begin);
    for (int k = 0; k < N_PIECES; k++) cn_buf_addf(&text, "%*s", PIECE_BYTES, "");
    for (int k = 0; *repeated && k < N_PIECES; k++) cn_buf_addf(&text, "%s", repeated);
    for (size_t at = 0, n; at < text.len; at += n) {
        n = n_whole < text.len - at ? n_whole : text.len - at;
        assert_int_equal(cn_tool_finder_add(&f, text.data + at, n, false, &content), CN_OK);
    }
    assert_int_equal(cn_tool_finder_add(&f, NULL, 0, true, &content), CN_OK);
    if (f.n_work > 100 * text.len)
        fail_msg("'%s' and '%s' in pieces of %zu: %" PRIu64 " for %zu", begin, repeated, n_whole,
                 f.n_work, text.len);
    cn_tool_finder_free(&f);
    cn_buf_free(&content);
    cn_buf_free(&text);
}

/* White space that is held back is read once, whatever comes before and after it, and marks are
 * dropped without moving all that follows. */
static void the_work_is_linear(void **state)
{
    (void)state;
    static const char *const begins[] = {"",
                                         "x",
                                         "```\n",
                                         "[",
                                         "[f(",
                                         "<tool_call>",
                                         CALL("f", "{}"),
                                         CALL("f", "{}") "x",
                                         "<tool_call>{\"name\": \"f\", \"arguments\": \"",
                                         "<tool_call>{\"name\": \"f\", \"arguments\": [",
                                         "<tool_call>{\"name\": \"h\", \"arguments\": \"",
                                         "<function=g><parameter=s>",
                                         "<function=g><parameter=s></tool_call>",
                                         "[TOOL_CALLS]f",
                                         "```json\n" ONE("f")};
    static const char *const repeated[] = {
        "",        "<tool_call>",    "</tool_call>", "<function=g><parameter=s></tool_call>",
        "```",     "[TOOL_CALLS]f[", "[f(",          "\"{",
        "{\"a\":", "<function=g> "};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        for (size_t k = 0; k < sizeof repeated / sizeof *repeated; k++) {
            expect_linear((uint32_t)(i + k), begins[i], repeated[k], 80);
            expect_linear((uint32_t)(i + k + 1), begins[i], repeated[k], SIZE_MAX);
        }
}

/* Their templates refuse other ids. */
static void ids_of_mistral_have_nine_letters_and_digits(void **state)
{
    (void)state;
    static const char text[] = "Now [TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]"
                               "[TOOL_CALLS]g[ARGS]{\"i\": 1}[TOOL_CALLS]f{}";
    cn_tool_finder f = {.form = MISTRAL, .names = names};
    cn_buf content = {0};
    for (const char *at = text; *at; at++)
        assert_int_equal(cn_tool_finder_add(&f, at, 1, false, &content), CN_OK);
    assert_int_equal(cn_tool_finder_add(&f, NULL, 0, true, &content), CN_OK);
    assert_string_equal(content.data, "Now");
    assert_int_equal(f.n_calls, 3);
    assert_string_equal(f.calls[1].arguments.data, "{\"i\": 1}");
    for (uint32_t i = 0; i < f.n_calls; i++) {
        assert_int_equal(strlen(f.calls[i].id), 9);
        for (const char *c = f.calls[i].id; *c; c++) assert_true(isalnum((unsigned char)*c));
    }
    assert_string_not_equal(f.calls[0].id, f.calls[1].id);
    cn_tool_finder_free(&f);
    cn_buf_free(&content);
}

/* What structured output makes the model write is read as calls by the same form. */
static void forced_calls_are_in_a_form_that_is_read(void **state)
{
    (void)state;
    for (int form = HERMES; form <= PYTHONIC; form++) {
        json_t *made = cn_tool_calls_form((cn_opt_tool_parser)form, tools, NULL, false);
        const char *begin = json_string_value(json_object_get(made, "begin")),
                   *end = json_string_value(json_object_get(made, "end"));
        cn_buf text = {0};
        for (int i = 0; i < 2; i++)
            cn_buf_addf(&text, "%s%s{\"name\":\"f\",\"%s\":{}}%s",
                        i ? json_string_value(json_object_get(made, "between")) : "", begin,
                        json_string_value(json_object_get(made, "arguments")), end);
        if (form != MISTRAL) {
            const found got = find((cn_opt_tool_parser)form, false, text.data, 3, 1);
            assert_string_equal(got.calls, "f {};f {};");
            assert_string_equal(got.content, "");
        } else {
            assert_string_equal(text.data, "[TOOL_CALLS]{\"name\":\"f\",\"arguments\":{}}"
                                           "[TOOL_CALLS]{\"name\":\"f\",\"arguments\":{}}");
        }
        cn_buf_free(&text);
        json_decref(made);
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
        {HERMES,
         {"<tool_call>\n{\"name\": \"f\", ", "\"arguments\": {\"te", "xt\": \"one", " two\"}", "}"},
         {"", "f {\"te", "xt\": \"one", " two\"}", ""}},
        {LLAMA3,
         {"{\"name\": \"f\"", ", \"parameters\": {", "\"a\": [1", ", 2]}",
          "}; {\"name\": \"g\", \"arguments\": {}}"},
         {"", "f {", "\"a\": [1", ", 2]}", ";g {}"}},
    };
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        cn_tool_finder f = {.form = streams[i].form, .names = names};
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
    found got = find(HERMES, true, CALL("f", "{}") CALL("g", "{}") "end", 7, 7);
    assert_string_equal(got.calls, "f {};");
    assert_string_equal(got.content, "end");
}

/* Text that cannot be part of a call is content at once: a stream does not stall. */
static void content_is_not_held_back(void **state)
{
    (void)state;
    cn_tool_finder f = {.form = HERMES, .names = names};
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
        cn_tool_finder f = {.form = HERMES, .names = names};
        cn_buf content = {0}, text = {0};
        for (int i = 0; i < n_units; i++) cn_buf_addf(&text, "%s", unit);
        cn_buf_addf(&text, "\"< %s", call);
        for (size_t at = 0; at < text.len; at += 1000)
            assert_int_equal(cn_tool_finder_add(&f, text.data + at,
                                                text.len - at < 1000 ? text.len - at : 1000, false,
                                                &content),
                             CN_OK);
        assert_int_equal(cn_tool_finder_add(&f, NULL, 0, true, &content), CN_OK);
        assert_int_equal(f.n_calls, n_units == 10);
        size_t n_dropped = (size_t)n_units * strlen(CN_TOOL_CALL_OPEN);
        n_dropped += f.n_calls ? strlen(call) + 1 : strlen(CN_TOOL_CALL_OPEN CN_TOOL_CALL_CLOSE);
        assert_int_equal(content.len, text.len - n_dropped);
        assert_null(strstr(content.data, "tool_call"));
        cn_tool_finder_free(&f);
        cn_buf_free(&content);
        cn_buf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_found_however_the_text_is_cut),
        cmocka_unit_test(json_beside_calls_is_content),
        cmocka_unit_test(random_texts_have_the_same_calls_however_cut),
        cmocka_unit_test(arguments_are_closed_when_the_model_stops),
        cmocka_unit_test(the_work_is_linear),
        cmocka_unit_test(ids_of_mistral_have_nine_letters_and_digits),
        cmocka_unit_test(forced_calls_are_in_a_form_that_is_read),
        cmocka_unit_test(arguments_are_not_held_back),
        cmocka_unit_test(one_call_is_kept_if_they_may_not_be_parallel),
        cmocka_unit_test(content_is_not_held_back),
        cmocka_unit_test(text_that_begins_like_many_calls_is_content),
    };
    return cmocka_run_group_tests(tests, make_tools, free_tools);
}
