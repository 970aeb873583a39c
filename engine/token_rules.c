/* token_rules.c - see token_rules.h. */
#include "engine/token_rules.h"

#include <stdatomic.h>

#include "engine/sampler.h"

struct cn_bad_words {
    atomic_uint refs;
    cn_tokens words; /* the tokens of all words, one word after the other */
    uint32_t *ends;  /* [n_words] where each word ends in `words` */
    uint32_t n_words;
};

void cn_mask_fill(uint32_t *mask, uint32_t vocab)
{
    memset(mask, 0xff, cn_mask_words(vocab) * sizeof *mask);
    if (vocab % 32) mask[vocab / 32] = (1u << vocab % 32) - 1;
}

bool cn_mask_is_empty(const uint32_t *mask, uint32_t vocab)
{
    for (uint32_t i = 0; i < cn_mask_words(vocab); i++)
        if (mask[i]) return false;
    return true;
}

typedef struct word_maker {
    cn_tokenizer *tokenizer;
    uint32_t vocab;
    cn_encode_opts o;
} word_maker;

static uint32_t word_start(const cn_bad_words *w, uint32_t i) { return i ? w->ends[i - 1] : 0; }

/* Adds the tokens of a text as a word. */
static cn_status add_word(cn_bad_words *w, const word_maker *m, const char *text)
{
    const size_t start = w->words.len;
    uint64_t n;
    CN_TRY(cn_tokenizer_encode_by(m->tokenizer, text, strlen(text), &m->o, &w->words, &n));
    if (w->words.len == start)
        return cn_fail(CN_ERR_ARG, "bad_words: expected words that have tokens");
    for (size_t i = start; i < w->words.len; i++)
        if (w->words.ids[i] >= m->vocab)
            return cn_fail(CN_ERR_ARG,
                           "bad_words: token %u of a word is not below the vocabulary size %u",
                           w->words.ids[i], m->vocab);
    w->ends[w->n_words++] = (uint32_t)w->words.len;
    return CN_OK;
}

/* Removes the last word, which is a text after a space, if it ends with the tokens of the word
 * before it, which then bans the same. */
static void drop_if_covered(cn_bad_words *w)
{
    const uint32_t last = w->n_words - 1;
    const uint32_t at = word_start(w, last), n = w->ends[last] - at;
    const uint32_t bare = word_start(w, last - 1), n_bare = at - bare;
    const uint32_t *ids = w->words.ids;
    if (n < n_bare || memcmp(ids + at + n - n_bare, ids + bare, n_bare * sizeof *ids) != 0) return;
    w->words.len = at;
    w->n_words--;
}

static cn_status add_bad_word(cn_bad_words *w, const word_maker *m, const char *word)
{
    cn_buf spaced = {0};
    word += strspn(word, CN_WHITE_SPACE);
    CN_TRY(add_word(w, m, word));
    cn_status status = cn_buf_addf(&spaced, " %s", word);
    if (status == CN_OK) status = add_word(w, m, spaced.data);
    if (status == CN_OK) drop_if_covered(w);
    cn_buf_free(&spaced);
    return status;
}

cn_status cn_bad_words_make(cn_bad_words **out, const cn_sampling *s, cn_tokenizer *tokenizer,
                            uint32_t vocab, const cn_encode_opts *turns)
{
    *out = NULL;
    if (s->n_bad_words == 0) return CN_OK;
    if (!tokenizer) return cn_fail_param("bad_words", "bad_words: the model has no tokenizer");
    const word_maker m = {tokenizer, vocab, turns ? *turns : (cn_encode_opts){0}};
    cn_bad_words *w = cn_calloc(1, sizeof *w);
    if (w) w->ends = cn_calloc(2 * s->n_bad_words, sizeof *w->ends);
    if (!w || !w->ends) {
        cn_free(w);
        return cn_fail(CN_ERR_MEMORY, "out of memory for bad_words");
    }
    w->refs = 1;
    cn_status status = CN_OK;
    for (size_t i = 0; status == CN_OK && i < s->n_bad_words; i++)
        status = add_bad_word(w, &m, s->bad_words[i]);
    if (status == CN_OK)
        *out = w;
    else
        cn_bad_words_free(w);
    return cn_for_param(status, "bad_words");
}

uint32_t cn_bad_words_count(const cn_bad_words *w) { return w ? w->n_words : 0; }

cn_bad_words *cn_bad_words_share(cn_bad_words *w)
{
    if (w) atomic_fetch_add(&w->refs, 1);
    return w;
}

void cn_bad_words_free(cn_bad_words *w)
{
    if (!w || atomic_fetch_sub(&w->refs, 1) != 1) return;
    cn_tokens_free(&w->words);
    cn_free(w->ends);
    cn_free(w);
}

cn_status cn_token_rules_make(cn_token_rules *out, const cn_sampling *s, cn_bad_words *bad,
                              uint32_t vocab)
{
    *out = (cn_token_rules){0};
    if (s->n_allowed_token_ids > 0) {
        out->allowed = cn_calloc(cn_mask_words(vocab), sizeof *out->allowed);
        if (!out->allowed) return cn_fail(CN_ERR_MEMORY, "out of memory for allowed_token_ids");
    }
    for (size_t i = 0; i < s->n_allowed_token_ids; i++)
        out->allowed[s->allowed_token_ids[i] / 32] |= 1u << s->allowed_token_ids[i] % 32;
    out->bad = cn_bad_words_share(bad);
    return CN_OK;
}

void cn_token_rules_free(cn_token_rules *r)
{
    cn_free(r->allowed);
    cn_bad_words_free(r->bad);
    *r = (cn_token_rules){0};
}

bool cn_token_rules_apply_ever(const cn_token_rules *r) { return r->allowed || r->bad; }

void cn_token_rules_apply(const cn_token_rules *r, const uint32_t *output, uint32_t n,
                          uint32_t vocab, uint32_t *mask)
{
    for (uint32_t i = 0; r->allowed && i < cn_mask_words(vocab); i++) mask[i] &= r->allowed[i];
    const cn_bad_words *w = r->bad;
    for (uint32_t i = 0; w && i < w->n_words; i++) {
        const uint32_t *word = w->words.ids + word_start(w, i);
        const uint32_t before = w->ends[i] - word_start(w, i) - 1;
        if (before > n) continue;
        if (before == 0 || memcmp(output + n - before, word, before * sizeof *word) == 0)
            cn_mask_ban(mask, word[before]);
    }
}
