/* xml_arguments.c - see xml_arguments.h. */
#include "engine/api/xml_arguments.h"

#include <stdlib.h>

#include "engine/api/python_arguments.h"
#include "engine/base/json.h"
#include "engine/base/json_pointer.h"
#include "engine/text/call_marks.h"

static const char parameter_tag[] = "<parameter=", parameter_end[] = "</parameter>";
static const char function_tag[] = "<function=", function_end[] = "</function>";
static const char key_tag[] = CN_ARGUMENT_KEY, key_end[] = "</arg_key>";
static const char value_tag[] = "<arg_value>", value_end[] = "</arg_value>";
static const char call_tag[] = CN_TOOL_CALL_OPEN, call_end[] = CN_TOOL_CALL_CLOSE;

enum {
    MAX_TAG_BYTES = 512,
    MAX_SCHEMAS = 64 /* that are looked at for the types of a parameter */
};

static bool buf_ends_with(const cn_buf *b, const char *word)
{
    const size_t n = strlen(word);
    return b->len >= n && memcmp(b->data + b->len - n, word, n) == 0;
}

static bool is_text(const cn_buf *b, const char *word)
{
    return b->len == strlen(word) && buf_ends_with(b, word);
}

/* ---- values ---- */

enum { STRING = 1 << JSON_STRING, NUMBERS = 1 << JSON_REAL | 1 << JSON_INTEGER };

static unsigned xml_type_of_name(const char *name)
{
    static const struct {
        const char *name;
        unsigned types;
    } types[] = {
        {"string", STRING},         {"number", NUMBERS},
        {"integer", NUMBERS},       {"object", 1 << JSON_OBJECT},
        {"array", 1 << JSON_ARRAY}, {"boolean", 1 << JSON_TRUE | 1 << JSON_FALSE},
        {"null", 1 << JSON_NULL},
    };
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(name, types[i].name) == 0) return types[i].types;
    return 0;
}

static unsigned xml_types_of(const json_t *root, const json_t *schema, uint32_t *n_left);

/* The types of any schema of a list, as bits of json_type; 0: any type. */
static unsigned types_of_any(const json_t *root, const json_t *list, uint32_t *n_left)
{
    unsigned types = 0;
    size_t i;
    json_t *schema;
    json_array_foreach(list, i, schema)
    {
        const unsigned one = xml_types_of(root, schema, n_left);
        if (one == 0) return 0;
        types |= one;
    }
    return types;
}

/* The types that the schema itself names. */
static unsigned own_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    unsigned types = xml_type_of_name(json_string_value(type));
    size_t i;
    json_t *v;
    json_array_foreach(type, i, v) types |= xml_type_of_name(json_string_value(v));
    json_array_foreach(json_object_get(schema, "enum"), i, v) types |= 1u << json_typeof(v);
    v = json_object_get(schema, "const");
    if (v) types |= 1u << json_typeof(v);
    if (types && json_is_true(json_object_get(schema, "nullable"))) types |= 1u << JSON_NULL;
    return types;
}

/* The types of values of a schema, as bits of json_type; 0: any type. */
static unsigned xml_types_of(const json_t *root, const json_t *schema, uint32_t *n_left)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    unsigned types = own_types(schema);
    size_t i;
    json_t *part;
    if (types || *n_left == 0) return types;
    --*n_left;
    if (ref && *ref == '#') types = xml_types_of(root, cn_json_find_ref(root, ref), n_left);
    if (!types) types = types_of_any(root, json_object_get(schema, "anyOf"), n_left);
    if (!types) types = types_of_any(root, json_object_get(schema, "oneOf"), n_left);
    json_array_foreach(json_object_get(schema, "allOf"), i, part)
    {
        if (types) break;
        types = xml_types_of(root, part, n_left);
    }
    return types;
}

static cn_status put_string(cn_buf *out, const char *text, size_t n, bool is_whole)
{
    json_t *string = cn_json_textn(text, n);
    char *dumped = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    const size_t len = dumped ? strlen(dumped) : 0;
    const cn_status status = dumped ? cn_buf_add(out, dumped, is_whole ? len : len - 1)
                                    : cn_fail(CN_ERR_MEMORY, "out of memory for a tool call");
    json_decref(string);
    free(dumped);
    return status;
}

/* Appends the text if it is JSON of one of the types. */
static cn_status try_json(cn_buf *out, const char *text, size_t n, unsigned types, bool *done)
{
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY, NULL);
    *done = v && (types >> json_typeof(v) & 1);
    json_decref(v);
    return *done ? cn_buf_add(out, text, n) : CN_OK;
}

/* Appends the text as a value of one of the types; 0: of any. */
static cn_status put_xml_value(cn_buf *out, const char *text, size_t n, unsigned types)
{
    cn_buf literal = {0};
    bool done = false;
    cn_status status = CN_OK;
    if (types != STRING) status = try_json(out, text, n, types ? types : ~0u, &done);
    if (status == CN_OK && !done && types && types != STRING) {
        status = cn_python_literal(text, n, &literal);
        if (status == CN_OK)
            status = try_json(out, literal.data ? literal.data : "", literal.len,
                              types & ~(unsigned)STRING, &done);
        cn_buf_free(&literal);
    }
    return done || status != CN_OK ? status : put_string(out, text, n, true);
}

/* A line break after the opening tag and one before the closing tag are not part of a text. */
static void trim_xml(const char **text, size_t *n)
{
    if (*n > 0 && **text == '\n') {
        ++*text;
        --*n;
    }
    if (*n > 0 && (*text)[*n - 1] == '\n') --*n;
}

static unsigned types_of_parameter(const cn_xml_args *x)
{
    uint32_t n_left = MAX_SCHEMAS;
    const json_t *schema = json_object_getn(json_object_get(x->parameters, "properties"),
                                            x->key.data ? x->key.data : "", x->key.len);
    return xml_types_of(x->parameters, schema, &n_left);
}

/* The text without its last n_tag bytes is a value. */
static cn_status end_value(cn_xml_args *x, size_t n_tag, cn_buf *out)
{
    const char *text = x->text.data ? x->text.data : "";
    size_t n = x->text.len - n_tag;
    if (!x->is_pair) trim_xml(&text, &n);
    x->in_value = false;
    x->n_open = 0;
    x->closed_at = 0;
    const cn_status status = put_xml_value(out, text, n, types_of_parameter(x));
    cn_buf_clear(&x->text);
    return status;
}

/* ---- tags ---- */

/* The text is a key between tags of these lengths. */
static cn_status read_key(cn_xml_args *x, size_t n_before, size_t n_after)
{
    cn_buf_clear(&x->key);
    const cn_status status =
        cn_buf_add(&x->key, x->text.data + n_before, x->text.len - n_before - n_after);
    cn_buf_clear(&x->text);
    return status;
}

static cn_status begin_xml_value(cn_xml_args *x, cn_buf *out)
{
    CN_TRY(cn_buf_addf(out, "%s", x->n++ ? ", " : "{"));
    CN_TRY(put_string(out, x->key.data ? x->key.data : "", x->key.len, true));
    cn_buf_clear(&x->text);
    x->in_value = true;
    return cn_buf_addf(out, ": ");
}

static cn_status begin_parameter(cn_xml_args *x, cn_buf *out)
{
    x->is_pair = false;
    CN_TRY(read_key(x, strlen(parameter_tag), 1));
    return begin_xml_value(x, out);
}

static void begin_key(cn_xml_args *x)
{
    x->in_key = x->is_pair = true;
    cn_buf_clear(&x->text);
}

static cn_status add_to_xml_key(cn_xml_args *x, char c)
{
    CN_TRY(cn_buf_add(&x->text, &c, 1));
    x->in_key = !buf_ends_with(&x->text, key_end);
    return x->in_key ? CN_OK : read_key(x, 0, strlen(key_end));
}

static cn_status end_function(cn_xml_args *x, cn_buf *out, cn_xml_step *step)
{
    *step = CN_XML_ENDED;
    return cn_buf_addf(out, "%s", x->n > 0 ? "}" : "{}");
}

static cn_status add_to_tag(cn_xml_args *x, char c, cn_buf *out, cn_xml_step *step)
{
    if (x->text.len == 0 && c != '<') {
        if (!cn_json_is_space(c) && x->n == 0 && !x->is_pair) *step = CN_XML_NONE;
        return CN_OK;
    }
    CN_TRY(cn_buf_add(&x->text, &c, 1));
    const bool is_long = x->text.len > MAX_TAG_BYTES;
    if (c != '>' && !is_long) return CN_OK;
    const size_t tag = strlen(parameter_tag);
    if (x->text.len > tag + 1 && memcmp(x->text.data, parameter_tag, tag) == 0)
        return begin_parameter(x, out);
    if (is_text(&x->text, value_tag) && x->is_pair) return begin_xml_value(x, out);
    if (is_text(&x->text, key_tag)) {
        begin_key(x);
        return CN_OK;
    }
    if (is_text(&x->text, function_end) || is_text(&x->text, call_end))
        return end_function(x, out, step);
    if (x->n == 0 && !x->is_pair) *step = CN_XML_NONE;
    cn_buf_clear(&x->text);
    return CN_OK;
}

/* The closing tag in the value has ended the call. */
static cn_status end_at_tag(cn_xml_args *x, cn_buf *out, cn_xml_step *step)
{
    CN_TRY(cn_buf_add(&x->rest, x->text.data + x->closed_at, x->text.len - x->closed_at));
    CN_TRY(end_value(x, x->text.len - x->ends_at, out));
    return end_function(x, out, step);
}

/* Remembers the first closing tag that closes none of the value. */
static void count_tags(cn_xml_args *x)
{
    const bool is_function = buf_ends_with(&x->text, function_end);
    if (buf_ends_with(&x->text, call_tag) || buf_ends_with(&x->text, function_tag)) x->n_open++;
    if (!is_function && !buf_ends_with(&x->text, call_end)) return;
    if (x->n_open > 0) {
        x->n_open--;
        return;
    }
    x->closed_at = x->text.len;
    x->ends_at = x->text.len - strlen(is_function ? function_end : call_end);
}

/* A value also ends where the next parameter begins, or at a tag that closes the function or call.
 */
static cn_status add_to_xml_value(cn_xml_args *x, char c, cn_buf *out, cn_xml_step *step)
{
    CN_TRY(cn_buf_add(&x->text, &c, 1));
    if (c != '=' && c != '>') return CN_OK;
    const char *end = x->is_pair ? value_end : parameter_end;
    const char *next = x->is_pair ? key_tag : parameter_tag;
    if (buf_ends_with(&x->text, end)) return end_value(x, strlen(end), out);
    const bool is_next = buf_ends_with(&x->text, next);
    if (x->closed_at > 0) {
        const bool begins =
            buf_ends_with(&x->text, function_tag) || buf_ends_with(&x->text, call_tag) || is_next;
        return begins ? end_at_tag(x, out, step) : CN_OK;
    }
    if (is_next) {
        CN_TRY(end_value(x, strlen(next), out));
        if (!x->is_pair) return cn_buf_add(&x->text, next, strlen(next));
        begin_key(x);
        return CN_OK;
    }
    count_tags(x);
    return CN_OK;
}

cn_status cn_xml_args_add(cn_xml_args *x, char c, cn_buf *out, cn_xml_step *step)
{
    *step = CN_XML_GO_ON;
    if (x->in_key) return add_to_xml_key(x, c);
    return x->in_value ? add_to_xml_value(x, c, out, step) : add_to_tag(x, c, out, step);
}

/* Bytes of the beginning of a tag after the value that its text ends with. */
static size_t count_cut_tag(const cn_xml_args *x)
{
    const cn_buf *text = &x->text;
    const char *const tags[] = {x->is_pair ? value_end : parameter_end, call_end,
                                x->is_pair ? key_tag : parameter_tag, function_end};
    size_t n = 0;
    for (size_t i = 0; i < sizeof tags / sizeof *tags - x->is_pair; i++)
        for (size_t k = n + 1; k < strlen(tags[i]) && k <= text->len; k++)
            if (memcmp(text->data + text->len - k, tags[i], k) == 0) n = k;
    return n;
}

cn_status cn_xml_args_cut(cn_xml_args *x, bool is_whole, cn_buf *out)
{
    cn_xml_step step;
    if (x->in_value && x->closed_at > 0) return end_at_tag(x, out, &step);
    const size_t n_tag = count_cut_tag(x);
    if (is_whole) {
        if (x->in_value) CN_TRY(end_value(x, n_tag, out));
        return end_function(x, out, &step);
    }
    if (!x->in_value) return CN_OK;
    const char *text = x->text.data ? x->text.data : "";
    size_t n = x->text.len - n_tag;
    if (!x->is_pair) trim_xml(&text, &n);
    x->in_value = false;
    const unsigned types = types_of_parameter(x);
    return types && !(types & STRING) ? cn_buf_add(out, text, n) : put_string(out, text, n, false);
}

void cn_xml_args_free(cn_xml_args *x)
{
    cn_buf_free(&x->key);
    cn_buf_free(&x->text);
    cn_buf_free(&x->rest);
    *x = (cn_xml_args){0};
}
