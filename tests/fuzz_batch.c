/* fuzz_batch.c - feeds hostile lines of a batch file and of its output. Must hold: no crash and no
 * leak; a refusal has CN_ERR_ARG, and its error line is valid JSON; accepted values are inside the
 * bounds of the option table; the figures of an output line that is read back are consistent. */
#include <string.h>

#include "engine/api/api_response.h"
#include "engine/offline/batch_input.h"
#include "engine/offline/batch_line.h"
#include "engine/offline/grade.h"
#include "tests/lib/chat_params.h"
#include "tests/lib/fuzz.h"

static const cn_api_defaults defaults = {.sampling = {.n = 1, .top_p = 1, .logprobs = -1},
                                         .tool_parser = CN_OPT_TOOLS_HERMES};

static void check_request(const cn_batch_item *item)
{
    const cn_request_params *p = &item->request.params;
    const cn_sampling *s = &p->sampling;
    FUZZ_CHECK((chat_size(p) > 0) + (p->text != NULL) + (p->tokens != NULL) == 1);
    for (size_t i = 0; i < chat_size(p); i++)
        FUZZ_CHECK(chat_text(p, i, "role") && chat_member(p, i, "content"));
    FUZZ_CHECK(s->n >= 1 && s->n <= 1024 && s->logprobs >= -1 && s->logprobs <= 20);
    FUZZ_CHECK(s->temperature >= 0 && s->top_p > 0 && s->top_p <= 1);
    for (size_t i = 0; i < s->n_stop; i++) FUZZ_CHECK(*s->stop[i]);
    for (size_t i = 0; i < s->n_logit_bias; i++)
        FUZZ_CHECK(s->logit_bias[i].bias >= -100 && s->logit_bias[i].bias <= 100);
    FUZZ_CHECK(*p->custom_id && !item->request.stream);
}

/* The error line of a refused item must be writable, and must read back with the item's id. */
static void check_error_line(const cn_batch_item *item)
{
    const cn_batch_notes notes = {.reference = item->reference, .of = 1};
    cn_buf line = {0};
    json_t *body = cn_api_error_body(400, cn_last_error(), cn_last_param(), NULL, item->line);
    FUZZ_CHECK(cn_batch_line_format(&line, item->id, item->custom_id, 400, body, &notes) == CN_OK);
    FUZZ_CHECK(strchr(line.data, '\n') == line.data + line.len - 1);
    cn_batch_line_figures f;
    FUZZ_CHECK(cn_batch_line_parse(&f, line.data, line.len) == CN_OK);
    FUZZ_CHECK(f.is_error && f.id.hi == item->id.hi && f.id.lo == item->id.lo);
    cn_buf_free(&line);
}

static void read_line(const cn_line *line, const cn_batch_format *format)
{
    cn_batch_item item = {0};
    cn_status status = cn_batch_item_identify(&item, line, format);
    if (status == CN_OK) status = cn_batch_item_read(&item, format, &defaults);
    FUZZ_CHECK(status == CN_OK || status == CN_ERR_ARG);
    if (status == CN_OK)
        check_request(&item);
    else
        check_error_line(&item);
    if (item.reference) {
        const size_t n = strlen(item.reference);
        cn_grade(CN_OPT_GRADE_EXACT, item.reference, n, item.reference);
        cn_grade(CN_OPT_GRADE_BOXED, item.reference, n, item.reference);
        cn_grade(CN_OPT_GRADE_LAST_NUMBER, item.reference, n, item.reference);
    }
    cn_batch_item_free(&item);
}

static void run(const uint8_t *data, size_t size)
{
    static const cn_batch_format formats[] = {
        {NULL, NULL, "answer"}, {"prompt", "id", "answer"}, {"prompt", NULL, NULL}};
    const cn_line line = {.text = (const char *)data, .n = size, .number = 3};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) read_line(&line, &formats[i]);
    cn_batch_line_figures f;
    if (cn_batch_line_parse(&f, line.text, line.n) != CN_OK) return;
    cn_id_set ids = {0};
    FUZZ_CHECK(cn_id_set_add(&ids, f.id, CN_ID_DONE) == CN_OK);
    FUZZ_CHECK(cn_id_set_marks(&ids, f.id) == CN_ID_DONE);
    cn_id_set_free(&ids);
}

static const fuzz_input corpus[] = {
    FUZZ_TEXT("{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", "
              "\"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"n\": 2, "
              "\"stop\": [\"x\"], \"logit_bias\": {\"5\": 1}, \"temperature\": 0.5}}"),
    FUZZ_TEXT("{\"custom_id\": \"b\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": [1, 2], "
              "\"logprobs\": 3, \"kv\": {\"policy\": \"zip\", \"budget\": 64}, \"seed\": -1}}"),
    FUZZ_TEXT("{\"custom_id\": \"r\", \"url\": \"/v1/responses\", \"body\": {\"input\": [{"
              "\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": \"a\"}]}, {"
              "\"type\": \"reasoning\", \"summary\": []}, {\"type\": \"function_call\", "
              "\"call_id\": \"c\", "
              "\"name\": \"f\", \"arguments\": \"{}\"}, {\"type\": \"function_call_output\", "
              "\"call_id\": \"c\", \"output\": \"7\"}], \"instructions\": \"be\", \"text\": "
              "{\"format\": {\"type\": \"json_schema\", \"schema\": {}}}, \"include\": [], "
              "\"reasoning\": {\"effort\": \"low\"}, \"max_output_tokens\": 4}}"),
    FUZZ_TEXT("{\"id\": 7, \"prompt\": \"q\", \"answer\": \"so \\\\boxed{1,234.50} #### -7\"}"),
    FUZZ_TEXT("{\"prompt\": [{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": "
              "\"a\"}]}, {\"role\": \"user\", \"content\": \"b\"}], \"answer\": 1.5}"),
    FUZZ_TEXT("{\"id\":\"cinch-0123456789abcdef0123456789abcdec\",\"response\":"
              "{\"status_code\":200,\"body\":{\"usage\":{\"prompt_tokens\":1}}},"
              "\"grade\":{\"matched\":1,\"of\":1}}"),
};

static const char *const words[] = {
    "\"custom_id\":", "\"body\":",  "\"messages\":", "\"stop_token_ids\":", "\"stream\": true",
    "\"role\":",      "\"kv\":",    "\"top_logprobs\":", "null", "1e308", "-0", "\\u0000",
    "\"input\":", "\"tool_choice\":", "\"type\": \"reasoning\"", "\"type\": \"message\"",
    "\\ud800",        "\\boxed{",   "####",          "\"max_completion_tokens\":", "[[", "{}",
};

int main(int argc, char **argv)
{
    const fuzz_target target = {
        .name = "batch",
        .run = run,
        .corpus = corpus,
        .n_corpus = sizeof corpus / sizeof *corpus,
        .words = words,
        .n_words = sizeof words / sizeof *words,
    };
    return fuzz_main(argc, argv, &target);
}
