/* tokenizer_json.c - tokenizer.json to a cn_tokenizer. See tokenizer_json.h.
 *
 * Every object is checked against a list of known fields. An unknown field could change the result,
 * so it is rejected by name. */
#include "engine/text/tokenizer_json.h"

#include "engine/base/json.h"
#include "engine/base/utf8.h"

/* ---- reading JSON with names in the errors ---- */

/* Text and values of an untrusted file, made safe to print in a message. */
enum { SHOWN_BYTES = 80 };
#define PRINTABLE(text) cn_json_printable(text, (char[SHOWN_BYTES]){0}, SHOWN_BYTES)
#define SHOWN(value) cn_json_describe(value, (char[SHOWN_BYTES]){0}, SHOWN_BYTES)

/* Rejects any key of `object` that is not in the NULL-terminated list. */
static cn_status check_keys(const json_t *object, const char *what, const char *const *known)
{
    if (!json_is_object(object)) return cn_fail(CN_ERR_MODEL, "%s: expected an object", what);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        if (!cn_json_is_named(known, key))
            return cn_fail(CN_ERR_MODEL, "%s: unknown field \"%s\"", what, PRINTABLE(key));
    }
    return CN_OK;
}
#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static cn_status read_bool(const json_t *object, const char *what, const char *key, bool *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_is_true(value);
    if (!json_is_boolean(value))
        return cn_fail(CN_ERR_MODEL, "%s: \"%s\": expected true or false", what, key);
    return CN_OK;
}

/* json_null for an absent member. */
static const json_t *tokenizer_member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value ? value : json_null();
}

/* The "type" of an object, "null" for null; never NULL. */
static const char *type_of(const json_t *object)
{
    if (json_is_null(object)) return "null";
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "?";
}

static bool is_empty_text(const json_t *value)
{
    return json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0);
}

/* ---- model ---- */

static cn_status check_tokenizer_model(const json_t *model)
{
    CN_TRY(check_keys(model, "model",
                      KEYS("type", "dropout", "unk_token", "continuing_subword_prefix",
                           "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                           "vocab", "merges")));
    /* Files written before this field existed are BPE if they have merges. */
    const char *type = json_object_get(model, "type") ? type_of(model) : "BPE";
    if (strcmp(type, "BPE") != 0)
        return cn_fail(CN_ERR_MODEL, "model type \"%s\" is not supported (only BPE)",
                       PRINTABLE(type));
    const json_t *dropout = tokenizer_member(model, "dropout");
    if (!json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0.0))
        return cn_fail(CN_ERR_MODEL, "model: \"dropout\" is not supported");
    if (!is_empty_text(tokenizer_member(model, "continuing_subword_prefix")))
        return cn_fail(CN_ERR_MODEL, "model: \"continuing_subword_prefix\" is not supported");
    if (!is_empty_text(tokenizer_member(model, "end_of_word_suffix")))
        return cn_fail(CN_ERR_MODEL, "model: \"end_of_word_suffix\" is not supported");
    if (!json_is_object(json_object_get(model, "vocab")))
        return cn_fail(CN_ERR_MODEL, "model: \"vocab\": expected an object");
    if (!json_is_array(json_object_get(model, "merges")))
        return cn_fail(CN_ERR_MODEL, "model: \"merges\": expected an array");
    return CN_OK;
}

static cn_status read_vocab(cn_tokenizer *t, const json_t *vocab)
{
    const char *content;
    json_t *id;
    json_object_foreach((json_t *)vocab, content, id)
    {
        int64_t value;
        if (!cn_json_as_i64(id, 0, CN_VOCAB_MAX_ID, &value))
            return cn_fail(CN_ERR_MODEL, "vocab: the id of '%s' is %s: expected 0 to %d",
                           PRINTABLE(content), SHOWN(id), CN_VOCAB_MAX_ID);
        CN_TRY(cn_vocab_add(&t->vocab, content, strlen(content), (uint32_t)value));
    }
    return CN_OK;
}

/* Finds the tokens "<0xHH>" of the bytes of a byte's character. Without one of them the byte has no
 * substitutes, as in the tokenizers package. */
static void find_substitutes(const cn_vocab *v, const char *utf8, size_t n, uint32_t out[2])
{
    for (size_t i = 0; i < n && i < 2; i++) {
        char name[8];
        const int len = snprintf(name, sizeof name, "<0x%02X>", (unsigned char)utf8[i]);
        if (cn_vocab_find(v, name, (size_t)len, &out[i])) continue;
        out[0] = out[1] = CN_BPE_NO_TOKEN;
        return;
    }
}

static void read_tokenizer_bytes(const cn_tokenizer *t, bool byte_fallback, cn_bpe_bytes *bytes)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char utf8[4];
        size_t n = cn_utf8_write(utf8, cn_vocab_byte_char((unsigned char)byte));
        bytes->substitutes[byte][0] = bytes->substitutes[byte][1] = CN_BPE_NO_TOKEN;
        if (cn_vocab_find(&t->vocab, utf8, n, &bytes->ids[byte])) continue;
        bytes->ids[byte] = CN_BPE_NO_TOKEN;
        if (byte_fallback) find_substitutes(&t->vocab, utf8, n, bytes->substitutes[byte]);
    }
}

/* Whether text can have a byte that becomes the unknown token. */
static bool needs_unknown(const cn_bpe_bytes *bytes)
{
    for (unsigned byte = 0; byte < 0xF5; byte++) {
        const bool in_utf8 = byte < 0xC0 || byte > 0xC1;
        if (in_utf8 && bytes->ids[byte] == CN_BPE_NO_TOKEN &&
            bytes->substitutes[byte][0] == CN_BPE_NO_TOKEN)
            return true;
    }
    return false;
}

/* Reads what becomes of a byte: its token, or what replaces a byte without one. */
static cn_status read_first_symbols(const cn_tokenizer *t, const json_t *model, cn_bpe_bytes *bytes)
{
    const json_t *unknown = tokenizer_member(model, "unk_token");
    bool byte_fallback = false;
    bytes->unknown = CN_BPE_NO_TOKEN;
    bytes->fuse_unknown = false;
    if (!json_is_null(tokenizer_member(model, "fuse_unk")))
        CN_TRY(read_bool(model, "model", "fuse_unk", &bytes->fuse_unknown));
    if (!json_is_null(tokenizer_member(model, "byte_fallback")))
        CN_TRY(read_bool(model, "model", "byte_fallback", &byte_fallback));
    read_tokenizer_bytes(t, byte_fallback, bytes);
    if (json_is_null(unknown)) return CN_OK;
    if (!json_is_string(unknown))
        return cn_fail(CN_ERR_MODEL, "model: \"unk_token\": expected a string, got %s",
                       SHOWN(unknown));
    if (!needs_unknown(bytes) || cn_vocab_find(&t->vocab, json_string_value(unknown),
                                               json_string_length(unknown), &bytes->unknown))
        return CN_OK;
    return cn_fail(CN_ERR_MODEL, "model: \"unk_token\" %s is not in the vocab, which lacks bytes",
                   SHOWN(unknown));
}

/* Splits a merge, "a b" or ["a", "b"], into its two tokens. */
static bool split_merge(const json_t *merge, const char **a, size_t *n_a, const char **b,
                        size_t *n_b)
{
    const json_t *first = merge, *second = merge;
    if (json_is_array(merge)) {
        first = json_array_get(merge, 0);
        second = json_array_get(merge, 1);
        if (json_array_size(merge) != 2 || !json_is_string(first) || !json_is_string(second))
            return false;
        *n_a = json_string_length(first);
    } else {
        if (!json_is_string(merge)) return false;
        const char *space = memchr(json_string_value(merge), ' ', json_string_length(merge));
        if (!space) return false;
        *n_a = (size_t)(space - json_string_value(merge));
    }
    size_t skipped = first == second ? *n_a + 1 : 0;
    *a = json_string_value(first);
    *b = json_string_value(second) + skipped;
    *n_b = json_string_length(second) - skipped;
    return first != second || !memchr(*b, ' ', *n_b);
}

static cn_status read_merge(cn_tokenizer *t, const json_t *merge, size_t index, cn_buf *joined)
{
    const char *a, *b;
    size_t n_a, n_b;
    uint32_t left, right, result;
    if (!split_merge(merge, &a, &n_a, &b, &n_b))
        return cn_fail(CN_ERR_MODEL, "merges[%zu]: expected \"a b\" or [\"a\", \"b\"]", index);
    cn_buf_clear(joined);
    CN_TRY(cn_buf_add(joined, a, n_a));
    CN_TRY(cn_buf_add(joined, b, n_b));
    if (!cn_vocab_find(&t->vocab, a, n_a, &left) || !cn_vocab_find(&t->vocab, b, n_b, &right) ||
        !cn_vocab_find(&t->vocab, joined->data, joined->len, &result))
        return cn_fail(CN_ERR_MODEL, "merges[%zu], %s, is not in the vocab", index, SHOWN(merge));
    cn_bpe_add_merge(t->bpe, left, right, result);
    return CN_OK;
}

static cn_status read_merges(cn_tokenizer *t, const json_t *model)
{
    const json_t *merges = json_object_get(model, "merges");
    cn_bpe_bytes bytes;
    CN_TRY(read_first_symbols(t, model, &bytes));
    CN_TRY(cn_bpe_create(&t->bpe, &bytes, json_array_size(merges)));
    cn_buf joined = {0};
    cn_status status = CN_OK;
    for (size_t i = 0; i < json_array_size(merges) && status == CN_OK; i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *text = json_string_value(merge);
        bool header = text && strncmp(text, "#version", 8) == 0; /* the first line of merges.txt */
        if (!header) status = read_merge(t, merge, i, &joined);
    }
    cn_buf_free(&joined);
    return status;
}

static cn_status read_tokenizer_model(cn_tokenizer *t, const json_t *model)
{
    CN_TRY(check_tokenizer_model(model));
    CN_TRY(read_vocab(t, json_object_get(model, "vocab")));
    CN_TRY(read_merges(t, model));
    bool ignore_merges = false;
    if (json_object_get(model, "ignore_merges"))
        CN_TRY(read_bool(model, "model", "ignore_merges", &ignore_merges));
    for (uint32_t id = 0; ignore_merges && id < t->vocab.len; id++) {
        const cn_vocab_entry *e = cn_vocab_at(&t->vocab, id);
        if (e && e->byte_level && e->n_bytes)
            CN_TRY(cn_bpe_add_word(t->bpe, cn_vocab_bytes(&t->vocab, e), e->n_bytes, id));
    }
    return CN_OK;
}

/* ---- normalizer, pre-tokenizer, decoder ---- */

static cn_status read_normalizer(cn_tokenizer *t, const json_t *normalizer)
{
    const char *type = type_of(normalizer);
    if (json_is_null(normalizer)) return CN_OK;
    if (strcmp(type, "NFC") == 0) {
        t->nfc = true;
        return check_keys(normalizer, "normalizer", KEYS("type"));
    }
    const json_t *list = json_object_get(normalizer, "normalizers");
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list))
        return cn_fail(CN_ERR_MODEL, "normalizer \"%s\" is not supported (only NFC)",
                       PRINTABLE(type));
    CN_TRY(check_keys(normalizer, "normalizer", KEYS("type", "normalizers")));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        if (strcmp(type_of(one), "NFC") != 0)
            return cn_fail(CN_ERR_MODEL, "normalizer \"%s\" is not supported (only NFC)",
                           PRINTABLE(type_of(one)));
        CN_TRY(read_normalizer(t, one));
    }
    return CN_OK;
}

static cn_status read_byte_level(cn_word_steps *words, const json_t *step)
{
    static const char what[] = "pre_tokenizer ByteLevel";
    bool add_prefix_space, use_regex = true;
    CN_TRY(check_keys(step, what, KEYS("type", "add_prefix_space", "trim_offsets", "use_regex")));
    CN_TRY(read_bool(step, what, "add_prefix_space", &add_prefix_space));
    if (json_object_get(step, "use_regex")) CN_TRY(read_bool(step, what, "use_regex", &use_regex));
    return cn_word_steps_add_byte_level(words, add_prefix_space, use_regex);
}

static cn_status read_behavior(const json_t *step, const char *what, cn_split_behavior *out)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const json_t *behavior = tokenizer_member(step, "behavior");
    const char *name = json_string_value(behavior);
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (cn_split_behavior)i;
        return CN_OK;
    }
    return cn_fail(CN_ERR_MODEL, "%s: \"behavior\" %s is not supported", what, SHOWN(behavior));
}

static cn_status read_split(cn_word_steps *words, const json_t *step)
{
    static const char what[] = "pre_tokenizer Split";
    CN_TRY(check_keys(step, what, KEYS("type", "pattern", "behavior", "invert")));
    const json_t *pattern = json_object_get(step, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = json_object_get(pattern, "String");
    cn_split_behavior behavior;
    bool invert;
    char shown[512];
    CN_TRY(read_bool(step, what, "invert", &invert));
    CN_TRY(read_behavior(step, what, &behavior));
    if (json_string_length(text) > 0)
        return cn_word_steps_add_text(words, json_string_value(text), json_string_length(text),
                                      behavior, invert);
    if (json_string_length(regex) == 0)
        return cn_fail(CN_ERR_MODEL, "%s: expected a \"Regex\" or a \"String\"", what);
    cn_status status = cn_word_steps_add_split(words, json_string_value(regex), behavior, invert);
    if (status != CN_ERR_MODEL) return status;
    return cn_fail_within(status, "%s: %s", what,
                          cn_json_printable(json_string_value(regex), shown, sizeof shown));
}

static cn_status read_tokenizer_digits(cn_word_steps *words, const json_t *step)
{
    static const char what[] = "pre_tokenizer Digits";
    bool individual = false;
    CN_TRY(check_keys(step, what, KEYS("type", "individual_digits")));
    if (json_object_get(step, "individual_digits"))
        CN_TRY(read_bool(step, what, "individual_digits", &individual));
    return cn_word_steps_add_digits(words, individual);
}

static cn_status read_punctuation(cn_word_steps *words, const json_t *step)
{
    static const char what[] = "pre_tokenizer Punctuation";
    cn_split_behavior behavior = CN_SPLIT_ISOLATED;
    CN_TRY(check_keys(step, what, KEYS("type", "behavior")));
    if (json_object_get(step, "behavior")) CN_TRY(read_behavior(step, what, &behavior));
    return cn_word_steps_add_punctuation(words, behavior);
}

static cn_status read_word_step(cn_word_steps *words, const json_t *step, uint32_t depth)
{
    enum { MAX_DEPTH = 4 };
    static const struct {
        const char *type;
        cn_status (*read)(cn_word_steps *words, const json_t *step);
    } readers[] = {{"ByteLevel", read_byte_level},
                   {"Split", read_split},
                   {"Digits", read_tokenizer_digits},
                   {"Punctuation", read_punctuation}};
    const char *type = type_of(step);
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (strcmp(type, readers[i].type) == 0) return readers[i].read(words, step);
    const json_t *list = json_object_get(step, "pretokenizers");
    if (depth == MAX_DEPTH || strcmp(type, "Sequence") != 0 || !json_is_array(list))
        return cn_fail(CN_ERR_MODEL,
                       "pre_tokenizer \"%s\" is not supported (only ByteLevel, Split, Digits, "
                       "Punctuation and a Sequence of these)",
                       PRINTABLE(type));
    CN_TRY(check_keys(step, "pre_tokenizer", KEYS("type", "pretokenizers")));
    for (size_t i = 0; i < json_array_size(list); i++)
        CN_TRY(read_word_step(words, json_array_get(list, i), depth + 1));
    return CN_OK;
}

static cn_status read_pre_tokenizer(cn_tokenizer *t, const json_t *step)
{
    CN_TRY(cn_word_steps_create(&t->words));
    CN_TRY(read_word_step(t->words, step, 0));
    if (!cn_word_steps_has_byte_level(t->words))
        return cn_fail(CN_ERR_MODEL,
                       "pre_tokenizer: no ByteLevel: only byte-level tokenizers are supported");
    return CN_OK;
}

static cn_status check_decoder(const json_t *decoder)
{
    if (strcmp(type_of(decoder), "ByteLevel") == 0) return CN_OK;
    return cn_fail(CN_ERR_MODEL, "decoder \"%s\" is not supported (only ByteLevel)",
                   PRINTABLE(type_of(decoder)));
}

/* ---- added tokens ---- */

/* Stores the text that the token matches at *end, inside added_text, and moves *end. */
static cn_status place_added_token(cn_tokenizer *t, const json_t *entry, uint32_t id, char **end)
{
    static const char what[] = "added token";
    cn_added_token token = {.text = *end, .id = id};
    bool normalized;
    CN_TRY(read_bool(entry, what, "single_word", &token.single_word));
    CN_TRY(read_bool(entry, what, "lstrip", &token.lstrip));
    CN_TRY(read_bool(entry, what, "rstrip", &token.rstrip));
    CN_TRY(read_bool(entry, what, "normalized", &normalized));
    const char *content = json_string_value(json_object_get(entry, "content")), *text = content;
    size_t n = json_string_length(json_object_get(entry, "content"));
    token.n = n;
    if (normalized && t->nfc) {
        CN_TRY(cn_nfc_apply(&t->nfc_scratch, content, n, &text, &token.n));
        /* The token decodes to the text that it matches. */
        if (text != content) CN_TRY(cn_vocab_set_bytes(&t->vocab, id, text, token.n));
    }
    memcpy(*end, text, token.n);
    *end += token.n;
    return cn_added_set_add(normalized ? &t->normalized : &t->raw, &token);
}

/* The tokenizers package ignores the ids of added tokens. If the model's vocabulary has the content
 * of an added token, the token takes that id. The others take the next ids after the model's
 * vocabulary. A file with other ids is rejected, because the tokenizers package would read it
 * differently. */
static cn_status read_added_token(cn_tokenizer *t, const json_t *entry, uint32_t *next_id,
                                  char **end)
{
    CN_TRY(check_keys(
        entry, "added token",
        KEYS("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")));
    const json_t *content = json_object_get(entry, "content");
    const json_t *id = json_object_get(entry, "id");
    int64_t given;
    if (!json_is_string(content))
        return cn_fail(CN_ERR_MODEL, "added token: \"content\": expected a string");
    size_t n = json_string_length(content);
    const char *text = json_string_value(content);
    if (n == 0) return CN_OK; /* the tokenizers package ignores it, too */
    bool special;
    CN_TRY(read_bool(entry, "added token", "special", &special));
    uint32_t expected;
    bool known = cn_vocab_find(&t->vocab, text, n, &expected);
    if (!known) expected = *next_id;
    if (!cn_json_as_i64(id, expected, expected, &given))
        return cn_fail(CN_ERR_MODEL, "added token '%s' has id %s, expected %u", PRINTABLE(text),
                       SHOWN(id), expected);
    if (!known) {
        CN_TRY(cn_vocab_add(&t->vocab, text, n, expected));
        ++*next_id;
    }
    t->vocab.entries[expected].added = true;
    t->vocab.entries[expected].special = special;
    return place_added_token(t, entry, expected, end);
}

static cn_status read_added_tokens(cn_tokenizer *t, const json_t *list)
{
    enum { NFC_GROWTH = 3 }; /* output bytes per input byte, by the standard's stability policy */
    if (!json_is_array(list) && !json_is_null(list))
        return cn_fail(CN_ERR_MODEL, "\"added_tokens\": expected an array");
    size_t bytes = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        bytes += json_string_length(json_object_get(json_array_get(list, i), "content"));
    t->added_text = cn_calloc(bytes, NFC_GROWTH);
    if (!t->added_text) return cn_fail(CN_ERR_MEMORY, "out of memory for the added tokens");
    char *end = t->added_text;
    uint32_t next_id = t->vocab.count;
    for (size_t i = 0; i < json_array_size(list); i++)
        CN_TRY(read_added_token(t, json_array_get(list, i), &next_id, &end));
    CN_TRY(cn_added_set_seal(&t->raw));
    return cn_added_set_seal(&t->normalized);
}

/* ---- post-processor ---- */

static cn_status add_template_token(cn_tokenizer *t, const json_t *processor, const json_t *piece,
                                    cn_tokens *out)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *known = json_object_get(processor, "special_tokens");
    const json_t *ids = json_object_get(json_object_get(known, name ? name : ""), "ids");
    if (!name || !json_is_array(ids))
        return cn_fail(CN_ERR_MODEL, "post_processor: no ids for special token \"%s\"",
                       PRINTABLE(name ? name : "?"));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int64_t id;
        if (!cn_json_as_i64(json_array_get(ids, i), 0, CN_VOCAB_MAX_ID, &id) ||
            !cn_vocab_at(&t->vocab, (uint32_t)id))
            return cn_fail(CN_ERR_MODEL, "post_processor: \"%s\" has an id without a token",
                           PRINTABLE(name));
        uint32_t token = (uint32_t)id;
        CN_TRY(cn_tokens_add(out, &token, 1));
    }
    return CN_OK;
}

static cn_status read_template(cn_tokenizer *t, const json_t *processor)
{
    static const char what[] = "post_processor TemplateProcessing";
    CN_TRY(check_keys(processor, what, KEYS("type", "single", "pair", "special_tokens")));
    if (t->prefix.len || t->suffix.len)
        return cn_fail(CN_ERR_MODEL, "%s: more than one is not supported", what);
    const json_t *single = json_object_get(processor, "single");
    size_t texts = 0;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *special = json_object_get(piece, "SpecialToken");
        const json_t *sequence = json_object_get(piece, "Sequence");
        const char *name = json_string_value(json_object_get(sequence, "id"));
        if (special) {
            CN_TRY(add_template_token(t, processor, special, texts ? &t->suffix : &t->prefix));
        } else if (name && strcmp(name, "A") == 0) {
            texts++;
        } else {
            return cn_fail(CN_ERR_MODEL, "%s: single[%zu] is unknown", what, i);
        }
    }
    if (texts != 1)
        return cn_fail(CN_ERR_MODEL, "%s: \"single\" has the text %zu times, expected once", what,
                       texts);
    return CN_OK;
}

static cn_status read_post_processor(cn_tokenizer *t, const json_t *processor, bool nested)
{
    const char *type = type_of(processor);
    /* ByteLevel changes only offsets, which cinch does not use. */
    if (json_is_null(processor) || strcmp(type, "ByteLevel") == 0) return CN_OK;
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(t, processor);
    const json_t *list = json_object_get(processor, "processors");
    if (nested || strcmp(type, "Sequence") != 0 || !json_is_array(list))
        return cn_fail(CN_ERR_MODEL,
                       "post_processor \"%s\" is not supported (only ByteLevel and "
                       "TemplateProcessing)",
                       PRINTABLE(type));
    CN_TRY(check_keys(processor, "post_processor", KEYS("type", "processors")));
    for (size_t i = 0; i < json_array_size(list); i++)
        CN_TRY(read_post_processor(t, json_array_get(list, i), true));
    return CN_OK;
}

/* ---- whole files ---- */

cn_status cn_tokenizer_from_json(cn_tokenizer *t, const json_t *root)
{
    CN_TRY(check_keys(root, "file",
                      KEYS("version", "truncation", "padding", "added_tokens", "normalizer",
                           "pre_tokenizer", "post_processor", "decoder", "model")));
    const json_t *version = tokenizer_member(root, "version");
    if (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0)
        return cn_fail(CN_ERR_MODEL, "version: expected \"1.0\", got %s", SHOWN(version));
    CN_TRY(read_tokenizer_model(t, json_object_get(root, "model")));
    CN_TRY(read_normalizer(t, tokenizer_member(root, "normalizer")));
    CN_TRY(read_pre_tokenizer(t, tokenizer_member(root, "pre_tokenizer")));
    CN_TRY(check_decoder(tokenizer_member(root, "decoder")));
    CN_TRY(read_added_tokens(t, tokenizer_member(root, "added_tokens")));
    return read_post_processor(t, tokenizer_member(root, "post_processor"), false);
}

/* Sets `list` to the token that the config has under token_key if `flag_key` is true, else empties
 * it. */
static cn_status apply_tokenizer_flag(cn_tokenizer *t, const json_t *config, const char *flag_key,
                                      const char *token_key, cn_tokens *list)
{
    list->len = 0;
    if (!json_is_true(json_object_get(config, flag_key))) return CN_OK;
    const json_t *token = json_object_get(config, token_key);
    if (json_is_object(token)) token = json_object_get(token, "content");
    if (!json_is_string(token)) return CN_OK; /* transformers ignores the flag, too */
    uint32_t id;
    if (!cn_vocab_find(&t->vocab, json_string_value(token), json_string_length(token), &id))
        return cn_fail(CN_ERR_MODEL, "%s %s is not in the vocabulary", token_key, SHOWN(token));
    return cn_tokens_add(list, &id, 1);
}

/* Warns of added tokens that only the config has: the text would be split into other tokens. */
static void warn_of_unknown_tokens(const cn_tokenizer *t, const json_t *config)
{
    const json_t *first = NULL;
    const char *key;
    json_t *token;
    size_t n = 0;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, token)
    {
        uint32_t id;
        const json_t *content = json_object_get(token, "content");
        if (!json_is_string(content) ||
            cn_vocab_find(&t->vocab, json_string_value(content), json_string_length(content), &id))
            continue;
        if (n++ == 0) first = content;
    }
    if (n > 0)
        cn_log(CN_LOG_WARN,
               "tokenizer_config.json: added tokens that tokenizer.json lacks: %zu, the first is "
               "%s: they are not recognised; save the tokenizer again with transformers",
               n, SHOWN(first));
}

cn_status cn_tokenizer_apply_config(cn_tokenizer *t, const json_t *config)
{
    warn_of_unknown_tokens(t, config);
    if (!json_object_get(config, "add_bos_token") && !json_object_get(config, "add_eos_token"))
        return CN_OK;
    CN_TRY(apply_tokenizer_flag(t, config, "add_bos_token", "bos_token", &t->prefix));
    return apply_tokenizer_flag(t, config, "add_eos_token", "eos_token", &t->suffix);
}
