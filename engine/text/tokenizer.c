/* tokenizer.c - text to token ids. See tokenizer.h. */
#include "engine/text/tokenizer.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "engine/json.h"
#include "engine/text/tokenizer_json.h"
#include "engine/utf8.h"

enum { MAX_FILE_BYTES = 1 << 28, MAX_FILE_DEPTH = 32 };

static cn_status new_tokenizer(cn_tokenizer **out, const json_t *root)
{
    *out = NULL;
    cn_tokenizer *t = cn_calloc(1, sizeof *t);
    if (!t) return cn_fail(CN_ERR_MEMORY, "out of memory for the tokenizer");
    cn_status status = cn_tokenizer_from_json(t, root);
    if (status == CN_OK)
        *out = t;
    else
        cn_tokenizer_free(t);
    return status;
}

cn_status cn_tokenizer_parse(cn_tokenizer **out, const char *text, size_t n, const char *what)
{
    json_t *root;
    *out = NULL;
    CN_TRY(cn_json_parse(&root, text, n, what, MAX_FILE_BYTES, MAX_FILE_DEPTH, CN_ERR_MODEL));
    cn_status status = new_tokenizer(out, root);
    json_decref(root);
    return status == CN_OK ? status : cn_fail_within(status, "%s", what);
}

static cn_status load_tokenizer(cn_tokenizer **out, const char *path)
{
    cn_buf text = {0};
    if (access(path, F_OK) != 0)
        return cn_fail(CN_ERR_MODEL,
                       "%s: %s; create it with transformers: "
                       "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
                       path, strerror(errno));
    cn_status status = cn_json_read_file(&text, path, MAX_FILE_BYTES);
    if (status == CN_OK) status = cn_tokenizer_parse(out, text.data, text.len, path);
    cn_buf_free(&text);
    return status;
}

/* A missing file is not an error: the post-processor then decides. */
static cn_status load_config(cn_tokenizer *t, const char *path)
{
    json_t *root;
    if (access(path, F_OK) != 0) return CN_OK;
    CN_TRY(cn_json_load_file(&root, path, MAX_FILE_BYTES, MAX_FILE_DEPTH));
    cn_status status = cn_tokenizer_apply_config(t, root);
    json_decref(root);
    return status == CN_OK ? status : cn_fail_within(status, "%s", path);
}

cn_status cn_tokenizer_load(cn_tokenizer **out, const char *model_dir)
{
    *out = NULL;
    cn_buf path = {0};
    cn_status status = cn_buf_addf(&path, "%s/tokenizer.json", model_dir);
    if (status == CN_OK) status = load_tokenizer(out, path.data);
    cn_buf_clear(&path);
    if (status == CN_OK) status = cn_buf_addf(&path, "%s/tokenizer_config.json", model_dir);
    if (status == CN_OK) status = load_config(*out, path.data);
    cn_buf_free(&path);
    if (status == CN_OK) return CN_OK;
    cn_tokenizer_free(*out);
    *out = NULL;
    return status;
}

void cn_tokenizer_free(cn_tokenizer *t)
{
    if (!t) return;
    cn_vocab_free(&t->vocab);
    cn_bpe_free(t->bpe);
    cn_word_steps_free(t->words);
    cn_added_set_free(&t->raw);
    cn_added_set_free(&t->normalized);
    cn_free(t->added_text);
    cn_tokens_free(&t->prefix);
    cn_tokens_free(&t->suffix);
    cn_nfc_free(&t->nfc_scratch);
    cn_buf_free(&t->lossy);
    cn_free(t);
}

uint32_t cn_tokenizer_vocab_size(const cn_tokenizer *t) { return t->vocab.len; }

bool cn_tokenizer_token(const cn_tokenizer *t, uint32_t id, const char **bytes, size_t *n_bytes,
                        bool *special)
{
    const cn_vocab_entry *e = t ? cn_vocab_at(&t->vocab, id) : NULL;
    if (!e) return false;
    *bytes = cn_vocab_bytes(&t->vocab, e);
    *n_bytes = e->n_bytes;
    *special = e->special;
    return true;
}

bool cn_tokenizer_is_added(const cn_tokenizer *t, uint32_t id)
{
    const cn_vocab_entry *e = t ? cn_vocab_at(&t->vocab, id) : NULL;
    return e && e->added;
}

bool cn_tokenizer_id(const cn_tokenizer *t, const char *content, uint32_t *id)
{
    return t && cn_vocab_find(&t->vocab, content, strlen(content), id);
}

typedef struct encode_job {
    cn_bpe *bpe;
    cn_tokens *out;
} encode_job;

static cn_status encode_word(void *job, const char *word, size_t n)
{
    return cn_bpe_encode(((encode_job *)job)->bpe, word, n, ((encode_job *)job)->out);
}

/* Encodes text that contains no added token. */
static cn_status encode_words(cn_tokenizer *t, const char *text, size_t n, cn_tokens *out)
{
    encode_job job = {t->bpe, out};
    return cn_word_steps_run(t->words, text, n, encode_word, &job);
}

/* Encodes the text between two added tokens that match raw text. */
static cn_status encode_piece(cn_tokenizer *t, const char *text, size_t n, cn_tokens *out)
{
    if (t->nfc) CN_TRY(cn_nfc_apply(&t->nfc_scratch, text, n, &text, &n));
    cn_added_scan scan = {.set = &t->normalized, .text = text, .n = n};
    const cn_added_token *token;
    for (size_t start, end; cn_added_scan_next(&scan, &start, &end, &token);) {
        if (token)
            CN_TRY(cn_tokens_add(out, &token->id, 1));
        else
            CN_TRY(encode_words(t, text + start, end - start, out));
    }
    return CN_OK;
}

static cn_status encode_text(cn_tokenizer *t, const char *text, size_t n, cn_tokens *out)
{
    if (cn_utf8_valid_prefix(text, n) < n) {
        cn_buf_clear(&t->lossy);
        CN_TRY(cn_utf8_add_lossy(&t->lossy, text, n));
        text = t->lossy.data;
        n = t->lossy.len;
    }
    cn_added_scan scan = {.set = &t->raw, .text = text, .n = n};
    const cn_added_token *token;
    for (size_t start, end; cn_added_scan_next(&scan, &start, &end, &token);) {
        if (token)
            CN_TRY(cn_tokens_add(out, &token->id, 1));
        else
            CN_TRY(encode_piece(t, text + start, end - start, out));
    }
    return CN_OK;
}

cn_status cn_tokenizer_encode(cn_tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                              cn_tokens *out)
{
    if (!t)
        return cn_fail(CN_ERR_ARG, "there is no tokenizer.json: send token ids instead of text, or "
                                   "set --tokenizer to a directory that has one");
    const size_t max_bytes = (size_t)1 << 28; /* UTF-8 repair and NFC triple it at most */
    if (n_bytes > max_bytes)
        return cn_fail(CN_ERR_ARG, "text of %zu bytes exceeds the tokenizer's limit of %zu bytes",
                       n_bytes, max_bytes);
    size_t before = out->len;
    cn_status status = CN_OK;
    if (add_special) status = cn_tokens_add(out, t->prefix.ids, t->prefix.len);
    if (status == CN_OK) status = encode_text(t, text, n_bytes, out);
    if (status == CN_OK && add_special) status = cn_tokens_add(out, t->suffix.ids, t->suffix.len);
    if (status != CN_OK) out->len = before;
    return status;
}
