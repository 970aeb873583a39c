/* xml_arguments.c - see xml_arguments.h. */
#include "engine/api/xml_arguments.h"

#include <stdlib.h>
#include <string.h>

#include "engine/api/python_arguments.h"
#include "engine/base/json.h"

static const char parameter_tag[] = "<parameter=", parameter_end[] = "</parameter>";
static const char function_end[] = "</function>", call_end[] = "</tool_call>";

enum { MAX_TAG_BYTES = 512 };

static bool ends_with(const cn_buf *b, const char *word)
{
    const size_t n = strlen(word);
    return b->len >= n && memcmp(b->data + b->len - n, word, n) == 0;
}

static bool is_text(const cn_buf *b, const char *word)
{
    return b->len == strlen(word) && ends_with(b, word);
}

/* ---- values ---- */

enum { STRING = 1 << JSON_STRING, NUMBERS = 1 << JSON_REAL | 1 << JSON_INTEGER };

static unsigned type_of_name(const char *name)
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

/* The types that a schema names, as bits of json_type; 0: none. `alternatives`: those of anyOf and
 * oneOf too. */
static unsigned types_of(const json_t *schema, bool alternatives)
{
    static const char *const keys[] = {"anyOf", "oneOf"};
    const json_t *type = json_object_get(schema, "type");
    unsigned types = type_of_name(json_string_value(type));
    size_t i;
    json_t *v;
    json_array_foreach(type, i, v) types |= type_of_name(json_string_value(v));
    json_array_foreach(json_object_get(schema, "enum"), i, v) types |= 1u << json_typeof(v);
    v = json_object_get(schema, "const");
    if (v) types |= 1u << json_typeof(v);
    for (size_t k = 0; alternatives && k < sizeof keys / sizeof *keys; k++)
        json_array_foreach(json_object_get(schema, keys[k]), i, v) types |= types_of(v, false);
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
static cn_status put_value(cn_buf *out, const char *text, size_t n, unsigned types)
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
static void trim(const char **text, size_t *n)
{
    if (*n > 0 && **text == '\n') {
        ++*text;
        --*n;
    }
    if (*n > 0 && (*text)[*n - 1] == '\n') --*n;
}

static unsigned types_of_parameter(const cn_xml_args *x)
{
    const json_t *schema =
        json_object_getn(x->properties, x->key.data ? x->key.data : "", x->key.len);
    return types_of(schema, true);
}

/* The text without its last n_tag bytes is a value. */
static cn_status end_value(cn_xml_args *x, size_t n_tag, cn_buf *out)
{
    const char *text = x->text.data;
    size_t n = x->text.len - n_tag;
    trim(&text, &n);
    x->in_value = false;
    const cn_status status = put_value(out, text, n, types_of_parameter(x));
    cn_buf_clear(&x->text);
    return status;
}

/* ---- tags ---- */

static cn_status begin_parameter(cn_xml_args *x, cn_buf *out)
{
    const size_t tag = strlen(parameter_tag);
    cn_buf_clear(&x->key);
    CN_TRY(cn_buf_add(&x->key, x->text.data + tag, x->text.len - tag - 1));
    CN_TRY(cn_buf_addf(out, "%s", x->n++ ? ", " : "{"));
    CN_TRY(put_string(out, x->key.data, x->key.len, true));
    cn_buf_clear(&x->text);
    x->in_value = true;
    return cn_buf_addf(out, ": ");
}

static cn_status end_function(cn_xml_args *x, cn_buf *out, cn_xml_step *step)
{
    *step = CN_XML_ENDED;
    return cn_buf_addf(out, "%s", x->n > 0 ? "}" : "{}");
}

static cn_status add_to_tag(cn_xml_args *x, char c, cn_buf *out, cn_xml_step *step)
{
    if (x->text.len == 0 && c != '<') {
        if (!cn_json_is_space(c) && x->n == 0) *step = CN_XML_NONE;
        return CN_OK;
    }
    CN_TRY(cn_buf_add(&x->text, &c, 1));
    const bool is_long = x->text.len > MAX_TAG_BYTES;
    if (c != '>' && !is_long) return CN_OK;
    const size_t tag = strlen(parameter_tag);
    if (x->text.len > tag + 1 && memcmp(x->text.data, parameter_tag, tag) == 0)
        return begin_parameter(x, out);
    if (is_text(&x->text, function_end) || is_text(&x->text, call_end))
        return end_function(x, out, step);
    if (x->n == 0) *step = CN_XML_NONE;
    cn_buf_clear(&x->text);
    return CN_OK;
}

/* A value also ends where the next parameter begins, or the function ends. */
static cn_status add_to_value(cn_xml_args *x, char c, cn_buf *out, cn_xml_step *step)
{
    CN_TRY(cn_buf_add(&x->text, &c, 1));
    if (c == '=' && ends_with(&x->text, parameter_tag)) {
        CN_TRY(end_value(x, strlen(parameter_tag), out));
        return cn_buf_add(&x->text, parameter_tag, strlen(parameter_tag));
    }
    if (c != '>') return CN_OK;
    if (ends_with(&x->text, parameter_end)) return end_value(x, strlen(parameter_end), out);
    if (!ends_with(&x->text, function_end)) return CN_OK;
    CN_TRY(end_value(x, strlen(function_end), out));
    return end_function(x, out, step);
}

cn_status cn_xml_args_add(cn_xml_args *x, char c, cn_buf *out, cn_xml_step *step)
{
    *step = CN_XML_GO_ON;
    return x->in_value ? add_to_value(x, c, out, step) : add_to_tag(x, c, out, step);
}

cn_status cn_xml_args_cut(cn_xml_args *x, cn_buf *out)
{
    if (!x->in_value) return CN_OK;
    const char *text = x->text.data ? x->text.data : "";
    size_t n = x->text.len, tag = 0;
    /* The beginning of a closing tag is not part of the value. */
    for (size_t k = 1; k < strlen(parameter_end) && k <= n; k++)
        if (memcmp(text + n - k, parameter_end, k) == 0) tag = k;
    n -= tag;
    trim(&text, &n);
    x->in_value = false;
    const unsigned types = types_of_parameter(x);
    return types && !(types & STRING) ? cn_buf_add(out, text, n) : put_string(out, text, n, false);
}

void cn_xml_args_free(cn_xml_args *x)
{
    cn_buf_free(&x->key);
    cn_buf_free(&x->text);
    *x = (cn_xml_args){0};
}
