/* batch_jobs_check.c - see batch_jobs_check.h. */
#include "engine/serve/spool/batch_jobs_check.h"

#include "engine/base/json.h"

cn_status cn_batch_check_open(cn_batch_check *c, const char *path, cn_api_endpoint endpoint,
                              uint64_t max_lines)
{
    *c = (cn_batch_check){.endpoint = endpoint, .max_lines = max_lines, .faults = json_array()};
    if (!c->faults) return cn_fail(CN_ERR_MEMORY, "out of memory for a batch");
    return cn_line_reader_open(&c->reader, path, CN_BATCH_MAX_LINE_BYTES);
}

void cn_batch_check_close(cn_batch_check *c)
{
    cn_line_reader_close(c->reader);
    cn_id_set_free(&c->ids);
    json_decref(c->faults);
    *c = (cn_batch_check){0};
}

static cn_status add_fault(cn_batch_check *c, const char *code, const char *message,
                           const char *param, uint64_t line)
{
    if (c->n_faults++ >= CN_BATCH_FAULTS_SHOWN) return CN_OK;
    json_t *fault = json_pack("{s:s, s:s, s:o, s:o}", "code", code, "message", message, "param",
                              *param ? cn_json_text(param) : json_null(), "line",
                              line ? json_integer((json_int_t)line) : json_null());
    if (fault && json_array_append_new(c->faults, fault) == 0) return CN_OK;
    return cn_fail(CN_ERR_MEMORY, "out of memory for a batch's errors");
}

/* CN_ERR_ARG: the line is invalid and *code is the reason. */
static cn_status check_job_line(cn_batch_check *c, cn_batch_item *item, const cn_line *line,
                                const char **code)
{
    const cn_batch_format format = {0};
    cn_status status = cn_batch_item_identify(item, line, &format);
    *code = item->object ? "invalid_custom_id" : "invalid_json_line";
    CN_TRY(status);
    if (cn_id_set_marks(&c->ids, item->id)) {
        *code = "duplicate_custom_id";
        return cn_fail(CN_ERR_ARG, "duplicate custom_id \"%s\": give each line its own",
                       item->custom_id);
    }
    CN_TRY(cn_id_set_add(&c->ids, item->id, CN_ID_SEEN));
    *code = "invalid_request";
    return cn_batch_item_check(item, c->endpoint);
}

static cn_status take_job_line(cn_batch_check *c, const cn_line *line)
{
    cn_batch_item item = {0};
    const char *code;
    cn_status status = check_job_line(c, &item, line, &code);
    if (status == CN_ERR_ARG)
        status = add_fault(c, code, cn_last_error(), cn_last_param(), line->number);
    cn_batch_item_free(&item);
    return status;
}

cn_status cn_batch_check_some(cn_batch_check *c, uint32_t n, bool *done)
{
    char text[96];
    *done = false;
    for (; n > 0; n--) {
        cn_line line;
        cn_line_state state;
        CN_TRY(cn_line_reader_next(c->reader, 0, &line, &state));
        if (state == CN_LINE_WAIT) continue; /* interrupted by a signal */
        if (state == CN_LINE_END) {
            *done = true;
            return c->n_lines ? CN_OK
                              : add_fault(c, "empty_file", "the input file has no lines", "", 0);
        }
        if (++c->n_lines > c->max_lines) {
            *done = true;
            snprintf(text, sizeof text, "the input file exceeds %llu lines (--max-batch-lines): "
                     "split it", (unsigned long long)c->max_lines);
            return add_fault(c, "too_many_lines", text, "", line.number);
        }
        CN_TRY(take_job_line(c, &line));
    }
    return CN_OK;
}
