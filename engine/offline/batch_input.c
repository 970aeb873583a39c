/* batch_input.c - see batch_input.h. */
#include "engine/offline/batch_input.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/json.h"

enum { SHOWN_BYTES = 96, MAX_ID_BYTES = 512 };

static cn_status keep_input_text(char **out, const char *text)
{
    *out = cn_strdup(text);
    return *out ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a line's text");
}

/* Writes a real number with the fewest digits that read back as the same value: 0.1 stays 0.1. */
static char *number_text(const json_t *v)
{
    enum { MIN_DIGITS = 15, MAX_DIGITS = 17 };
    const double value = json_real_value(v);
    if (json_is_integer(v)) return json_dumps(v, JSON_ENCODE_ANY);
    for (size_t digits = MIN_DIGITS; digits < MAX_DIGITS; digits++) {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
        const double back = text ? strtod(text, NULL) : 0;
        if (!text || memcmp(&back, &value, sizeof back) == 0) return text;
        free(text);
    }
    return json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(MAX_DIGITS));
}

/* Reads a string, or a number as text: id and answer columns have both. */
static cn_status text_of(char **out, const char *field, json_t *v)
{
    char shown[SHOWN_BYTES];
    CN_TRY(cn_json_refuse_nul(v, field, CN_ERR_ARG));
    if (json_is_string(v)) return keep_input_text(out, json_string_value(v));
    if (json_is_number(v)) {
        char *text = number_text(v);
        cn_status status = keep_input_text(out, text ? text : "");
        free(text);
        return status;
    }
    return cn_fail(CN_ERR_ARG, "%s: expected a string or a number, got %s", field,
                   cn_json_describe(v, shown, sizeof shown));
}

/* ---- step 1: identify ---- */

void cn_batch_item_use_line_id(cn_batch_item *item, const cn_line *line)
{
    /* The hash covers the number, because two malformed lines may have the same text, and the text,
     * because a corrected line is a new one. */
    cn_id text = cn_id_of("line text", line->text, line->n);
    const uint64_t key[] = {line->number, text.hi, text.lo};
    item->id = cn_id_of("line", key, sizeof key);
}

static cn_status read_reference(cn_batch_item *item, const char *field)
{
    json_t *v = json_object_get(item->object, field);
    if (!v || json_is_null(v)) return CN_OK;
    cn_status status = text_of(&item->reference, field, v);
    return cn_for_param(status, field);
}

/* An integer beyond 64 bits is read as a real number, which is the same for many of them. */
static cn_status check_id_is_exact(const char *field, const json_t *v)
{
    static const double first_inexact = 9223372036854775808.0; /* 2^63 */
    char shown[SHOWN_BYTES];
    if (!json_is_real(v) || fabs(json_real_value(v)) < first_inexact) return CN_OK;
    return cn_fail(CN_ERR_ARG, "%s: the number %s is too large to be kept exactly: write it as a "
                               "string", field, cn_json_describe(v, shown, sizeof shown));
}

static cn_status read_custom_id(cn_batch_item *item, const cn_batch_format *format)
{
    char number[24];
    snprintf(number, sizeof number, "%llu", (unsigned long long)item->line);
    if (format->prompt_field && !format->id_field) return keep_input_text(&item->custom_id, number);
    const char *field = format->prompt_field ? format->id_field : "custom_id";
    json_t *v = json_object_get(item->object, field);
    cn_status status = CN_OK;
    if (!v || (!format->prompt_field && !json_is_string(v))) {
        char shown[SHOWN_BYTES];
        status = cn_fail(CN_ERR_ARG, "%s: expected a string, got %s", field,
                         v ? cn_json_describe(v, shown, sizeof shown) : "nothing");
    } else {
        status = check_id_is_exact(field, v);
        if (status == CN_OK) status = text_of(&item->custom_id, field, v);
    }
    if (status == CN_OK && (!*item->custom_id || strlen(item->custom_id) > MAX_ID_BYTES)) {
        status = cn_fail(CN_ERR_ARG, "%s: expected 1 to %d bytes, got %zu", field,
                         (int)MAX_ID_BYTES, strlen(item->custom_id));
        cn_free(item->custom_id);
        item->custom_id = NULL;
    }
    return cn_for_param(status, field);
}

/* Adds a value to the hash *h. False if out of memory. */
static bool add_value(uint64_t *h, const json_t *v)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
    if (text) *h = cn_hash64(*h, text, strlen(text));
    free(text);
    return text != NULL;
}

static uint64_t hash_request(const cn_batch_item *item, const cn_batch_format *format)
{
    static const char *const openai[] = {"url", "body"};
    const char *const *members = format->prompt_field ? &format->prompt_field : openai;
    const size_t n = format->prompt_field ? 1 : sizeof openai / sizeof *openai;
    uint64_t h = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(item->object, members[i]);
        if (!add_value(&h, v ? v : json_null())) return 0;
    }
    return h ? h : 1;
}

cn_status cn_batch_item_parse(cn_batch_item *item, const char *text, size_t n)
{
    static const cn_json_limits limits = {CN_BATCH_MAX_LINE_BYTES, CN_BATCH_MAX_VALUES,
                                          CN_BATCH_MAX_DEPTH};
    return cn_json_parse_request(&item->object, text, n, "the line", &limits);
}

cn_status cn_batch_item_identify(cn_batch_item *item, const cn_line *line,
                                 const cn_batch_format *format)
{
    item->line = line->number;
    cn_batch_item_use_line_id(item, line);
    if (line->too_long)
        return cn_fail(CN_ERR_ARG, "the line exceeds the limit of %d bytes",
                       (int)CN_BATCH_MAX_LINE_BYTES);
    CN_TRY(cn_batch_item_parse(item, line->text, line->n));
    if (!json_is_object(item->object)) {
        char shown[SHOWN_BYTES];
        return cn_fail(CN_ERR_ARG, "the line: expected an object, got %s",
                       cn_json_describe(item->object, shown, sizeof shown));
    }
    item->request_hash = hash_request(item, format);
    CN_TRY(read_custom_id(item, format));
    item->id = cn_id_of("custom_id", item->custom_id, strlen(item->custom_id));
    return format->answer_field ? read_reference(item, format->answer_field) : CN_OK;
}

/* ---- step 2: read ---- */

/* Makes the request body of a line that has a prompt field. */
static cn_status make_body(cn_batch_item *item, const char *field, json_t **out)
{
    json_t *v = json_object_get(item->object, field);
    if (json_is_array(v)) {
        *out = json_pack("{s:O}", "messages", v);
    } else if (json_is_string(v)) {
        *out = json_pack("{s:[{s:s, s:O}]}", "messages", "role", "user", "content", v);
    } else {
        char shown[SHOWN_BYTES];
        return cn_fail_param(field, "%s: expected the prompt as a string or as messages, got %s",
                             field, v ? cn_json_describe(v, shown, sizeof shown) : "nothing");
    }
    return *out ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a request");
}

static cn_status find_endpoint(cn_batch_item *item, cn_api_endpoint *out)
{
    char shown[SHOWN_BYTES];
    json_t *method = json_object_get(item->object, "method");
    CN_TRY(cn_for_param(cn_json_refuse_nul(method, "method", CN_ERR_ARG), "method"));
    if (method && (!json_is_string(method) || strcmp(json_string_value(method), "POST") != 0))
        return cn_fail_param("method", "method: expected \"POST\", got %s",
                             cn_json_describe(method, shown, sizeof shown));
    json_t *url = json_object_get(item->object, "url");
    CN_TRY(cn_for_param(cn_json_refuse_nul(url, "url", CN_ERR_ARG), "url"));
    if (json_is_string(url) && cn_api_endpoint_find(json_string_value(url), out)) return CN_OK;
    return cn_fail_param("url", "url: expected %s, %s or %s, got %s",
                         cn_api_endpoint_path(CN_API_CHAT),
                         cn_api_endpoint_path(CN_API_COMPLETION),
                         cn_api_endpoint_path(CN_API_RESPONSES),
                         url ? cn_json_describe(url, shown, sizeof shown) : "nothing");
}

static cn_status find_body(cn_batch_item *item, json_t **out)
{
    *out = json_object_get(item->object, "body");
    if (json_is_object(*out)) {
        json_incref(*out);
        return CN_OK;
    }
    char shown[SHOWN_BYTES];
    return cn_fail_param("body", "body: expected an object, got %s",
                         *out ? cn_json_describe(*out, shown, sizeof shown) : "nothing");
}

cn_status cn_batch_item_check(cn_batch_item *item, cn_api_endpoint endpoint)
{
    cn_api_endpoint own;
    json_t *body;
    CN_TRY(find_endpoint(item, &own));
    if (own != endpoint)
        return cn_fail_param("url", "url: expected %s, the batch's endpoint, got %s",
                             cn_api_endpoint_path(endpoint), cn_api_endpoint_path(own));
    CN_TRY(find_body(item, &body));
    json_decref(body);
    return CN_OK;
}

/* Members of an OpenAI line besides those that cinch reads. A line with a prompt field is a row of
 * a table, and may have any. */
static cn_status check_input_members(cn_batch_item *item, const cn_batch_format *format,
                                     cn_api_unknown *unknown)
{
    const char *const known[] = {"custom_id", "method", "url", "body", format->answer_field,
                                 NULL};
    if (format->prompt_field) return CN_OK;
    return cn_api_unknown_members(unknown, item->object, known, &item->request.warnings);
}

cn_status cn_batch_item_read(cn_batch_item *item, const cn_batch_format *format,
                             const cn_api_defaults *defaults)
{
    cn_api_endpoint endpoint = CN_API_CHAT;
    json_t *body = NULL;
    if (format->prompt_field) {
        CN_TRY(make_body(item, format->prompt_field, &body));
    } else {
        CN_TRY(find_endpoint(item, &endpoint));
        CN_TRY(find_body(item, &body));
    }
    cn_status status = cn_api_request_parse(&item->request, endpoint, body, defaults);
    json_decref(body);
    CN_TRY(status);
    CN_TRY(check_input_members(item, format, defaults->unknown));
    if (item->request.stream)
        return cn_fail_param("stream", "stream: not supported in a batch");
    item->request.params.custom_id = item->custom_id;
    item->request.params.klass = CN_CLASS_BATCH;
    return CN_OK;
}

void cn_batch_item_drop_request(cn_batch_item *item)
{
    cn_api_request_free(&item->request);
    json_decref(item->object);
    item->object = NULL;
}

void cn_batch_item_free(cn_batch_item *item)
{
    cn_batch_item_drop_request(item);
    cn_free(item->custom_id);
    cn_free(item->reference);
    *item = (cn_batch_item){0};
}
