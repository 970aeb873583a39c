/* calls.c - see calls.h. */
#include "engine/grammar/calls.h"

#include <stdlib.h>

#include "engine/base/json.h"
#include "engine/grammar/json_rules.h"
#include "engine/grammar/schema.h"

enum { SHOWN_BYTES = 96 };

/* White space around a call. */
static uint32_t emit_space(cn_net *net, const cn_json_rules *r, uint32_t from)
{
    const uint32_t to = cn_net_node_new(net);
    cn_net_empty(net, cn_json_space(net, r, from), to);
    cn_net_byte(net, from, to, '\n', '\n');
    return to;
}

/* Reads a member of the form; "" if there is none. */
static uint32_t emit_text(cn_net *net, uint32_t from, const json_t *form, const char *key)
{
    const json_t *v = json_object_get(form, key);
    return json_string_length(v)
               ? cn_net_text(net, from, json_string_value(v), json_string_length(v))
               : from;
}

static cn_status emit_string(cn_net *net, uint32_t from, const json_t *string, uint32_t *to)
{
    char *text = json_dumps(string, JSON_ENCODE_ANY);
    if (!text) return cn_fail(CN_ERR_MEMORY, "out of memory for a function");
    *to = cn_net_text(net, from, text, strlen(text));
    free(text);
    return net->status;
}

/* A rule that reads the arguments of a function. */
static cn_status arguments_rule(cn_net *net, const cn_json_rules *r, json_t *parameters,
                                bool strict, uint32_t *rule)
{
    *rule = r->any_object;
    if (parameters && json_object_size(parameters) == 0) return CN_OK;
    *rule = cn_net_rule_new(net);
    CN_TRY(net->status);
    if (parameters) return cn_schema_emit(parameters, strict, net, r, *rule);
    const cn_net_rule none = net->rules[*rule];
    cn_net_byte(net, cn_json_mark(net, r, none.start, '{'), none.end, '}', '}');
    return net->status;
}

/* Reads a call from its name on, up to the arguments. */
static cn_status emit_function(cn_net *net, const cn_json_rules *r, const json_t *form,
                               json_t *function, uint32_t from, uint32_t to)
{
    uint32_t rule, at = from;
    const json_t *name = json_object_get(function, "name");
    char shown[SHOWN_BYTES], about[SHOWN_BYTES + 32];
    if (!json_is_string(name)) return cn_fail(CN_ERR_ARG, "expected functions with names");
    snprintf(about, sizeof about, "parameters of function %s",
             cn_json_printable(json_string_value(name), shown, sizeof shown));
    net->about = about;
    const cn_status status =
        arguments_rule(net, r, json_object_get(function, "parameters"),
                       json_is_true(json_object_get(function, "strict")), &rule);
    net->about = NULL;
    if (status != CN_OK) return cn_fail_within(status, "%s", about);
    CN_TRY(emit_string(net, from, name, &at));
    CN_TRY(
        emit_string(net, cn_json_mark(net, r, at, ','), json_object_get(form, "arguments"), &at));
    cn_net_call(net, cn_json_mark(net, r, at, ':'), to, rule);
    return net->status;
}

cn_status cn_calls_emit(json_t *form, const char *whitespace, cn_net *net)
{
    static const char name[] = "\"name\"";
    const cn_net_rule root = net->rules[0];
    json_t *functions = json_object_get(form, "functions"), *function;
    size_t i;
    json_t *message = json_object_get(form, "message");
    cn_json_rules rules;
    if (json_array_size(functions) == 0 || !json_is_string(json_object_get(form, "arguments")))
        return cn_fail(CN_ERR_ARG, "expected the form of calls, with functions");
    CN_TRY(cn_json_rules_add(net, whitespace, &rules));
    if (message)
        CN_TRY(cn_schema_emit(message, json_is_true(json_object_get(form, "message_strict")), net,
                              &rules, 0));
    const uint32_t call = cn_net_node_new(net), behind = cn_net_node_new(net);
    cn_net_empty(net, root.start, call);
    uint32_t at = emit_space(net, &rules, emit_text(net, call, form, "begin"));
    at = cn_net_text(net, cn_json_mark(net, &rules, at, '{'), name, sizeof name - 1);
    at = cn_json_mark(net, &rules, at, ':');
    json_array_foreach(functions, i, function)
        CN_TRY(emit_function(net, &rules, form, function, at, behind));
    const uint32_t close = cn_json_space(net, &rules, behind), closed = cn_net_node_new(net);
    cn_net_byte(net, close, closed, '}', '}');
    at = closed;
    if (json_string_length(json_object_get(form, "end")))
        at = emit_text(net, emit_space(net, &rules, at), form, "end");
    cn_net_empty(net, at, root.end);
    if (json_is_true(json_object_get(form, "one"))) return net->status;
    at = emit_text(net, at, form, "between");
    cn_net_empty(net, emit_space(net, &rules, at), call);
    return net->status;
}
