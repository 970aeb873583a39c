/* batch_line.c - see batch_line.h. */
#include "engine/offline/batch_line.h"

#include <stdlib.h>

#include "engine/api/api_response.h"
#include "engine/api/http_status.h"
#include "engine/base/json.h"

static const char id_prefix[] = "cinch-", request_prefix[] = "cinch-batch-";
enum { MAX_DEPTH = 16, HASH_DIGITS = 16 };

/* Appends an object without its first n_first and last n_cut characters, and releases it. */
static cn_status append_part(cn_buf *out, json_t *part, size_t n_first, size_t n_cut)
{
    char *text = part ? json_dumps(part, JSON_COMPACT | JSON_REAL_PRECISION(CN_LINE_DIGITS)) : NULL;
    json_decref(part);
    cn_status status = text ? cn_buf_add(out, text + n_first, strlen(text) - n_first - n_cut)
                            : cn_fail(CN_ERR_MEMORY, "out of memory for an output line");
    free(text);
    return status;
}

void cn_batch_answer_id(cn_id id, uint64_t run, char text[CN_ANSWER_ID_BYTES])
{
    cn_id_format(id, text);
    snprintf(text + CN_ID_TEXT_BYTES - 1, CN_ANSWER_ID_BYTES - CN_ID_TEXT_BYTES + 1, "-%016llx",
             (unsigned long long)run);
}

cn_status cn_batch_line_begin(cn_buf *out, cn_id id, const char *custom_id, int status_code,
                              const cn_batch_notes *notes)
{
    char answer[CN_ANSWER_ID_BYTES], request[CN_ID_TEXT_BYTES + 2 * (1 + HASH_DIGITS)];
    cn_batch_answer_id(id, notes->run, answer);
    cn_id_format(id, request);
    snprintf(request + CN_ID_TEXT_BYTES - 1, sizeof request - CN_ID_TEXT_BYTES + 1,
             "-%016llx-%016llx", (unsigned long long)notes->request_hash,
             (unsigned long long)notes->run);
    CN_TRY(append_part(out, json_pack("{s:s+, s:s?, s:{s:i, s:s+}}", "id", id_prefix, answer,
                                      "custom_id", custom_id, "response", "status_code",
                                      status_code, "request_id", request_prefix, request),
                       0, 2));
    return cn_buf_addf(out, ",\"body\":");
}

cn_status cn_batch_line_end(cn_buf *out, const cn_batch_notes *notes)
{
    json_t *rest = json_pack("{s:n}", "error");
    if (rest && notes->reference)
        json_object_set_new(rest, "grade",
                            json_pack("{s:s, s:i, s:i}", "reference", notes->reference, "matched",
                                      (int)notes->matched, "of", (int)notes->of));
    if (rest && notes->rescued_by)
        json_object_set_new(rest, "loop_rescue",
                            json_pack("{s:s, s:{s:I, s:o}}", "by", notes->rescued_by, "first",
                                      "completion_tokens",
                                      (json_int_t)notes->first->completion_tokens, "kv",
                                      cn_api_kv_json(&notes->first->kv)));
    CN_TRY(cn_buf_addf(out, "},"));
    CN_TRY(append_part(out, rest, 1, 0));
    return cn_buf_addf(out, "\n");
}

cn_status cn_batch_line_format(cn_buf *out, cn_id id, const char *custom_id, int status_code,
                               json_t *body, const cn_batch_notes *notes)
{
    cn_status status = cn_batch_line_begin(out, id, custom_id, status_code, notes);
    if (status != CN_OK) {
        json_decref(body);
        return status;
    }
    CN_TRY(append_part(out, body, 0, 0));
    return cn_batch_line_end(out, notes);
}

cn_status cn_batch_line_format_unsubmitted(cn_buf *out, cn_id id, uint64_t run,
                                           const char *custom_id, const char *code,
                                           const char *message)
{
    char answer[CN_ANSWER_ID_BYTES];
    cn_batch_answer_id(id, run, answer);
    CN_TRY(append_part(out, json_pack("{s:s+, s:s?, s:n, s:{s:s, s:s}}", "id", id_prefix, answer,
                                      "custom_id", custom_id, "response", "error", "code", code,
                                      "message", message),
                       0, 0));
    return cn_buf_addf(out, "\n");
}

static json_t *member(const json_t *o, const char *a, const char *b, const char *c)
{
    json_t *v = json_object_get(o, a);
    if (b) v = json_object_get(v, b);
    return c ? json_object_get(v, c) : v;
}

static uint64_t count_of(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) > 0 ? (uint64_t)json_integer_value(v) : 0;
}

/* The hash after the id in a request_id; 0 if it has none. */
static uint64_t hash_of(const char *request_id)
{
    const size_t before = sizeof request_prefix - 1 + CN_ID_TEXT_BYTES - 1;
    if (!request_id || strlen(request_id) < before + 1 + HASH_DIGITS) return 0;
    char *end;
    const uint64_t hash = strtoull(request_id + before + 1, &end, 16);
    return request_id[before] == '-' && (!*end || *end == '-') ? hash : 0;
}

/* Reads the id of a line, without the number of its run. */
static bool read_id(const char *text, cn_id *out)
{
    char id[CN_ID_TEXT_BYTES];
    const size_t n_prefix = sizeof id_prefix - 1;
    if (!text || strncmp(text, id_prefix, n_prefix) != 0) return false;
    snprintf(id, sizeof id, "%s", text + n_prefix);
    const char *rest = text + n_prefix + strlen(id);
    return cn_id_parse(id, out) && (!*rest || (*rest == '-' && strlen(rest) == 1 + HASH_DIGITS));
}

/* A response has other names for the same figures. */
static void read_usage(cn_batch_line_figures *out, const json_t *usage)
{
    const bool response = json_object_get(usage, "input_tokens") != NULL;
    const json_t *in =
        json_object_get(usage, response ? "input_tokens_details" : "prompt_tokens_details");
    const json_t *of_output =
        json_object_get(usage, response ? "output_tokens_details" : "completion_tokens_details");
    out->prompt_tokens =
        count_of(json_object_get(usage, response ? "input_tokens" : "prompt_tokens"));
    out->cached_tokens = count_of(json_object_get(in, "cached_tokens"));
    out->completion_tokens =
        count_of(json_object_get(usage, response ? "output_tokens" : "completion_tokens"));
    out->reasoning_tokens = count_of(json_object_get(of_output, "reasoning_tokens"));
}

static cn_status read_figures(cn_batch_line_figures *out, const json_t *line)
{
    const json_t *status_code = member(line, "response", "status_code", NULL);
    const json_t *usage = member(line, "response", "body", "usage");
    if (!read_id(json_string_value(json_object_get(line, "id")), &out->id))
        return cn_fail(CN_ERR_ARG, "its id was not made by cinch");
    const bool unsubmitted = json_is_null(json_object_get(line, "response")) &&
                             json_is_object(json_object_get(line, "error"));
    if (!unsubmitted && !json_is_integer(status_code))
        return cn_fail(CN_ERR_ARG, "it has no status_code");
    out->is_error = unsubmitted || json_integer_value(status_code) != CN_HTTP_OK;
    out->request_hash = hash_of(json_string_value(member(line, "response", "request_id", NULL)));
    read_usage(out, usage);
    out->graded = (uint32_t)count_of(member(line, "grade", "of", NULL));
    out->matched = (uint32_t)count_of(member(line, "grade", "matched", NULL));
    return CN_OK;
}

/* The texts of tokens and their alternatives may contain a NUL, in values and in keys. jansson does
 * not read it in keys. The figures do not depend on these texts, so U+FDD0, a noncharacter,
 * replaces the NUL. */
static cn_status mask_nuls(cn_buf *masked, const char *text, size_t n)
{
    static const char nul[] = "\\u0000", mask[] = "\\ufdd0";
    CN_TRY(cn_buf_add(masked, text, n));
    char *at = masked->data;
    while ((at = memmem(at, (size_t)(masked->data + n - at), nul, sizeof nul - 1))) {
        memcpy(at, mask, sizeof mask - 1);
        at += sizeof mask - 1;
    }
    return CN_OK;
}

cn_status cn_batch_line_parse(cn_batch_line_figures *out, const char *text, size_t n)
{
    *out = (cn_batch_line_figures){0};
    json_t *line = NULL;
    cn_buf masked = {0};
    cn_status status = mask_nuls(&masked, text, n);
    if (status == CN_OK)
        status = cn_json_parse(&line, masked.data, n, "the line", SIZE_MAX, MAX_DEPTH, CN_ERR_ARG);
    if (status == CN_OK) status = read_figures(out, line);
    json_decref(line);
    cn_buf_free(&masked);
    return status;
}
