/* jinja_tojson.c - values to JSON as Python's json.dumps writes it, and JSON to values. See
 * jinja_run.h. */
#include <math.h>
#include <stdlib.h>

#include "engine/text/jinja/jinja_pystring.h"
#include "engine/text/jinja/jinja_run.h"

/* ---- to JSON ---- */

static cn_status put_json_char(cn_jrun *run, uint32_t cp, bool ascii)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    char text[16];
    const char *known = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    if (known)
        snprintf(text, sizeof text, "\\%c", to[known - from]);
    else if (cp < 0x20 || (ascii && cp > 0x7E && cp < 0x10000))
        snprintf(text, sizeof text, "\\u%04x", cp);
    else if (ascii && cp >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD7C0 + (cp >> 10), 0xDC00 + (cp & 0x3FF));
    else
        return cn_jput_char(run, cp);
    return cn_jput(run, text, strlen(text));
}

static bool is_tojson_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7F && c != '"' && c != '\\';
}

static cn_status put_json_text(cn_jrun *run, cn_jtext t, bool ascii)
{
    CN_TRY(cn_jscan(run, t));
    CN_TRY(cn_jput(run, "\"", 1));
    while (t.n) {
        size_t len = 0;
        while (len < t.n && is_tojson_plain((unsigned char)t.at[len])) len++;
        CN_TRY(cn_jput(run, t.at, len));
        if (len == 0) {
            uint32_t cp;
            len = cn_pychar(t, &cp);
            CN_TRY(put_json_char(run, cp, ascii));
        }
        t = (cn_jtext){t.at + len, t.n - len};
    }
    return cn_jput(run, "\"", 1);
}

static cn_status put_break(cn_jrun *run, const cn_json_style *style, size_t level)
{
    if (!style->lines) return CN_OK;
    CN_TRY(cn_jput(run, "\n", 1));
    for (size_t i = 0; i < level; i++) CN_TRY(cn_jputs(run, style->indent));
    return CN_OK;
}

static cn_status put_scalar(cn_jrun *run, cn_jvalue v)
{
    if (v.kind == CN_J_NONE) return cn_jput(run, "null", 4);
    if (v.kind == CN_J_BOOL) return v.truth ? cn_jput(run, "true", 4) : cn_jput(run, "false", 5);
    if (v.kind == CN_J_INT) return cn_jput_str(run, v);
    if (!isnan(v.real) && !isinf(v.real)) return cn_jput_real(run, v.real);
    const char *word = isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity";
    return cn_jput(run, word, strlen(word));
}

static bool is_json_scalar(cn_jvalue v)
{
    return v.kind == CN_J_NONE || v.kind == CN_J_BOOL || v.kind == CN_J_INT || v.kind == CN_J_FLOAT;
}

static cn_status put_tojson_value(cn_jrun *run, cn_jvalue v, const cn_json_style *style,
                                  size_t level);

static cn_status put_array(cn_jrun *run, const cn_jlist *list, const cn_json_style *style,
                           size_t level)
{
    if (list->n == 0) return cn_jput(run, "[]", 2);
    CN_TRY(cn_jput(run, "[", 1));
    for (size_t i = 0; i < list->n; i++) {
        if (i) CN_TRY(cn_jputs(run, style->item_separator));
        CN_TRY(put_break(run, style, level + 1));
        CN_TRY(put_tojson_value(run, list->at[i], style, level + 1));
    }
    CN_TRY(put_break(run, style, level));
    return cn_jput(run, "]", 1);
}

static cn_status put_key(cn_jrun *run, cn_jvalue key, const cn_json_style *style)
{
    if (key.kind == CN_J_STRING) return put_json_text(run, key.text, style->ascii);
    if (!is_json_scalar(key))
        return cn_fail(CN_ERR_ARG, "tojson: a %s cannot be a key", cn_jtype_name(key));
    CN_TRY(cn_jput(run, "\"", 1));
    CN_TRY(put_scalar(run, key));
    return cn_jput(run, "\"", 1);
}

static int by_key(const void *a, const void *b)
{
    int order = 0;
    cn_jorder(((const cn_jpair *)a)->key, ((const cn_jpair *)b)->key, &order);
    return order;
}

static cn_status put_object(cn_jrun *run, const cn_jdict *dict, const cn_json_style *style,
                            size_t level)
{
    cn_jpair *pairs = dict->at;
    if (dict->n == 0) return cn_jput(run, "{}", 2);
    if (style->sort_keys) {
        CN_TRY(cn_jwork(run, dict->n));
        CN_TRY(cn_jalloc(&run->arena, dict->n, sizeof *pairs, &pairs));
        memcpy(pairs, dict->at, dict->n * sizeof *pairs);
        qsort(pairs, dict->n, sizeof *pairs, by_key);
    }
    CN_TRY(cn_jput(run, "{", 1));
    for (size_t i = 0; i < dict->n; i++) {
        if (i) CN_TRY(cn_jputs(run, style->item_separator));
        CN_TRY(put_break(run, style, level + 1));
        CN_TRY(put_key(run, pairs[i].key, style));
        CN_TRY(cn_jputs(run, style->key_separator));
        CN_TRY(put_tojson_value(run, pairs[i].value, style, level + 1));
    }
    CN_TRY(put_break(run, style, level));
    return cn_jput(run, "}", 1);
}

static cn_status put_tojson_value(cn_jrun *run, cn_jvalue v, const cn_json_style *style,
                                  size_t level)
{
    if (v.kind == CN_J_STRING) return put_json_text(run, v.text, style->ascii);
    if (is_json_scalar(v)) return put_scalar(run, v);
    bool list = v.kind == CN_J_LIST || v.kind == CN_J_TUPLE;
    if (!list && v.kind != CN_J_DICT)
        return cn_fail(CN_ERR_ARG, "tojson: a %s is no JSON value", cn_jtype_name(v));
    CN_TRY(cn_jdeeper(run));
    CN_TRY(cn_jwork(run, 1));
    CN_TRY(list ? put_array(run, v.list, style, level) : put_object(run, v.dict, style, level));
    run->depth--;
    return CN_OK;
}

cn_status cn_jput_json(cn_jrun *run, cn_jvalue v, const cn_json_style *style)
{
    return put_tojson_value(run, v, style, 0);
}

/* ---- from JSON ---- */

static cn_status from_array(cn_jrun *run, const json_t *json, cn_jvalue *out)
{
    size_t n = json_array_size(json);
    CN_TRY(cn_jlist_new(&run->arena, CN_J_LIST, n, out));
    for (size_t i = 0; i < n; i++)
        CN_TRY(cn_jfrom_json(run, json_array_get(json, i), &out->list->at[out->list->n++]));
    return CN_OK;
}

/* The keys of a JSON object differ, so no key is looked up. */
static cn_status from_object(cn_jrun *run, const json_t *json, cn_jvalue *out)
{
    CN_TRY(cn_jdict_new(&run->arena, CN_J_DICT, json_object_size(json), out));
    json_t *object = (json_t *)(uintptr_t)json; /* jansson's iterator takes no const */
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        const char *key = json_object_iter_key(i);
        cn_jpair *pair = &out->dict->at[out->dict->n++];
        pair->key = cn_jstring((cn_jtext){key, strlen(key)});
        CN_TRY(cn_jfrom_json(run, json_object_iter_value(i), &pair->value));
    }
    return CN_OK;
}

cn_status cn_jfrom_json(cn_jrun *run, const json_t *json, cn_jvalue *out)
{
    CN_TRY(cn_jdeeper(run));
    switch (json_typeof(json)) {
    case JSON_OBJECT: CN_TRY(from_object(run, json, out)); break;
    case JSON_ARRAY: CN_TRY(from_array(run, json, out)); break;
    case JSON_STRING:
        *out = cn_jstring((cn_jtext){json_string_value(json), json_string_length(json)});
        break;
    case JSON_INTEGER: *out = cn_jint(json_integer_value(json)); break;
    case JSON_REAL: *out = cn_jreal(json_real_value(json)); break;
    case JSON_TRUE:
    case JSON_FALSE: *out = cn_jbool(json_is_true(json)); break;
    case JSON_NULL: *out = cn_jnone(); break;
    }
    run->depth--;
    return CN_OK;
}
