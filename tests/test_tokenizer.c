/* test_tokenizer.c - ids and texts equal those of the package tokenizers (golden/tokenizer). Also
 * tests refused tokenizer.json files, special tokens, damaged and very long text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/text/detok.h"
#include "engine/text/tokenizer.h"
#include "tests/lib/scratch_dir.h"

#define GOLDEN "tests/golden/tokenizer/"

static cn_tokenizer *load(const char *dir)
{
    cn_tokenizer *t;
    if (cn_tokenizer_load(&t, dir) != CN_OK) fail_msg("%s", cn_last_error());
    return t;
}

static void encode(cn_tokenizer *t, const char *text, size_t n, bool special, cn_tokens *ids)
{
    ids->len = 0;
    if (cn_tokenizer_encode(t, text, n, special, ids) != CN_OK) fail_msg("%s", cn_last_error());
}

static void decode(const cn_tokenizer *t, const cn_tokens *ids, bool skip_special, cn_buf *out)
{
    cn_detok d;
    cn_detok_init(&d, t, skip_special);
    cn_buf_clear(out);
    assert_int_equal(cn_buf_add(out, "", 0), CN_OK);
    for (size_t i = 0; i < ids->len; i++)
        assert_int_equal(cn_detok_push(&d, ids->ids[i], out), CN_OK);
    assert_int_equal(cn_detok_flush(&d, out), CN_OK);
}

/* ---- golden ---- */

static size_t check_golden(const char *dir, const char *expect_path)
{
    cn_tokenizer *t = load(dir);
    FILE *corpus = fopen(GOLDEN "corpus.jsonl", "rb"), *expect = fopen(expect_path, "rb");
    assert_true(corpus && expect);
    char *line = NULL;
    size_t cap = 0, count = 0;
    cn_tokens ids = {0};
    cn_buf back = {0};
    for (ssize_t n; (n = getline(&line, &cap, corpus)) > 0; count++) {
        json_t *text = json_loadb(line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        unsigned ids_hash, text_hash;
        assert_non_null(text);
        assert_int_equal(fscanf(expect, "%x %x", &ids_hash, &text_hash), 2);
        encode(t, json_string_value(text), json_string_length(text), true, &ids);
        decode(t, &ids, false, &back);
        if ((uint32_t)cn_hash64(0, ids.ids, ids.len * sizeof *ids.ids) != ids_hash)
            fail_msg("%s: different ids for line %zu: %s", dir, count + 1, line);
        if ((uint32_t)cn_hash64(0, back.data, back.len) != text_hash)
            fail_msg("%s: different decoded text for line %zu: %s", dir, count + 1, line);
        json_decref(text);
    }
    free(line);
    fclose(corpus);
    fclose(expect);
    cn_tokens_free(&ids);
    cn_buf_free(&back);
    cn_tokenizer_free(t);
    return count;
}

static void equals_the_reference(void **state)
{
    (void)state;
    const size_t at_least = 2000;
    assert_true(check_golden("examples/tiny-reasoner", GOLDEN "expect-tiny-reasoner.txt") >
                at_least);
    assert_true(check_golden(GOLDEN "llama3", GOLDEN "expect-llama3.txt") > at_least);
    assert_true(check_golden(GOLDEN "gpt2", GOLDEN "expect-gpt2.txt") > at_least);
}

/* ---- variants of the golden GPT-2 tokenizer ---- */

static cn_tokenizer *parse_variant(const json_t *change)
{
    json_t *root = json_load_file(GOLDEN "gpt2/tokenizer.json", JSON_ALLOW_NUL, NULL), *value;
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    const char *name;
    json_t *pre_tokenizer = json_object_get(change, "pre_tokenizer");
    if (pre_tokenizer) json_object_set(root, "pre_tokenizer", pre_tokenizer);
    json_object_foreach(json_object_get(change, "model"), name, value)
        json_object_set(model, name, value);
    json_object_foreach(json_object_get(change, "rename"), name, value)
    {
        json_object_set(vocab, json_string_value(value), json_object_get(vocab, name));
        json_object_del(vocab, name);
    }
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    cn_tokenizer *t;
    if (cn_tokenizer_parse(&t, text, strlen(text), "variant") != CN_OK)
        fail_msg("%s: %s", json_string_value(json_object_get(change, "name")), cn_last_error());
    free(text);
    return t;
}

/* The ids of all texts of the corpus, one after the other. */
static void encode_corpus(cn_tokenizer *t, const json_t *corpus, cn_tokens *all)
{
    all->len = 0;
    for (size_t i = 0; i < json_array_size(corpus); i++) {
        const json_t *text = json_array_get(corpus, i);
        if (cn_tokenizer_encode(t, json_string_value(text), json_string_length(text), true, all))
            fail_msg("%s", cn_last_error());
    }
}

static json_t *read_corpus(void)
{
    json_t *texts = json_array();
    FILE *corpus = fopen(GOLDEN "corpus.jsonl", "rb");
    char *line = NULL;
    size_t cap = 0;
    assert_non_null(corpus);
    for (ssize_t n; (n = getline(&line, &cap, corpus)) > 0;)
        json_array_append_new(texts,
                              json_loadb(line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL));
    free(line);
    fclose(corpus);
    return texts;
}

static void variants_equal_the_reference(void **state)
{
    (void)state;
    json_t *list = json_load_file(GOLDEN "variants.json", 0, NULL), *corpus = read_corpus();
    FILE *expect = fopen(GOLDEN "expect-variants.txt", "rb");
    cn_tokens ids = {0};
    assert_true(expect && json_array_size(list) > 20);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *change = json_array_get(list, i);
        unsigned want;
        assert_int_equal(fscanf(expect, "%x", &want), 1);
        cn_tokenizer *t = parse_variant(change);
        encode_corpus(t, corpus, &ids);
        if ((uint32_t)cn_hash64(0, ids.ids, ids.len * sizeof *ids.ids) != want)
            fail_msg("%s: different ids", json_string_value(json_object_get(change, "name")));
        cn_tokenizer_free(t);
    }
    cn_tokens_free(&ids);
    fclose(expect);
    json_decref(corpus);
    json_decref(list);
}

/* ---- special tokens ---- */

static void special_tokens_are_found_and_named(void **state)
{
    (void)state;
    cn_tokenizer *t = load(GOLDEN "llama3");
    cn_tokens ids = {0};
    uint32_t bos, eot, id;
    assert_true(cn_tokenizer_id(t, "<|begin_of_text|>", &bos));
    assert_true(cn_tokenizer_id(t, "<|eot_id|>", &eot));
    assert_false(cn_tokenizer_id(t, "<|nothing|>", &id));

    encode(t, "a<|eot_id|>b", 12, true, &ids);
    assert_int_equal(ids.len, 4);
    assert_int_equal(ids.ids[0], bos);
    assert_int_equal(ids.ids[2], eot);
    encode(t, "", 0, true, &ids);
    assert_int_equal(ids.len, 1);
    encode(t, "", 0, false, &ids);
    assert_int_equal(ids.len, 0);

    const char *bytes;
    size_t n;
    bool special;
    assert_true(cn_tokenizer_token(t, eot, &bytes, &n, &special));
    assert_true(special && n == 10 && memcmp(bytes, "<|eot_id|>", n) == 0);
    assert_true(cn_tokenizer_id(t, "Ġthe", &id));
    assert_true(cn_tokenizer_token(t, id, &bytes, &n, &special));
    assert_true(!special && n == 4 && memcmp(bytes, " the", n) == 0);
    assert_false(cn_tokenizer_token(t, cn_tokenizer_vocab_size(t), &bytes, &n, &special));
    assert_true(cn_tokenizer_token(t, cn_tokenizer_vocab_size(t) - 1, &bytes, &n, &special));
    cn_tokens_free(&ids);
    cn_tokenizer_free(t);
}

/* tokenizer_config.json comes before the post-processor, as in transformers. */
static void the_config_decides_on_bos_and_eos(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        size_t n; /* number of ids of "a" */
    } cases[] = {
        {"{}", 2},
        {"{\"bos_token\": \"<|end_of_text|>\"}", 2},
        {"{\"add_bos_token\": false, \"bos_token\": \"<|begin_of_text|>\"}", 1},
        {"{\"add_bos_token\": true, \"bos_token\": {\"content\": \"<|begin_of_text|>\"},"
         " \"model_max_length\": 1000000000000000019884624838656}",
         2},
        {"{\"add_bos_token\": true, \"bos_token\": null}", 1},
        {"{\"add_eos_token\": true, \"eos_token\": \"<|eot_id|>\"}", 2},
        {"{\"add_bos_token\": true, \"bos_token\": \"<|begin_of_text|>\","
         " \"add_eos_token\": true, \"eos_token\": \"<|eot_id|>\"}",
         3},
    };
    scratch_dir dir;
    scratch_dir_open(&dir);
    json_t *tree = json_load_file(GOLDEN "llama3/tokenizer.json", 0, NULL);
    char *text = json_dumps(tree, 0);
    scratch_dir_put(&dir, "tokenizer.json", text, strlen(text));
    free(text);
    json_decref(tree);
    cn_tokens ids = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch_dir_put(&dir, "tokenizer_config.json", cases[i].config, strlen(cases[i].config));
        cn_tokenizer *t = load(dir.path);
        encode(t, "a", 1, true, &ids);
        if (ids.len != cases[i].n) fail_msg("%s: got %zu ids", cases[i].config, ids.len);
        cn_tokenizer_free(t);
    }
    static const char bad[] = "{\"add_bos_token\": true, \"bos_token\": \"<nope>\"}";
    scratch_dir_put(&dir, "tokenizer_config.json", bad, sizeof bad - 1);
    cn_tokenizer *t;
    assert_int_equal(cn_tokenizer_load(&t, dir.path), CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "<nope>"));
    assert_null(t);
    scratch_dir_put(&dir, "tokenizer.json", NULL, 0);
    assert_int_equal(cn_tokenizer_load(&t, dir.path), CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "save_pretrained"));
    scratch_dir_close(&dir);
    cn_tokens_free(&ids);
}

/* ---- files that are refused ---- */

/* Parses the golden GPT-2 tokenizer with the value at a path ("model.dropout") replaced; NULL
 * removes it. */
static cn_status parse_changed(const char *path, const char *value)
{
    json_t *root = json_load_file(GOLDEN "gpt2/tokenizer.json", JSON_ALLOW_NUL, NULL), *at = root;
    assert_non_null(root);
    char keys[128], *save = NULL;
    snprintf(keys, sizeof keys, "%s", path);
    char *key = strtok_r(keys, ".", &save);
    for (char *next; (next = strtok_r(NULL, ".", &save)); key = next)
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
    json_t *new_value = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(!value || new_value);
    if (!value)
        json_object_del(at, key);
    else if (json_is_array(at))
        json_array_set_new(at, (size_t)atoi(key), new_value);
    else
        json_object_set_new(at, key, new_value);
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    cn_tokenizer *t = NULL;
    cn_status status = cn_tokenizer_parse(&t, text, strlen(text), "in");
    assert_true((t != NULL) == (status == CN_OK));
    cn_tokenizer_free(t);
    free(text);
    return status;
}

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define SPLIT(regex, behavior)                                                           \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"" behavior \
    "\",\"invert\":false}"

static const struct {
    const char *path, *value, *words;
} refused[] = {
    {"version", "\"2.0\"", "version"},
    {"truncator", "1", "truncator"},
    {"model.type", "\"Unigram\"", "Unigram"},
    {"model.type", "7", "?"},
    {"model.sampling", "true", "sampling"},
    {"model.dropout", "0.1", "dropout"},
    {"model.continuing_subword_prefix", "\"##\"", "continuing_subword_prefix"},
    {"model.end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
    {"model.ignore_merges", "\"yes\"", "ignore_merges"},
    {"model.vocab", "[]", "vocab"},
    {"model.vocab", "{}", "merges[0]"},
    {"model.vocab.Ġ", "-1", "is -1"},
    {"model.vocab.Ġ", "4194304", "4194304"},
    {"model.vocab.Ġ", "1.5", "1.5"},
    {"model.vocab.Ġ", NULL, "merges[0]"},
    {"model.unk_token", "7", "7"},
    {"model.fuse_unk", "1", "fuse_unk"},
    {"model.byte_fallback", "\"no\"", "byte_fallback"},
    {"model.vocab.A", "0", "id 0 has two tokens"},
    {"model.merges", "{}", "merges"},
    {"model.merges.3", "7", "merges[3]"},
    {"model.merges.3", "\"a\"", "merges[3]"},
    {"model.merges.3", "\"a b c\"", "merges[3]"},
    {"model.merges.3", "[\"a\"]", "merges[3]"},
    {"model.merges.3", "[\"a\", \"zzz\"]", "merges[3]"},
    {"model.merges.3", "\"Q Z\"", "merges[3]"},
    {"normalizer", "{\"type\":\"NFKC\"}", "NFKC"},
    {"normalizer", "{\"type\":\"NFC\",\"x\":1}", "\"x\""},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}",
     "Lowercase"},
    {"pre_tokenizer", "null", "null"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\"}", "Metaspace"},
    {"pre_tokenizer.add_prefix_space", NULL, "add_prefix_space"},
    {"pre_tokenizer.use_regex", "0", "use_regex"},
    {"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[]}", "no ByteLevel"},
    {"pre_tokenizer", "{\"type\":\"Digits\",\"individual_digits\":true}", "no ByteLevel"},
    {"pre_tokenizer", "{\"type\":\"Digits\",\"individual_digits\":1}", "individual_digits"},
    {"pre_tokenizer", "{\"type\":\"Punctuation\",\"behavior\":\"Dropped\"}", "Dropped"},
    {"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL "," BYTE_LEVEL "]}",
     "more than one ByteLevel"},
    {"pre_tokenizer", SPLIT("a*", "Isolated"), "empty text"},
    {"pre_tokenizer", SPLIT("(a", "Isolated"), "without an end"},
    {"pre_tokenizer", SPLIT("[a", "Isolated"), "without an end"},
    {"pre_tokenizer", SPLIT("a)", "Isolated"), "without '('"},
    {"pre_tokenizer", SPLIT("\\\\p{Greek}", "Isolated"), "\\p{Greek}"},
    {"pre_tokenizer", SPLIT("[a&&b]", "Isolated"), "intersection"},
    {"pre_tokenizer", SPLIT("(?<n>a)", "Isolated"), "this group"},
    {"pre_tokenizer", SPLIT("a\\\\b", "Isolated"), "this escape"},
    {"pre_tokenizer",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
     "\"\\\\w+|\\u00e9\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":"
     "\"ByteLevel\"}]}",
     "\\w+|\\xc3\\xa9: this escape is not supported, at 'w+"},
    {"pre_tokenizer",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":"
     "\"\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\"}]}",
     "Regex"},
    {"pre_tokenizer", SPLIT(" ", "Dropped"), "Dropped"},
    {"post_processor", "{\"type\":\"RobertaProcessing\"}", "RobertaProcessing"},
    {"post_processor",
     "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<x>\"}}],"
     "\"special_tokens\":{}}",
     "<x>"},
    {"post_processor",
     "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"B\"}}]}", "single[0]"},
    {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}", "0 times"},
    {"decoder", "null", "decoder"},
    {"decoder", "{\"type\":\"Metaspace\"}", "Metaspace"},
    {"added_tokens", "{}", "added_tokens"},
    {"added_tokens.0", "{\"content\":\"<a>\",\"id\":7}", "special"},
    {"added_tokens.0", "{\"id\":7}", "content"},
    {"added_tokens.1.id", "5", "has id 5, expected 1500"},
    {"added_tokens.1.id", "1e300", "e300, expected 1500"},
    {"added_tokens.1.lstrip", "0", "lstrip"},
    {"added_tokens.1.regex", "true", "regex"},
};

static void unsupported_content_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (parse_changed(refused[i].path, refused[i].value) != CN_ERR_MODEL)
            fail_msg("accepted: %s = %s", refused[i].path, refused[i].value);
        if (!strstr(cn_last_error(), refused[i].words))
            fail_msg("%s = %s: %s", refused[i].path, refused[i].value, cn_last_error());
    }
}

static void content_without_effect_is_accepted(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value;
    } cases[] = {
        {"version", "\"1.0\""},
        {"truncation", "{\"max_length\":512}"},
        {"padding", "{\"strategy\":\"BatchLongest\"}"},
        {"model.type", NULL},
        {"model.dropout", "0.0"},
        {"model.unk_token", "\"<|endoftext|>\""},
        {"model.continuing_subword_prefix", "\"\""},
        {"model.ignore_merges", "true"},
        {"normalizer", "null"},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}"},
        {"pre_tokenizer.use_regex", NULL},
        {"model.unk_token", "\"nothing\""},
        {"model.fuse_unk", NULL},
        {"model.byte_fallback", "null"},
        {"post_processor", "null"},
        {"added_tokens", "[]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (parse_changed(cases[i].path, cases[i].value) != CN_OK)
            fail_msg("%s = %s: %s", cases[i].path, cases[i].value, cn_last_error());
}

/* ---- damaged and long text ---- */

static void damaged_text_counts_as_replacement_characters(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"a\xff"
         "b",
         "a\uFFFD"
         "b"},
        {"\xc3", "\uFFFD"},
        {"\xc3(", "\uFFFD("},
        {"\xe4\xb8", "\uFFFD"},
        {"\xe4\xb8\xe4\xb8\xad", "\uFFFD中"},
        {"\xf0\x9f\x99", "\uFFFD"},
        {"\xc0\xaf", "\uFFFD\uFFFD"},
        {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
        {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
        {"\xf8\x88", "\uFFFD\uFFFD"},
        {"x\x80\x80", "x\uFFFD\uFFFD"},
    };
    cn_tokenizer *t = load("examples/tiny-reasoner");
    cn_tokens a = {0}, b = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        encode(t, cases[i].bytes, strlen(cases[i].bytes), false, &a);
        encode(t, cases[i].text, strlen(cases[i].text), false, &b);
        if (a.len != b.len || memcmp(a.ids, b.ids, a.len * sizeof *a.ids) != 0)
            fail_msg("case %zu", i);
    }
    cn_tokens_free(&a);
    cn_tokens_free(&b);
    cn_tokenizer_free(t);
}

/* A megabyte of one word, of marks on one letter, of blanks, of near copies of a token: a few
 * seconds. A quadratic algorithm would take hours. */
static void long_texts_take_linear_time(void **state)
{
    (void)state;
    static const char *const units[] = {"a",       "ab", " ",       "\n",           "=",
                                        "1",       "中", "é",       "\u0301\u0323", "<",
                                        "<|im_st", "\0", "e\u0301", "\u3000"};
    enum { BYTES = 1 << 20 };
    cn_tokenizer *t = load("examples/tiny-reasoner");
    char *text = malloc(BYTES);
    cn_tokens ids = {0};
    double start = cn_now_s();
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t n = strlen(units[u]) ? strlen(units[u]) : 1, len = 0;
        for (; len + n <= BYTES; len += n) memcpy(text + len, units[u], n);
        encode(t, text, len, false, &ids);
        assert_true(ids.len > 0);
    }
    uint32_t seed = 1;
    for (size_t i = 0; i < BYTES; i++) {
        seed = seed * 1664525 + 1013904223;
        text[i] = (char)('a' + seed % 26 * (seed >> 30) / 4);
    }
    encode(t, text, BYTES, false, &ids);
    assert_true(cn_now_s() - start < 300);
    free(text);
    cn_tokens_free(&ids);
    cn_tokenizer_free(t);
}

static void a_text_that_is_too_long_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    cn_tokenizer *t = load("examples/tiny-reasoner");
    cn_tokens ids = {0};
    encode(t, "abc", 3, false, &ids);
    size_t before = ids.len;
    assert_int_equal(cn_tokenizer_encode(t, "x", (size_t)1 << 30, true, &ids), CN_ERR_ARG);
    assert_int_equal(ids.len, before);
    cn_tokens_free(&ids);
    cn_tokenizer_free(t);
}

/* ---- streaming decode ---- */

static void decoding_holds_back_only_unfinished_characters(void **state)
{
    (void)state;
    cn_tokenizer *t = load("examples/tiny-reasoner");
    cn_tokens ids = {0};
    static const char text[] = "né 中文 🙂🙃 e\u0301";
    encode(t, text, sizeof text - 1, false, &ids);
    cn_buf out = {0};
    cn_detok d;
    cn_detok_init(&d, t, true);
    for (size_t i = 0; i < ids.len; i++) {
        assert_int_equal(cn_detok_push(&d, ids.ids[i], &out), CN_OK);
        assert_true(d.n_held <= 3);
        assert_null(strstr(out.data, "\uFFFD"));
    }
    assert_int_equal(cn_detok_flush(&d, &out), CN_OK);
    assert_string_equal(out.data, "né 中文 🙂🙃 é"); /* in NFC */
    cn_buf_free(&out);
    cn_tokens_free(&ids);
    cn_tokenizer_free(t);
}

/* Random ids give random bytes. Decoding in pieces must equal decoding at once and split no
 * character. */
static void decoding_random_ids_gives_whole_characters(void **state)
{
    (void)state;
    cn_tokenizer *t = load(GOLDEN "gpt2");
    uint32_t seed = 7, vocab = cn_tokenizer_vocab_size(t);
    cn_buf out = {0};
    assert_int_equal(cn_buf_addf(&out, "%*s", 1 << 16, ""), CN_OK); /* reserves room */
    for (int round = 0; round < 200; round++) {
        cn_detok d;
        cn_detok_init(&d, t, false);
        cn_buf_clear(&out);
        uint64_t allocations = cn_alloc_count();
        for (int i = 0; i < 100; i++) {
            seed = seed * 1664525 + 1013904223;
            /* Bytes above 0x7F are among the first 256 ids. */
            uint32_t id = (seed >> 8) % (i % 3 ? 256 : vocab + 5);
            assert_int_equal(cn_detok_push(&d, id, &out), CN_OK);
            assert_true(d.n_held <= 3);
        }
        assert_int_equal(cn_detok_flush(&d, &out), CN_OK);
        assert_true(cn_alloc_count() == allocations);
        json_t *valid = json_stringn(out.data, out.len);
        if (!valid) fail_msg("round %d: not UTF-8", round);
        json_decref(valid);
    }
    cn_buf_free(&out);
    cn_tokenizer_free(t);
}

static void decoding_can_skip_special_tokens(void **state)
{
    (void)state;
    cn_tokenizer *t = load("examples/tiny-reasoner");
    static const char text[] = "<think>a</think>b<|im_end|>";
    cn_tokens ids = {0};
    cn_buf out = {0};
    encode(t, text, sizeof text - 1, false, &ids);
    decode(t, &ids, true, &out);
    assert_string_equal(out.data, "ab");
    decode(t, &ids, false, &out);
    assert_string_equal(out.data, text);
    cn_tokens_free(&ids);
    cn_buf_free(&out);
    cn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(variants_equal_the_reference),
        cmocka_unit_test(special_tokens_are_found_and_named),
        cmocka_unit_test(the_config_decides_on_bos_and_eos),
        cmocka_unit_test(unsupported_content_is_refused_by_name),
        cmocka_unit_test(content_without_effect_is_accepted),
        cmocka_unit_test(damaged_text_counts_as_replacement_characters),
        cmocka_unit_test(long_texts_take_linear_time),
        cmocka_unit_test(a_text_that_is_too_long_is_refused_and_changes_nothing),
        cmocka_unit_test(decoding_holds_back_only_unfinished_characters),
        cmocka_unit_test(decoding_random_ids_gives_whole_characters),
        cmocka_unit_test(decoding_can_skip_special_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
