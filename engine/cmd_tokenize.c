/* cmd_tokenize.c - `cinch tokenize`. See cmd_tokenize.h. */
#include "engine/cmd_tokenize.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/chat_template.h"
#include "engine/detok.h"
#include "engine/tokenizer.h"

static const char usage[] =
    "usage: cinch tokenize --model DIR [options]\n"
    "Prints the token ids of a text, or with --decode the text of token ids.\n"
    "\n"
    "  --model DIR            checkpoint with tokenizer.json\n"
    "  --text TEXT            the input; else:\n"
    "  -i, --input-file FILE  the input, - for standard input (the default)\n"
    "  --jsonl                a JSON value per line in and out: \"text\" to [ids]; with --chat\n"
    "                         [{\"role\": ..., \"content\": ...}, ...] to [ids]; with --decode\n"
    "                         [ids] to \"text\"\n"
    "  --decode               from ids to text\n"
    "  --chat                 the input is a JSON array of messages, for the chat template\n"
    "  --chat-template NAME   auto, none, or a family (see cinch run-batch --help)\n"
    "  --enable-thinking 0|1  the template's switch, if it has one\n"
    "  --render               with --chat: print the rendered prompt, not its ids\n"
    "  --no-special           encode without BOS and EOS; decode without special tokens\n"
    "  --pieces               one token per line: id, tab, text as a JSON string\n";

typedef struct options {
    const char *model, *text, *input, *chat_template;
    bool jsonl, decode, chat, render, no_special, pieces;
    int enable_thinking;
} options;

typedef struct job {
    options o;
    cn_tokenizer *tokenizer;
    cn_chat_template *chat;
    cn_tokens ids;
    cn_buf out, rendered;
} job;

static cn_status parse_options(int argc, char **argv, options *o, bool *help)
{
    enum { MODEL = 256, TEXT, TEMPLATE, THINKING, JSONL, DECODE, CHAT, RENDER, PLAIN, PIECES };
    static const struct option longs[] = {
        {"model", required_argument, NULL, MODEL},
        {"text", required_argument, NULL, TEXT},
        {"input-file", required_argument, NULL, 'i'},
        {"chat-template", required_argument, NULL, TEMPLATE},
        {"enable-thinking", required_argument, NULL, THINKING},
        {"jsonl", no_argument, NULL, JSONL},
        {"decode", no_argument, NULL, DECODE},
        {"chat", no_argument, NULL, CHAT},
        {"render", no_argument, NULL, RENDER},
        {"no-special", no_argument, NULL, PLAIN},
        {"pieces", no_argument, NULL, PIECES},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    *o = (options){.input = "-", .chat_template = "auto", .enable_thinking = -1};
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "hi:", longs, NULL)) != -1;) {
        switch (c) {
        case MODEL:
            o->model = optarg;
            break;
        case TEXT:
            o->text = optarg;
            break;
        case 'i':
            o->input = optarg;
            break;
        case TEMPLATE:
            o->chat_template = optarg;
            break;
        case THINKING:
            o->enable_thinking = strcmp(optarg, "0") != 0;
            break;
        case JSONL:
            o->jsonl = true;
            break;
        case DECODE:
            o->decode = true;
            break;
        case CHAT:
            o->chat = true;
            break;
        case RENDER:
            o->render = true;
            break;
        case PLAIN:
            o->no_special = true;
            break;
        case PIECES:
            o->pieces = true;
            break;
        case 'h':
            *help = true;
            return CN_OK;
        default:
            return cn_fail(CN_ERR_ARG, "bad option; cinch tokenize --help lists them");
        }
    }
    if (optind < argc) return cn_fail(CN_ERR_ARG, "unexpected argument '%s'", argv[optind]);
    if (!o->model) return cn_fail(CN_ERR_ARG, "--model is missing");
    return CN_OK;
}

/* ---- output ---- */

static cn_status add_json(cn_buf *out, json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    cn_status status = text ? cn_buf_add(out, text, strlen(text))
                            : cn_fail(CN_ERR_MEMORY, "out of memory for the output");
    free(text);
    return status;
}

/* Bytes of a token may be no UTF-8; U+FFFD stands for them. */
static cn_status add_text(job *j, bool as_json, const cn_tokens *ids)
{
    cn_buf text = {0};
    cn_detok d;
    cn_detok_init(&d, j->tokenizer, j->o.no_special);
    cn_status status = CN_OK;
    for (size_t i = 0; i < ids->len && status == CN_OK; i++)
        status = cn_detok_push(&d, ids->ids[i], &text);
    if (status == CN_OK) status = cn_detok_flush(&d, &text);
    if (status == CN_OK && as_json) {
        json_t *string = json_stringn(text.len ? text.data : "", text.len);
        status = add_json(&j->out, string);
        json_decref(string);
    } else if (status == CN_OK) {
        status = cn_buf_add(&j->out, text.data, text.len);
    }
    cn_buf_free(&text);
    return status;
}

static cn_status add_ids(job *j)
{
    const char *separator = j->o.jsonl ? "," : " ";
    for (size_t i = 0; i < j->ids.len; i++) {
        uint32_t id = j->ids.ids[i];
        if (!j->o.pieces) {
            CN_TRY(cn_buf_addf(&j->out, "%s%u", i ? separator : "", id));
            continue;
        }
        CN_TRY(cn_buf_addf(&j->out, "%s%u\t", i ? "\n" : "", id));
        CN_TRY(add_text(j, true, &(cn_tokens){&id, 1, 1}));
    }
    return CN_OK;
}

/* ---- one input ---- */

static cn_status render_chat(job *j, const json_t *list)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list)) return cn_fail(CN_ERR_ARG, "--chat wants an array of messages");
    cn_message *messages = cn_calloc(n, sizeof *messages);
    if (!messages) return cn_fail(CN_ERR_MEMORY, "out of memory for %zu messages", n);
    cn_status status = CN_OK;
    for (size_t i = 0; i < n && status == CN_OK; i++) {
        const json_t *m = json_array_get(list, i);
        messages[i] = (cn_message){json_string_value(json_object_get(m, "role")),
                                   json_string_value(json_object_get(m, "content"))};
        if (!messages[i].role || !messages[i].content)
            status = cn_fail(CN_ERR_ARG, "message %zu lacks \"role\" or \"content\"", i);
    }
    cn_buf_clear(&j->rendered);
    if (status == CN_OK)
        status = cn_chat_template_render(j->chat, messages, n, j->o.enable_thinking, &j->rendered);
    cn_free(messages);
    return status;
}

static cn_status parse_ids(job *j, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t id = json_integer_value(json_array_get(list, i));
        if (id < 0 || id > UINT32_MAX) return cn_fail(CN_ERR_ARG, "token id out of range");
        CN_TRY(cn_tokens_add(&j->ids, &(uint32_t){(uint32_t)id}, 1));
    }
    return CN_OK;
}

/* `value` is the input as JSON, NULL for plain text. */
static cn_status run_one(job *j, const json_t *value, const char *text, size_t n)
{
    j->ids.len = 0;
    if (j->o.decode) {
        CN_TRY(parse_ids(j, value));
        CN_TRY(add_text(j, j->o.jsonl, &j->ids));
        return cn_buf_add(&j->out, "\n", 1);
    }
    if (j->o.chat) {
        CN_TRY(render_chat(j, value));
        text = j->rendered.data;
        n = j->rendered.len;
    } else if (value) {
        if (!json_is_string(value)) return cn_fail(CN_ERR_ARG, "the line is not a JSON string");
        text = json_string_value(value);
        n = json_string_length(value);
    }
    if (j->o.render && !j->o.jsonl) return cn_buf_add(&j->out, text, n);
    if (j->o.render) {
        json_t *string = json_stringn(text, n);
        cn_status status = add_json(&j->out, string);
        json_decref(string);
        CN_TRY(status);
        return cn_buf_add(&j->out, "\n", 1);
    }
    CN_TRY(cn_tokenizer_encode(j->tokenizer, text, n, !j->o.no_special && !j->o.chat, &j->ids));
    bool brackets = j->o.jsonl && !j->o.pieces;
    CN_TRY(cn_buf_add(&j->out, "[", brackets));
    CN_TRY(add_ids(j));
    return cn_buf_add(&j->out, brackets ? "]\n" : "\n", brackets ? 2 : 1);
}

static cn_status run_json(job *j, const char *text, size_t n)
{
    json_error_t error;
    json_t *value = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!value) return cn_fail(CN_ERR_ARG, "input is no JSON: %s", error.text);
    cn_status status = run_one(j, value, NULL, 0);
    json_decref(value);
    return status;
}

/* Plain ids to decode: numbers with anything but digits between them. */
static cn_status run_plain_ids(job *j, const char *text, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n;) {
        char *end;
        bool digit = text[i] >= '0' && text[i] <= '9';
        long long id = digit ? strtoll(text + i, &end, 10) : 0;
        if (digit) json_array_append_new(list, json_integer(id));
        i = digit ? (size_t)(end - text) : i + 1;
    }
    cn_status status =
        list ? run_one(j, list, NULL, 0) : cn_fail(CN_ERR_MEMORY, "out of memory for the ids");
    json_decref(list);
    return status;
}

static cn_status flush(job *j)
{
    size_t wrote = j->out.len ? fwrite(j->out.data, 1, j->out.len, stdout) : 0;
    bool ok = wrote == j->out.len && fflush(stdout) == 0;
    cn_buf_clear(&j->out);
    return ok ? CN_OK : cn_fail(CN_ERR_IO, "writing standard output: %s", strerror(errno));
}

static cn_status run_lines(job *j, FILE *in)
{
    char *line = NULL;
    size_t cap = 0;
    cn_status status = CN_OK;
    for (size_t number = 1; status == CN_OK; number++) {
        ssize_t n = getline(&line, &cap, in);
        if (n < 0) break;
        status = run_json(j, line, (size_t)n);
        if (status == CN_OK) status = flush(j);
        if (status != CN_OK) status = cn_fail_within(status, "line %zu", number);
    }
    free(line);
    return status;
}

static cn_status run_whole(job *j, const char *text, size_t n)
{
    if (j->o.chat) return run_json(j, text, n);
    return j->o.decode ? run_plain_ids(j, text, n) : run_one(j, NULL, text, n);
}

static cn_status run_file(job *j, FILE *in)
{
    if (j->o.jsonl) return run_lines(j, in);
    cn_buf text = {0};
    cn_status status = cn_buf_add(&text, "", 0);
    char chunk[1 << 14];
    for (size_t n; status == CN_OK && (n = fread(chunk, 1, sizeof chunk, in)) > 0;)
        status = cn_buf_add(&text, chunk, n);
    if (status == CN_OK && ferror(in))
        status = cn_fail(CN_ERR_IO, "%s: %s", j->o.input, strerror(errno));
    if (status == CN_OK) status = run_whole(j, text.data, text.len);
    cn_buf_free(&text);
    return status;
}

static cn_status run_input(job *j)
{
    if (j->o.text && !j->o.jsonl) return run_whole(j, j->o.text, strlen(j->o.text));
    if (j->o.text) return run_json(j, j->o.text, strlen(j->o.text));
    bool standard = strcmp(j->o.input, "-") == 0;
    FILE *in = standard ? stdin : fopen(j->o.input, "rb");
    if (!in) return cn_fail(CN_ERR_IO, "%s: %s", j->o.input, strerror(errno));
    cn_status status = run_file(j, in);
    if (!standard) fclose(in);
    return status;
}

cn_status cn_cmd_tokenize(int argc, char **argv)
{
    job j = {0};
    bool help = false;
    CN_TRY(parse_options(argc, argv, &j.o, &help));
    if (help) return fputs(usage, stdout) < 0 ? cn_fail(CN_ERR_IO, "standard output") : CN_OK;
    cn_status status = cn_tokenizer_load(&j.tokenizer, j.o.model);
    if (status == CN_OK && j.o.chat)
        status = cn_chat_template_load(&j.chat, j.o.model, j.o.chat_template);
    if (status == CN_OK) status = run_input(&j);
    if (status == CN_OK) status = flush(&j);
    cn_chat_template_free(j.chat);
    cn_tokenizer_free(j.tokenizer);
    cn_tokens_free(&j.ids);
    cn_buf_free(&j.out);
    cn_buf_free(&j.rendered);
    return status;
}
