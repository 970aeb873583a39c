/* api_tools.c - tool calls in bodies, chunks and structured output. See api_tools.h. */
#include "engine/api/api_tools.h"

#include "engine/text/call_marks.h"

enum { CALL_BYTES = 110 /* of a call in a body, without its values */ };

bool cn_tools_need_no_mark(cn_opt_tool_parser form)
{
    return form == CN_OPT_TOOLS_LLAMA3_JSON || form == CN_OPT_TOOLS_PYTHONIC;
}

json_t *cn_tool_names(const json_t *tools)
{
    size_t i;
    json_t *tool, *names = json_object();
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const json_t *name = json_object_get(function, "name");
        json_t *parameters = json_object_get(function, "parameters");
        if (!json_is_object(parameters)) parameters = json_true();
        if (json_object_setn(names, json_string_value(name), json_string_length(name),
                             parameters) == 0)
            continue;
        json_decref(names);
        return NULL;
    }
    return names;
}

uint64_t cn_tool_finder_bytes(const cn_tool_finder *f)
{
    uint64_t bytes = f->held.len + f->word.len + f->decoded.len + f->open.arguments.len;
    bytes += f->xml.key.len + f->xml.text.len;
    for (uint32_t i = 0; i < f->n_calls; i++) {
        const cn_tool_call *call = &f->calls[i];
        bytes += CALL_BYTES + json_string_length(call->name) + call->arguments.len;
    }
    return bytes;
}

json_t *cn_tool_finder_calls(const cn_tool_finder *f)
{
    json_t *calls = f->n_calls > 0 ? json_array() : NULL;
    for (uint32_t i = 0; i < f->n_calls; i++) {
        const cn_tool_call *call = &f->calls[i];
        json_array_append_new(calls,
                              json_pack("{s:s, s:s, s:{s:O, s:s%}}", "id", call->id, "type",
                                        "function", "function", "name", call->name, "arguments",
                                        call->arguments.data ? call->arguments.data : "",
                                        call->arguments.len));
    }
    return calls;
}

/* The arguments that were not taken of the last call whose name was. */
static cn_buf *untaken_arguments(const cn_tool_finder *f)
{
    cn_buf *arguments = f->n_taken > 0 ? &f->calls[f->n_taken - 1].arguments : NULL;
    return arguments && arguments->len > 0 ? arguments : NULL;
}

bool cn_tool_finder_has_more(const cn_tool_finder *f)
{
    return untaken_arguments(f) || f->n_taken < f->n_calls;
}

json_t *cn_tool_finder_take(cn_tool_finder *f)
{
    cn_buf *arguments = untaken_arguments(f);
    if (arguments) {
        json_t *piece = json_pack("[{s:i, s:{s:s%}}]", "index", (int)f->n_taken - 1, "function",
                                  "arguments", arguments->data, arguments->len);
        /* Nothing more comes of a call before the last. */
        if (f->n_taken < f->n_calls)
            cn_buf_free(arguments);
        else
            cn_buf_clear(arguments);
        return piece;
    }
    if (f->n_taken == f->n_calls) return NULL;
    cn_tool_call *call = &f->calls[f->n_taken];
    json_t *name = call->name;
    call->name = NULL;
    return json_pack("[{s:i, s:s, s:s, s:{s:o, s:s}}]", "index", (int)f->n_taken++, "id", call->id,
                     "type", "function", "function", "name", name, "arguments", "");
}

json_t *cn_tool_calls_form(cn_opt_tool_parser form, const json_t *tools, const char *name, bool one)
{
    const bool unmarked = cn_tools_need_no_mark(form), mistral = form == CN_OPT_TOOLS_MISTRAL;
    const char *begin = unmarked ? "" : mistral ? CN_MISTRAL_CALLS : CN_TOOL_CALL_OPEN;
    const char *end = unmarked || mistral ? "" : CN_TOOL_CALL_CLOSE;
    size_t i;
    json_t *tool, *functions = json_array();
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        json_t *parameters = json_object_get(function, "parameters");
        json_t *entry = json_pack("{s:O}", "name", json_object_get(function, "name"));
        const bool chosen =
            !name || strcmp(name, json_string_value(json_object_get(entry, "name"))) == 0;
        if (json_is_object(parameters)) json_object_set(entry, "parameters", parameters);
        if (json_is_true(json_object_get(function, "strict")))
            json_object_set_new(entry, "strict", json_true());
        if (chosen) json_array_append(functions, entry);
        json_decref(entry);
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:b, s:o}", "begin", begin, "between",
                     unmarked ? ";" : "", "end", end, "arguments",
                     unmarked ? "parameters" : "arguments", "one", (int)one, "functions",
                     functions);
}
