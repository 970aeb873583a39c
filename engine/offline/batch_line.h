/* batch_line.h - one line of a batch's output, written and read back:
 *   {"id": "cinch-<id>-<run>", "custom_id": "a", "response": {"status_code": 200, "request_id":
 *    "cinch-batch-<id>-<hash>-<run>", "body": {...}}, "error": null}
 * <id> is the hash of the custom_id. <hash> is the hash of the request, or 0, and <run> the random
 * number of the run, each 16 hex digits. Lines of earlier versions have no <run>, and no <hash> if
 * there was no request; they are read too. For a rejected request, `response` has its status and
 * OpenAI's error object, as OpenAI writes it; error.line is the line of the input. For a request
 * that was never submitted, `response` is null and `error` is {"code", "message"}. Grading adds
 * "grade": {"reference", "matched", "of"}. A request that was submitted twice adds "loop_rescue":
 * {"by", "first": {"completion_tokens", "kv"}}.
 *
 * Owner: the caller. Thread: one. Stage: 8, and at the start of a resumed run. */
#pragma once

#include <jansson.h>

#include "engine/base/base.h"
#include "engine/offline/id_set.h"

/* The parts of the line other than the response. */
typedef struct cn_batch_notes {
    uint64_t run;          /* tells its lines from those of other runs with equal custom_ids */
    uint64_t request_hash; /* 0: none */
    const char *reference; /* NULL: not graded */
    uint32_t matched, of;
    const char *rescued_by; /* "budget" or "full": how a loop was rescued; else NULL */
    const cn_usage *first;  /* usage of the attempt that looped, all samples */
} cn_batch_notes;

enum { CN_LINE_DIGITS = 9 }; /* of a real number, which is a float */

/* The id of an answer, without the prefix of its endpoint. */
enum { CN_ANSWER_ID_BYTES = CN_ID_TEXT_BYTES + 17 };
void cn_batch_answer_id(cn_id id, uint64_t run, char text[CN_ANSWER_ID_BYTES]);

/* Append the line in parts: begin, the text of the body, end with its newline. */
cn_status cn_batch_line_begin(cn_buf *out, cn_id id, const char *custom_id, int status_code,
                              const cn_batch_notes *notes);
cn_status cn_batch_line_end(cn_buf *out, const cn_batch_notes *notes);

/* Appends the line with its newline. custom_id may be NULL. Takes ownership of the reference to
 * body, on failure too. A NULL body means out of memory. */
cn_status cn_batch_line_format(cn_buf *out, cn_id id, const char *custom_id, int status_code,
                               json_t *body, const cn_batch_notes *notes);

/* Appends the line of a request that was never submitted: response null, and an error in OpenAI's
 * format ("batch_expired"). */
cn_status cn_batch_line_format_unsubmitted(cn_buf *out, cn_id id, uint64_t run,
                                           const char *custom_id, const char *code,
                                           const char *message);

typedef struct cn_batch_line_figures {
    cn_id id;
    bool is_error;
    uint64_t request_hash; /* 0: not in the line */
    uint64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    uint32_t graded, matched;
} cn_batch_line_figures;

/* CN_ERR_ARG if the text is not such a line. */
cn_status cn_batch_line_parse(cn_batch_line_figures *out, const char *text, size_t n);
