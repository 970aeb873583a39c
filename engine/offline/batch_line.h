/* batch_line.h - one line of a batch's output, written and read back:
 *   {"id": "cinch-<id>", "custom_id": "a", "response": {"status_code": 200, "request_id":
 *    "cinch-batch-<id>-<asked>", "body": {...}}, "error": null}
 * <id> is of the custom_id, <asked> the hash of the request that came with it, 16 hex digits, left
 * out where there was none.
 * A rejected request has its status and OpenAI's error object in `response`, as OpenAI writes it;
 * error.line is the line of the input. A request that was never asked has `response` null and
 * {"code", "message"} in `error`. With grading, "grade": {"reference", "matched", "of"}. Of a
 * request that was asked twice, "loop_rescue": {"by", "first": {"completion_tokens", "kv"}}.
 *
 * Owner: the caller. Thread: one. Stage: 7. */
#ifndef CN_BATCH_LINE_H
#define CN_BATCH_LINE_H

#include <jansson.h>

#include "engine/base.h"
#include "engine/offline/id_set.h"

/* What the line says beside the response. */
typedef struct cn_batch_notes {
    uint64_t asked;        /* hash of the request; 0: none */
    const char *reference; /* NULL: not graded */
    uint32_t matched, of;
    const char *rescued_by; /* "budget" or "full": it looped, and was asked once more; else NULL */
    const cn_usage *first;  /* of what looped, all samples */
} cn_batch_notes;

/* Appends the line with its newline. custom_id may be NULL. Takes over the reference to body, also
 * when it fails; body NULL is out of memory. */
cn_status cn_batch_line_format(cn_buf *out, cn_id id, const char *custom_id, int status_code,
                               json_t *body, const cn_batch_notes *notes);

/* Appends the line of a request that was never asked: response null, and the error as OpenAI has it
 * ("batch_expired"). */
cn_status cn_batch_line_format_unasked(cn_buf *out, cn_id id, const char *custom_id,
                                       const char *code, const char *message);

typedef struct cn_batch_line_figures {
    cn_id id;
    bool is_error;
    uint64_t asked; /* 0: the line does not say */
    uint64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    uint32_t graded, matched;
} cn_batch_line_figures;

/* CN_ERR_ARG when the text is not such a line. */
cn_status cn_batch_line_parse(cn_batch_line_figures *out, const char *text, size_t n);

#endif
