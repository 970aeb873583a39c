/* fuzz_options.c - feeds hostile command lines and request bodies to the option table. The lines of
 * an input are arguments; an input that starts with '{' is a request body. Must hold: no crash;
 * every accepted value is inside its bounds, and its printed form reads back as the same value. */
#include <stdlib.h>
#include <string.h>

#include "engine/options/option_value.h"
#include "tests/lib/fuzz.h"

enum { ALL_SECTIONS = (1 << CN_N_SECTIONS) - 1, MAX_ARGS = 64 };

static void check_values(const cn_config *c)
{
    cn_config *again = cn_config_create();
    FUZZ_CHECK(again);
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        cn_buf text = {0};
        FUZZ_CHECK(cn_option_format(&o[i], c, &text) == CN_OK);
        if (text.len) FUZZ_CHECK(cn_option_set_text(again, &o[i], text.data) == CN_OK);
        cn_buf_free(&text);
    }
    cn_buf results = {0}, results_again = {0};
    FUZZ_CHECK(cn_config_result_text(c, &results) == CN_OK);
    FUZZ_CHECK(cn_config_result_text(again, &results_again) == CN_OK);
    FUZZ_CHECK(strcmp(results.data, results_again.data) == 0);
    cn_buf_free(&results);
    cn_buf_free(&results_again);
    cn_config_free(again);
}

static void run_arguments(cn_config *c, char *text)
{
    char *argv[MAX_ARGS] = {"cinch"};
    int argc = 1, first;
    for (char *line = text, *end; line && argc < MAX_ARGS; line = end ? end + 1 : NULL) {
        end = strchr(line, '\n');
        if (end) *end = '\0';
        argv[argc++] = line;
    }
    cn_status status = cn_config_parse_args(c, ALL_SECTIONS, argc, argv, &first);
    FUZZ_CHECK(status == CN_OK || status == CN_ERR_ARG);
    if (status == CN_OK) {
        FUZZ_CHECK(first >= 1 && first <= argc);
        status = cn_config_validate(c, ALL_SECTIONS);
        FUZZ_CHECK(status == CN_OK || status == CN_ERR_ARG);
    }
    check_values(c);
}

static void run_body(cn_config *c, const uint8_t *data, size_t size)
{
    json_t *body = json_loadb((const char *)data, size, 0, NULL);
    const char *key;
    json_t *value;
    json_object_foreach(body, key, value)
    {
        bool known;
        cn_status status = cn_request_set_json(
            &c->sampling, &c->kv, CN_SECTION_SAMPLING | CN_SECTION_KV, key, value, &known);
        FUZZ_CHECK(status == CN_OK || (status == CN_ERR_ARG && known));
    }
    json_decref(body);
    check_values(c);
}

static void run(const uint8_t *data, size_t size)
{
    cn_config *c = cn_config_create();
    FUZZ_CHECK(c);
    if (size && data[0] == '{') {
        run_body(c, data, size);
    } else {
        char *text = cn_strndup((const char *)data, size);
        FUZZ_CHECK(text);
        run_arguments(c, text);
        cn_free(text);
    }
    cn_config_free(c);
}

static const fuzz_input corpus[] = {
    FUZZ_TEXT("--model\na\n-i\nb\n-o\nc\n--max-num-seqs=7\n--no-enable-prefix-caching\n--top-p\n1"),
    FUZZ_TEXT("--kv-policies\nfull,zip\n--until\n23:59\n--kv-cache-memory-bytes=1G\nx\n--\n-y"),
    FUZZ_TEXT("--block-size\n64\n--seed\n1\n--grade=exact\n--answer-field\na\n--temperature=0"),
    FUZZ_TEXT("{\"n\":2,\"temperature\":0.5,\"top_k\":-1,\"ignore_eos\":true,\"max_tokens\":9,"
              "\"kv\":{\"policy\":\"zip\",\"budget\":512,\"alpha\":0.8,\"global\":false},"
              "\"repetition_detection\":{\"max_pattern_size\":4,\"min_count\":3},\"top_p\":null}"),
};

static const char *const words[] = {
    "\n",       "--",
    "-",        "=",
    "--no-",    "--help",
    ",",        ":",
    "zip",      "true",
    "null",     "--strict",
    "{",        "}",
    "\"kv\":",  "\"seed\":",
    "_",        "%s%n",
    "\xff",     "K",
    "T",        "--dataset-name",
    "--resume",
};

static const fuzz_target target = {
    .name = "options",
    .run = run,
    .corpus = corpus,
    .n_corpus = sizeof corpus / sizeof *corpus,
    .words = words,
    .n_words = sizeof words / sizeof *words,
};

int main(int argc, char **argv) { return fuzz_main(argc, argv, &target); }
