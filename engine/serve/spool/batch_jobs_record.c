/* batch_jobs_record.c - see batch_jobs_record.h. */
#include "engine/serve/spool/batch_jobs_record.h"

#include <stdlib.h>

#include "engine/base/json.h"

enum { MAX_WINDOW_S = 30 * 86400 };
#define MAX_COUNT (INT64_C(1) << 53) /* whole numbers are exact in a double up to it */

static const struct {
    const char *name, *at; /* at: the JSON member with its start time */
    bool final;
} statuses[CN_BATCH_N_STATUSES] = {
    [CN_BATCH_STATUS_VALIDATING] = {"validating", NULL, false},
    [CN_BATCH_STATUS_FAILED] = {"failed", "failed_at", true},
    [CN_BATCH_STATUS_IN_PROGRESS] = {"in_progress", "in_progress_at", false},
    [CN_BATCH_STATUS_FINALIZING] = {"finalizing", "finalizing_at", false},
    [CN_BATCH_STATUS_COMPLETED] = {"completed", "completed_at", true},
    [CN_BATCH_STATUS_EXPIRED] = {"expired", "expired_at", true},
    [CN_BATCH_STATUS_CANCELLING] = {"cancelling", "cancelling_at", false},
    [CN_BATCH_STATUS_CANCELLED] = {"cancelled", "cancelled_at", true},
};

const char *cn_batch_status_name(cn_batch_status s) { return statuses[s].name; }
bool cn_batch_status_is_final(cn_batch_status s) { return statuses[s].final; }

void cn_batch_record_free(cn_batch_record *r)
{
    json_decref(r->faults);
    json_decref(r->metadata);
    cn_free(r->run_record);
    cn_free(r->owner);
    *r = (cn_batch_record){0};
}

void cn_batch_record_enter(cn_batch_record *r, cn_batch_status status, int64_t now)
{
    r->status = status;
    r->began_at[status] = now;
}

bool cn_batch_window_read(const char *text, int64_t *seconds)
{
    const size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 8 || !text[digits] || text[digits + 1]) return false;
    int64_t unit;
    switch (text[digits]) {
    case 's': unit = 1; break;
    case 'm': unit = 60; break;
    case 'h': unit = 3600; break;
    case 'd': unit = 86400; break;
    default: return false;
    }
    *seconds = strtoll(text, NULL, 10) * unit;
    return *seconds > 0 && *seconds <= MAX_WINDOW_S;
}

/* ---- the client's object ---- */

static json_t *record_text_or_null(const char *text)
{
    return text && *text ? json_string(text) : json_null();
}

static json_t *faults_json(const cn_batch_record *r)
{
    return r->faults ? json_pack("{s:s, s:O}", "object", "list", "data", r->faults) : json_null();
}

static json_t *counts_json(const cn_batch_counts *c)
{
    return json_pack("{s:I, s:I, s:I}", "total", (json_int_t)c->total, "completed",
                     (json_int_t)c->completed, "failed", (json_int_t)c->failed);
}

static json_t *record_usage_json(const cn_batch_counts *c)
{
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens",
                     (json_int_t)c->input_tokens, "input_tokens_details", "cached_tokens",
                     (json_int_t)c->cached_tokens, "output_tokens", (json_int_t)c->output_tokens,
                     "output_tokens_details", "reasoning_tokens",
                     (json_int_t)c->reasoning_tokens, "total_tokens",
                     (json_int_t)(c->input_tokens + c->output_tokens));
}

static bool put_record_key(json_t *o, const char *key, json_t *value)
{
    return json_object_set_new(o, key, value) == 0;
}

static bool put_times(json_t *o, const cn_batch_record *r)
{
    bool ok = put_record_key(o, "created_at", json_integer((json_int_t)r->created_at)) &&
              put_record_key(o, "expires_at", json_integer((json_int_t)r->expires_at));
    for (int i = 0; i < CN_BATCH_N_STATUSES; i++)
        if (statuses[i].at)
            ok = ok && put_record_key(o, statuses[i].at,
                                      r->began_at[i] ? json_integer((json_int_t)r->began_at[i])
                                                     : json_null());
    return ok;
}

json_t *cn_batch_record_public(const cn_batch_record *r, const cn_batch_counts *counts,
                               const char *model, const char *paused)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:s?, s:s, s:s, s:s}", "id", r->id.text, "object",
                          "batch", "endpoint", cn_api_endpoint_path(r->endpoint), "model", model,
                          "input_file_id", r->input.text, "completion_window", r->window,
                          "status", statuses[r->status].name);
    bool ok = o && put_record_key(o, "errors", faults_json(r)) &&
              put_record_key(o, "output_file_id",
                             record_text_or_null(r->has_output ? r->output.text : NULL)) &&
              put_record_key(o, "error_file_id",
                             record_text_or_null(r->has_errors ? r->errors.text : NULL)) &&
              put_times(o, r) && put_record_key(o, "request_counts", counts_json(counts)) &&
              put_record_key(o, "usage", record_usage_json(counts)) &&
              put_record_key(o, "metadata", r->metadata ? json_incref(r->metadata) : json_null());
    if (ok && paused) ok = put_record_key(o, "paused", json_string(paused));
    if (ok) return o;
    json_decref(o);
    return NULL;
}

/* ---- the spool's record ---- */

json_t *cn_batch_record_json(const cn_batch_record *r)
{
    json_t *o = cn_batch_record_public(r, &r->counts, NULL, NULL);
    json_t *own = json_pack("{s:I, s:s, s:s, s:s, s:s?}", "order", (json_int_t)r->order, "owner",
                            r->owner, "output", r->output.text, "errors", r->errors.text,
                            "run_record", r->run_record);
    if (o && own && put_record_key(o, "cinch", own)) return o;
    json_decref(o);
    return NULL;
}

static cn_status read_record_id(const cn_json_at *at, const char *key, const char *prefix,
                                cn_spool_id *out)
{
    const char *text = NULL;
    CN_TRY(cn_json_str(at, key, CN_JSON_REQUIRED, &text));
    if (cn_spool_id_read(out, prefix, text)) return CN_OK;
    return cn_fail(CN_ERR_MODEL, "%s: %s: expected an id that starts with %s", at->where, key,
                   prefix);
}

static cn_status read_times(cn_batch_record *r, const cn_json_at *at)
{
    CN_TRY(cn_json_i64(at, "created_at", CN_JSON_REQUIRED, 0, INT64_MAX, &r->created_at));
    CN_TRY(cn_json_i64(at, "expires_at", CN_JSON_REQUIRED, 0, INT64_MAX, &r->expires_at));
    for (int i = 0; i < CN_BATCH_N_STATUSES; i++)
        if (statuses[i].at)
            CN_TRY(cn_json_i64(at, statuses[i].at, CN_JSON_OPTIONAL, 0, INT64_MAX,
                               &r->began_at[i]));
    return CN_OK;
}

static cn_status read_names(cn_batch_record *r, const cn_json_at *at)
{
    const char *status = NULL, *endpoint = NULL, *window = NULL;
    CN_TRY(cn_json_str(at, "status", CN_JSON_REQUIRED, &status));
    CN_TRY(cn_json_str(at, "endpoint", CN_JSON_REQUIRED, &endpoint));
    CN_TRY(cn_json_str(at, "completion_window", CN_JSON_REQUIRED, &window));
    int i = 0;
    while (i < CN_BATCH_N_STATUSES && strcmp(statuses[i].name, status) != 0) i++;
    if (i == CN_BATCH_N_STATUSES || !cn_api_endpoint_find(endpoint, &r->endpoint))
        return cn_fail(CN_ERR_MODEL, "%s: unknown status or endpoint", at->where);
    r->status = (cn_batch_status)i;
    int64_t window_s;
    if (!cn_batch_window_read(window, &window_s))
        return cn_fail(CN_ERR_MODEL, "%s: completion_window: expected a time such as 24h",
                       at->where);
    snprintf(r->window, sizeof r->window, "%s", window);
    return CN_OK;
}

static cn_status read_record_count(const cn_json_at *at, const char *key, uint64_t *out)
{
    int64_t v = 0;
    CN_TRY(cn_json_i64(at, key, CN_JSON_REQUIRED, 0, MAX_COUNT, &v));
    *out = (uint64_t)v;
    return CN_OK;
}

static cn_status read_record_counts(cn_batch_counts *c, const cn_json_at *at)
{
    json_t *lines = NULL, *usage = NULL, *in = NULL, *out = NULL;
    CN_TRY(cn_json_obj(at, "request_counts", CN_JSON_REQUIRED, &lines));
    CN_TRY(cn_json_obj(at, "usage", CN_JSON_REQUIRED, &usage));
    const cn_json_at in_lines = {lines, at->where, at->error};
    const cn_json_at in_usage = {usage, at->where, at->error};
    CN_TRY(cn_json_obj(&in_usage, "input_tokens_details", CN_JSON_REQUIRED, &in));
    CN_TRY(cn_json_obj(&in_usage, "output_tokens_details", CN_JSON_REQUIRED, &out));
    CN_TRY(read_record_count(&in_lines, "total", &c->total));
    CN_TRY(read_record_count(&in_lines, "completed", &c->completed));
    CN_TRY(read_record_count(&in_lines, "failed", &c->failed));
    CN_TRY(read_record_count(&in_usage, "input_tokens", &c->input_tokens));
    CN_TRY(read_record_count(&in_usage, "output_tokens", &c->output_tokens));
    CN_TRY(read_record_count(&(cn_json_at){in, at->where, at->error}, "cached_tokens",
                             &c->cached_tokens));
    return read_record_count(&(cn_json_at){out, at->where, at->error}, "reasoning_tokens",
                             &c->reasoning_tokens);
}

static cn_status read_own(cn_batch_record *r, const cn_json_at *at)
{
    json_t *own = NULL;
    CN_TRY(cn_json_obj(at, "cinch", CN_JSON_REQUIRED, &own));
    const cn_json_at in_own = {own, at->where, at->error};
    const char *run_record = NULL, *owner = "";
    int64_t order = 0;
    CN_TRY(cn_json_str(&in_own, "owner", CN_JSON_OPTIONAL, &owner));
    r->owner = cn_strdup(owner);
    if (!r->owner) return cn_fail(CN_ERR_MEMORY, "out of memory for a batch");
    CN_TRY(cn_json_i64(&in_own, "order", CN_JSON_REQUIRED, 0, CN_SPOOL_MAX_ORDER, &order));
    r->order = (uint64_t)order;
    CN_TRY(read_record_id(&in_own, "output", cn_file_prefix, &r->output));
    CN_TRY(read_record_id(&in_own, "errors", cn_file_prefix, &r->errors));
    CN_TRY(cn_json_str(&in_own, "run_record", CN_JSON_OPTIONAL, &run_record));
    if (!run_record) return CN_OK;
    r->run_record = cn_strdup(run_record);
    return r->run_record ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a batch");
}

static cn_status read_record_metadata(cn_batch_record *r, const cn_json_at *at)
{
    const char *key;
    json_t *v, *metadata = NULL;
    CN_TRY(cn_json_obj(at, "metadata", CN_JSON_OPTIONAL, &metadata));
    json_object_foreach(metadata, key, v)
    {
        if (!json_is_string(v))
            return cn_fail(CN_ERR_MODEL, "%s: metadata: expected strings", at->where);
    }
    r->metadata = json_incref(metadata);
    return CN_OK;
}

static cn_status read_faults(cn_batch_record *r, const cn_json_at *at)
{
    json_t *faults = NULL, *data = NULL, *v;
    size_t i;
    CN_TRY(cn_json_obj(at, "errors", CN_JSON_OPTIONAL, &faults));
    if (!faults) return CN_OK;
    const cn_json_at in_faults = {faults, at->where, at->error};
    CN_TRY(cn_json_arr(&in_faults, "data", CN_JSON_REQUIRED, &data));
    json_array_foreach(data, i, v)
    {
        if (!json_is_object(v))
            return cn_fail(CN_ERR_MODEL, "%s: errors: data: expected objects", at->where);
    }
    r->faults = json_incref(data);
    return CN_OK;
}

/* The files of a batch are three: what it writes must not be what it reads. */
static cn_status check_record_ids(const cn_batch_record *r)
{
    if (strcmp(r->input.text, r->output.text) != 0 && strcmp(r->input.text, r->errors.text) != 0 &&
        strcmp(r->output.text, r->errors.text) != 0)
        return CN_OK;
    return cn_fail(CN_ERR_MODEL, "%s: the input, the output and the errors have the same id",
                   r->id.text);
}

static cn_status read_record_all(cn_batch_record *r, const cn_json_at *at)
{
    const char *output = NULL, *errors = NULL;
    CN_TRY(read_record_id(at, "input_file_id", cn_file_prefix, &r->input));
    CN_TRY(read_names(r, at));
    CN_TRY(read_times(r, at));
    CN_TRY(read_record_counts(&r->counts, at));
    CN_TRY(read_own(r, at));
    CN_TRY(check_record_ids(r));
    CN_TRY(cn_json_str(at, "output_file_id", CN_JSON_OPTIONAL, &output));
    CN_TRY(cn_json_str(at, "error_file_id", CN_JSON_OPTIONAL, &errors));
    r->has_output = output != NULL;
    r->has_errors = errors != NULL;
    CN_TRY(read_record_metadata(r, at));
    return read_faults(r, at);
}

cn_status cn_batch_record_read(cn_batch_record *r, const cn_spool_id *id, const json_t *o)
{
    *r = (cn_batch_record){.id = *id};
    const cn_json_at at = {o, id->text, CN_ERR_MODEL};
    cn_status status = read_record_all(r, &at);
    if (status != CN_OK) cn_batch_record_free(r);
    return status;
}
