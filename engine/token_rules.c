/* token_rules.c - see token_rules.h. */
#include "engine/token_rules.h"

#include <string.h>

#include "engine/sampler.h"

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

static uint32_t word_start(const cn_token_rules *r, uint32_t i) { return i ? r->ends[i - 1] : 0; }

/* Adds the tokens of a text as a word. */
static cn_status add_word(cn_token_rules *r, cn_tokenizer *tokenizer, uint32_t vocab,
                          const char *text)
{
    const size_t start = r->words.len;
    CN_TRY(cn_tokenizer_encode(tokenizer, text, strlen(text), false, &r->words));
    if (r->words.len == start)
        return cn_fail(CN_ERR_ARG, "bad_words: expected words that have tokens");
    for (size_t i = start; i < r->words.len; i++)
        if (r->words.ids[i] >= vocab)
            return cn_fail(CN_ERR_ARG,
                           "bad_words: token %u of a word is not below the vocabulary size %u",
                           r->words.ids[i], vocab);
    r->ends[r->n_words++] = (uint32_t)r->words.len;
    return CN_OK;
}

/* Removes the last word, which is a text behind a space, if it ends with the tokens of the word
 * before it, which then bans the same. */
static void drop_if_covered(cn_token_rules *r)
{
    const uint32_t last = r->n_words - 1;
    const uint32_t at = word_start(r, last), n = r->ends[last] - at;
    const uint32_t bare = word_start(r, last - 1), n_bare = at - bare;
    const uint32_t *ids = r->words.ids;
    if (n < n_bare || memcmp(ids + at + n - n_bare, ids + bare, n_bare * sizeof *ids) != 0) return;
    r->words.len = at;
    r->n_words--;
}

static cn_status add_bad_word(cn_token_rules *r, cn_tokenizer *tokenizer, uint32_t vocab,
                              const char *word)
{
    cn_buf spaced = {0};
    word += strspn(word, CN_WHITE_SPACE);
    CN_TRY(add_word(r, tokenizer, vocab, word));
    cn_status status = cn_buf_addf(&spaced, " %s", word);
    if (status == CN_OK) status = add_word(r, tokenizer, vocab, spaced.data);
    if (status == CN_OK) drop_if_covered(r);
    cn_buf_free(&spaced);
    return status;
}

static cn_status make(cn_token_rules *r, const cn_sampling *s, cn_tokenizer *tokenizer,
                      uint32_t vocab)
{
    if (s->n_allowed_token_ids > 0) {
        r->allowed = cn_calloc(cn_mask_words(vocab), sizeof *r->allowed);
        if (!r->allowed) return cn_fail(CN_ERR_MEMORY, "out of memory for allowed_token_ids");
    }
    for (size_t i = 0; i < s->n_allowed_token_ids; i++)
        r->allowed[s->allowed_token_ids[i] / 32] |= 1u << s->allowed_token_ids[i] % 32;
    if (s->n_bad_words == 0) return CN_OK;
    if (!tokenizer) return cn_fail(CN_ERR_ARG, "bad_words: the model has no tokenizer");
    r->ends = cn_calloc(2 * s->n_bad_words, sizeof *r->ends);
    if (!r->ends) return cn_fail(CN_ERR_MEMORY, "out of memory for bad_words");
    for (size_t i = 0; i < s->n_bad_words; i++)
        CN_TRY(add_bad_word(r, tokenizer, vocab, s->bad_words[i]));
    return CN_OK;
}

cn_status cn_token_rules_make(cn_token_rules *out, const cn_sampling *s, cn_tokenizer *tokenizer,
                              uint32_t vocab)
{
    *out = (cn_token_rules){0};
    const cn_status status = make(out, s, tokenizer, vocab);
    if (status != CN_OK) cn_token_rules_free(out);
    return status;
}

void cn_token_rules_free(cn_token_rules *r)
{
    cn_free(r->allowed);
    cn_tokens_free(&r->words);
    cn_free(r->ends);
    *r = (cn_token_rules){0};
}

bool cn_token_rules_apply_ever(const cn_token_rules *r) { return r->allowed || r->n_words > 0; }

void cn_token_rules_apply(const cn_token_rules *r, const uint32_t *output, uint32_t n,
                          uint32_t vocab, uint32_t *mask)
{
    for (uint32_t i = 0; r->allowed && i < cn_mask_words(vocab); i++) mask[i] &= r->allowed[i];
    for (uint32_t i = 0; i < r->n_words; i++) {
        const uint32_t *word = r->words.ids + word_start(r, i);
        const uint32_t before = r->ends[i] - word_start(r, i) - 1;
        if (before > n) continue;
        if (before == 0 || memcmp(output + n - before, word, before * sizeof *word) == 0)
            cn_mask_ban(mask, word[before]);
    }
}
