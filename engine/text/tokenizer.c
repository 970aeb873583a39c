/* tokenizer.c - text to token ids. See tokenizer.h. */
#include "engine/text/tokenizer.h"

#include <errno.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/text/tokenizer_json.h"

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

static cn_status load_tokenizer_json(cn_tokenizer **out, const char *path)
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
static cn_status load_tokenizer_config(cn_tokenizer *t, const char *path)
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
    if (status == CN_OK) status = load_tokenizer_json(out, path.data);
    cn_buf_clear(&path);
    if (status == CN_OK) status = cn_buf_addf(&path, "%s/tokenizer_config.json", model_dir);
    if (status == CN_OK) status = load_tokenizer_config(*out, path.data);
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

/* One text. */
typedef struct encode_job {
    cn_tokenizer *t;
    const cn_encode_opts *o;
    cn_tokens *out;
    size_t first;    /* out->len at the start */
    size_t since;    /* bytes since the last pause */
    uint64_t n_left; /* tokens that were not kept */
} encode_job;

enum { PAUSE_BYTES = 32 << 10, SPARE_TOKENS = 64 << 10 };

/* Drops all but the last o->keep tokens, now and then. */
static void forget_first(encode_job *j, size_t spare)
{
    const size_t keep = j->o->keep, len = j->out->len - j->first;
    if (keep == 0 || len <= keep || len - keep < spare) return;
    uint32_t *ids = j->out->ids + j->first;
    memmove(ids, ids + len - keep, keep * sizeof *ids);
    j->out->len = j->first + keep;
    j->n_left += len - keep;
}

static cn_status note_work(encode_job *j, size_t n)
{
    j->since += n;
    if (j->since < PAUSE_BYTES) return CN_OK;
    j->since = 0;
    forget_first(j, SPARE_TOKENS + j->o->keep);
    return j->o->pause ? j->o->pause(j->o->context) : CN_OK;
}

static cn_status encode_word(void *job, const char *word, size_t n)
{
    encode_job *j = job;
    if (n <= CN_BPE_LONG_BYTES) {
        CN_TRY(cn_bpe_encode(j->t->bpe, word, n, j->out));
        return note_work(j, n);
    }
    for (size_t at = 0, used; at < n; at += used) {
        CN_TRY(cn_bpe_encode_part(j->t->bpe, word + at, n - at, j->out, &used));
        CN_TRY(note_work(j, used));
    }
    return CN_OK;
}

/* Encodes text that contains no added token. */
static cn_status encode_words(encode_job *j, const char *text, size_t n)
{
    if (j->o->enter) CN_TRY(j->o->enter(j->o->context));
    const cn_status status = cn_word_steps_run(j->t->words, text, n, encode_word, j);
    if (j->o->leave) j->o->leave(j->o->context);
    return status;
}

/* Encodes the added tokens of a set, and what is between them by `between`. */
static cn_status encode_around(encode_job *j, const cn_added_set *set, const char *text, size_t n,
                               cn_status (*between)(encode_job *j, const char *text, size_t n))
{
    cn_added_scan scan = {.set = set, .text = text, .n = n};
    const cn_added_token *token;
    for (size_t start, end; cn_added_scan_next(&scan, &start, &end, &token);) {
        if (token)
            CN_TRY(cn_tokens_add(j->out, &token->id, 1));
        else
            CN_TRY(between(j, text + start, end - start));
    }
    return CN_OK;
}

/* Encodes the text between two added tokens that match raw text. */
static cn_status encode_piece(encode_job *j, const char *text, size_t n)
{
    cn_nfc nfc = {0};
    cn_status status = j->t->nfc ? cn_nfc_apply(&nfc, text, n, &text, &n) : CN_OK;
    cn_nfc_free_scratch(&nfc);
    if (status == CN_OK) status = encode_around(j, &j->t->normalized, text, n, encode_words);
    cn_nfc_free(&nfc);
    return status;
}

static cn_status encode_valid(encode_job *j, const char *text, size_t n)
{
    return encode_around(j, &j->t->raw, text, n, encode_piece);
}

static cn_status encode_tokenizer_text(encode_job *j, const char *text, size_t n)
{
    if (cn_utf8_valid_prefix(text, n) == n) return encode_valid(j, text, n);
    cn_buf lossy = {0};
    cn_status status = cn_utf8_add_lossy(&lossy, text, n);
    if (status == CN_OK) status = encode_valid(j, lossy.data, lossy.len);
    cn_buf_free(&lossy);
    return status;
}

cn_status cn_tokenizer_encode_by(cn_tokenizer *t, const char *text, size_t n_bytes,
                                 const cn_encode_opts *o, cn_tokens *out, uint64_t *n_tokens)
{
    if (!t)
        return cn_fail(CN_ERR_ARG, "there is no tokenizer.json: send token ids instead of text, or "
                                   "set --tokenizer to a directory that has one");
    const size_t max_bytes = (size_t)1 << 28; /* UTF-8 repair and NFC triple it at most */
    if (n_bytes > max_bytes)
        return cn_fail(CN_ERR_ARG, "text of %zu bytes exceeds the tokenizer's limit of %zu bytes",
                       n_bytes, max_bytes);
    encode_job j = {.t = t, .o = o, .out = out, .first = out->len};
    cn_status status = CN_OK;
    if (o->add_special) status = cn_tokens_add(out, t->prefix.ids, t->prefix.len);
    if (status == CN_OK) status = encode_tokenizer_text(&j, text, n_bytes);
    if (status == CN_OK && o->add_special)
        status = cn_tokens_add(out, t->suffix.ids, t->suffix.len);
    forget_first(&j, 0);
    *n_tokens = j.n_left + out->len - j.first;
    if (status != CN_OK) out->len = j.first;
    return status;
}

cn_status cn_tokenizer_encode(cn_tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                              cn_tokens *out)
{
    uint64_t n;
    return cn_tokenizer_encode_by(t, text, n_bytes, &(cn_encode_opts){.add_special = add_special},
                                  out, &n);
}
