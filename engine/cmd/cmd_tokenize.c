/* cmd_tokenize.c - `cinch tokenize`: text to token ids and back, for inspection and for comparison
 * with other tokenizers. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

#include "engine/base/json.h"
#include "engine/base/line_reader.h"
#include "engine/base/utf8.h"
#include "engine/checkpoint/checkpoint_dir.h"
#include "engine/checkpoint/model_config.h"
#include "engine/cmd/command.h"
#include "engine/text/chat_template.h"
#include "engine/text/detok.h"
#include "engine/text/tokenizer.h"

enum { MAX_DEPTH = 64 }; /* of a JSON input */

typedef struct job {
    const cn_config *c;
    cn_tokenizer *tokenizer;
    cn_chat_template *chat;
    cn_tokens ids;
    cn_buf out, rendered;
} job;

/* ---- output ---- */

static cn_status add_tokenize_json(cn_buf *out, json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    cn_status status = text ? cn_buf_add(out, text, strlen(text))
                            : cn_fail(CN_ERR_MEMORY, "out of memory for the output");
    free(text);
    return status;
}

/* Appends the text of ids. U+FFFD replaces bytes that are not UTF-8. */
static cn_status add_tokenize_text(job *j, bool as_json, const cn_tokens *ids)
{
    cn_buf text = {0};
    cn_detok d;
    cn_detok_init(&d, j->tokenizer, !j->c->special);
    cn_status status = CN_OK;
    for (size_t i = 0; i < ids->len && status == CN_OK; i++)
        status = cn_detok_push(&d, ids->ids[i], &text);
    if (status == CN_OK) status = cn_detok_flush(&d, &text);
    if (status == CN_OK && as_json) {
        json_t *string = json_stringn(text.len ? text.data : "", text.len);
        status = add_tokenize_json(&j->out, string);
        json_decref(string);
    } else if (status == CN_OK) {
        status = cn_buf_add(&j->out, text.data, text.len);
    }
    cn_buf_free(&text);
    return status;
}

static cn_status add_ids(job *j)
{
    const char *separator = j->c->jsonl ? "," : " ";
    for (size_t i = 0; i < j->ids.len; i++) {
        uint32_t id = j->ids.ids[i];
        if (!j->c->pieces) {
            CN_TRY(cn_buf_addf(&j->out, "%s%u", i ? separator : "", id));
            continue;
        }
        CN_TRY(cn_buf_addf(&j->out, "%s%u\t", i ? "\n" : "", id));
        CN_TRY(add_tokenize_text(j, true, &(cn_tokens){&id, 1, 1}));
    }
    return CN_OK;
}

/* ---- one input ---- */

static cn_status check_tokenize_messages(const json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!json_is_string(json_object_get(json_array_get(messages, i), "role")))
            return cn_fail(CN_ERR_ARG, "message %zu lacks \"role\"", i);
    return CN_OK;
}

/* `value` is a list of messages, or an object with all variables of the template. */
static cn_status render_chat(job *j, json_t *value)
{
    json_t *variables = json_is_array(value) ? json_pack("{s:O}", "messages", value)
                                             : json_incref(value);
    cn_buf_clear(&j->rendered);
    cn_status status = CN_OK;
    if (!json_is_array(json_object_get(variables, "messages")))
        status = cn_fail(CN_ERR_ARG, "--chat: expected an array of messages, or an object with it");
    if (status == CN_OK) status = check_tokenize_messages(json_object_get(variables, "messages"));
    if (status == CN_OK && j->c->thinking != CN_OPT_THINKING_AUTO)
        json_object_set_new(variables, "enable_thinking",
                            json_boolean(j->c->thinking == CN_OPT_THINKING_ON));
    if (status == CN_OK) status = cn_chat_template_render(j->chat, variables, &j->rendered);
    json_decref(variables);
    return status;
}

static cn_status parse_ids(job *j, const json_t *list)
{
    const uint32_t vocab = cn_tokenizer_vocab_size(j->tokenizer);
    if (!json_is_array(list))
        return cn_fail(CN_ERR_ARG, "--decode: expected an array of token ids");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const json_int_t id = json_integer_value(item);
        if (!json_is_integer(item))
            return cn_fail(CN_ERR_ARG, "token %zu: expected an integer", i);
        if (id < 0 || id >= vocab)
            return cn_fail(CN_ERR_ARG, "token %zu is %lld: expected an id below %u", i,
                           (long long)id, vocab);
        CN_TRY(cn_tokens_add(&j->ids, &(uint32_t){(uint32_t)id}, 1));
    }
    return CN_OK;
}

/* `value` is the input as JSON, NULL for plain text. */
static cn_status run_one(job *j, json_t *value, const char *text, size_t n)
{
    j->ids.len = 0;
    if (j->c->decode) {
        CN_TRY(parse_ids(j, value));
        CN_TRY(add_tokenize_text(j, j->c->jsonl, &j->ids));
        return cn_buf_add(&j->out, "\n", 1);
    }
    if (j->c->chat) {
        CN_TRY(render_chat(j, value));
        text = j->rendered.data;
        n = j->rendered.len;
    } else if (value) {
        if (!json_is_string(value)) return cn_fail(CN_ERR_ARG, "expected a JSON string");
        text = json_string_value(value);
        n = json_string_length(value);
    }
    if (j->c->render && !j->c->jsonl) return cn_buf_add(&j->out, text, n);
    if (j->c->render) {
        json_t *string = json_stringn(text, n);
        cn_status status = add_tokenize_json(&j->out, string);
        json_decref(string);
        CN_TRY(status);
        return cn_buf_add(&j->out, "\n", 1);
    }
    bool special = j->c->special && (!j->c->chat || cn_chat_template_add_special(j->chat));
    CN_TRY(cn_tokenizer_encode(j->tokenizer, text, n, special, &j->ids));
    bool brackets = j->c->jsonl && !j->c->pieces;
    CN_TRY(cn_buf_add(&j->out, "[", brackets));
    CN_TRY(add_ids(j));
    return cn_buf_add(&j->out, brackets ? "]\n" : "\n", brackets ? 2 : 1);
}

static cn_status run_json(job *j, const char *text, size_t n)
{
    json_t *value;
    const cn_json_limits limits = {
        .max_bytes = SIZE_MAX, .max_values = SIZE_MAX, .max_depth = MAX_DEPTH};
    CN_TRY(cn_json_parse_request(&value, text, n, "the input", &limits));
    cn_status status = run_one(j, value, NULL, 0);
    json_decref(value);
    return status;
}

/* Decodes plain ids: numbers with blanks, commas or brackets between them. */
static cn_status run_plain_ids(job *j, const char *text, size_t n)
{
    json_t *list = json_array();
    cn_status status = list ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for the ids");
    for (size_t i = 0; status == CN_OK && i < n;) {
        const size_t n_digits = strspn(text + i, "0123456789");
        if (n_digits > 0)
            json_array_append_new(list, json_integer(strtoll(text + i, NULL, 10)));
        else if (!text[i] || !strchr(" \t\r\n,[]", text[i]))
            status = cn_fail(CN_ERR_ARG, "byte %zu: expected token ids, got '%.8s'", i, text + i);
        i += n_digits ? n_digits : 1;
    }
    if (status == CN_OK) status = run_one(j, list, NULL, 0);
    json_decref(list);
    return status;
}

static cn_status flush(job *j)
{
    if (j->out.len) fwrite(j->out.data, 1, j->out.len, stdout);
    cn_buf_clear(&j->out);
    return cn_flush_standard_output();
}

static cn_status tokenize_lines(job *j)
{
    cn_line_reader *reader;
    cn_line line;
    cn_line_state state = CN_LINE_READY;
    CN_TRY(cn_line_reader_open(&reader, j->c->file, SIZE_MAX / 4));
    cn_status status = CN_OK;
    while (status == CN_OK && state != CN_LINE_END) {
        status = cn_line_reader_next(reader, -1, &line, &state);
        if (status != CN_OK || state != CN_LINE_READY) continue;
        status = run_json(j, line.text, line.n);
        if (status == CN_OK) status = flush(j);
        if (status != CN_OK)
            status = cn_fail_within(status, "line %llu", (unsigned long long)line.number);
    }
    cn_line_reader_close(reader);
    return status;
}

static cn_status run_whole(job *j, const char *text, size_t n)
{
    if (j->c->chat) return run_json(j, text, n);
    if (j->c->decode) return run_plain_ids(j, text, n);
    const cn_status status = cn_utf8_check(text, n);
    return status == CN_OK ? run_one(j, NULL, text, n) : cn_fail_within(status, "the input");
}

static cn_status run_file(job *j, FILE *in)
{
    cn_buf text = {0};
    cn_status status = cn_buf_add(&text, "", 0);
    char chunk[1 << 14];
    for (size_t n; status == CN_OK && (n = fread(chunk, 1, sizeof chunk, in)) > 0;)
        status = cn_buf_add(&text, chunk, n);
    if (status == CN_OK && ferror(in))
        status = cn_fail(CN_ERR_IO, "%s: %s", j->c->file, strerror(errno));
    if (status == CN_OK) status = run_whole(j, text.data, text.len);
    cn_buf_free(&text);
    return status;
}

static cn_status run_input(job *j)
{
    if (j->c->text && !j->c->jsonl) return run_whole(j, j->c->text, strlen(j->c->text));
    if (j->c->text) return run_json(j, j->c->text, strlen(j->c->text));
    if (j->c->jsonl) return tokenize_lines(j);
    bool standard = strcmp(j->c->file, "-") == 0;
    FILE *in = standard ? stdin : fopen(j->c->file, "rb");
    if (!in) return cn_fail(CN_ERR_IO, "%s: %s", j->c->file, strerror(errno));
    cn_status status = run_file(j, in);
    if (!standard) fclose(in);
    return status;
}

/* A tokenizer that is not supported matters less than an architecture that is not. */
static cn_status load_command_tokenizer(job *j, const char *dir)
{
    if (!j->c->tokenizer) CN_TRY(cn_checkpoint_dir_check(dir));
    cn_status status = cn_tokenizer_load(&j->tokenizer, dir);
    if (status == CN_ERR_MODEL) CN_TRY(cn_model_config_check_architecture(dir));
    return status;
}

static cn_status run_tokenize(job *j)
{
    const char *dir = j->c->tokenizer ? j->c->tokenizer : j->c->model;
    CN_TRY(load_command_tokenizer(j, dir));
    if (j->c->chat) CN_TRY(cn_chat_template_load(&j->chat, dir, j->c->chat_template));
    CN_TRY(run_input(j));
    return flush(j);
}

int cn_cmd_tokenize(int argc, char **argv)
{
    int exit_code;
    cn_config *c = cn_command_begin(argc, argv, NULL, &exit_code);
    if (!c) return exit_code;
    job j = {.c = c};
    cn_status status = run_tokenize(&j);
    exit_code = cn_command_end("tokenize", status);
    cn_chat_template_free(j.chat);
    cn_tokenizer_free(j.tokenizer);
    cn_tokens_free(&j.ids);
    cn_buf_free(&j.out);
    cn_buf_free(&j.rendered);
    cn_config_free(c);
    return exit_code;
}
