/* sampler.c - checks and derivation of sampling parameters. See sampler.h. */
#include "engine/sampler.h"

#include <math.h>
#include <utf8proc.h>

/* As in vLLM: a lower temperature only loses precision. */
static const float LEAST_TEMPERATURE = 0.01f;

/* ---- checks ---- */

static cn_status check_float(const char *name, float value, float least, float most)
{
    if (isfinite(value) && value >= least && value <= most) return CN_OK;
    if (most == INFINITY)
        return cn_fail_param(name, "%s is %g: expected a finite number, at least %g", name,
                             (double)value, (double)least);
    return cn_fail_param(name, "%s is %g: expected %g to %g", name, (double)value, (double)least,
                         (double)most);
}

static cn_status check_int(const char *name, int64_t value, int64_t least, int64_t most)
{
    if (value >= least && value <= most) return CN_OK;
    return cn_fail_param(name, "%s is %lld: expected %lld to %lld", name, (long long)value,
                         (long long)least, (long long)most);
}

static cn_status check_count(const char *name, size_t n, size_t most)
{
    if (n <= most) return CN_OK;
    return cn_fail_param(name, "%s has %zu entries: expected at most %zu", name, n, most);
}

static cn_status check_distribution(const cn_sampling *p, uint32_t vocab)
{
    CN_TRY(check_float("temperature", p->temperature, 0.0f, INFINITY));
    if (!(p->top_p > 0.0f && p->top_p <= 1.0f))
        return cn_fail_param("top_p", "top_p is %g: expected above 0, at most 1", (double)p->top_p);
    CN_TRY(check_int("top_k", p->top_k, -1, INT32_MAX));
    CN_TRY(check_float("min_p", p->min_p, 0.0f, 1.0f));
    CN_TRY(check_float("presence_penalty", p->presence_penalty, -2.0f, 2.0f));
    CN_TRY(check_float("frequency_penalty", p->frequency_penalty, -2.0f, 2.0f));
    if (!isfinite(p->repetition_penalty) || p->repetition_penalty <= 0.0f)
        return cn_fail_param("repetition_penalty",
                             "repetition_penalty is %g: expected a finite number above 0",
                             (double)p->repetition_penalty);
    return check_int("logprobs", p->logprobs, -1, cn_min_u32(CN_MAX_LOGPROBS, vocab));
}

static cn_status check_sampling_lengths(const cn_sampling *p, uint32_t max_model_len)
{
    CN_TRY(check_int("n", p->n, 1, CN_MAX_SAMPLES));
    if (p->min_tokens > max_model_len)
        return cn_fail_param("min_tokens", CN_CONTEXT_ERROR " %u tokens, but min_tokens is %u",
                             max_model_len, p->min_tokens);
    if (p->max_tokens > max_model_len)
        return cn_fail_param("max_tokens", CN_CONTEXT_ERROR " %u tokens, but max_tokens is %u",
                             max_model_len, p->max_tokens);
    if (p->max_tokens > 0 && p->min_tokens > p->max_tokens)
        return cn_fail_param("min_tokens", "min_tokens is %u: expected at most max_tokens, %u",
                             p->min_tokens, p->max_tokens);
    return check_int("thinking_token_budget", p->thinking_token_budget, -1, INT32_MAX);
}

static cn_status check_repetition(const cn_sampling *p)
{
    uint32_t most = p->repetition_max_pattern_size;
    CN_TRY(check_int("repetition_detection.max_pattern_size", most, 0, CN_MAX_REPETITION_PATTERN));
    CN_TRY(check_int("repetition_detection.min_pattern_size", p->repetition_min_pattern_size, 0,
                     most));
    if (most == 0) return CN_OK;
    return check_int("repetition_detection.min_count", p->repetition_min_count, 2, INT32_MAX);
}

static bool is_utf8(const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        utf8proc_int32_t code;
        utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                (utf8proc_ssize_t)(n - at), &code);
        if (len <= 0) return false;
        at += (size_t)len;
    }
    return true;
}

static cn_status check_strings(const char *name, const char *const *list, size_t n, size_t most,
                               size_t most_bytes)
{
    CN_TRY(check_count(name, n, most));
    for (size_t i = 0; i < n; i++) {
        if (!list[i]) return cn_fail_param(name, "%s[%zu] is NULL: expected a string", name, i);
        const size_t len = strlen(list[i]);
        if (len == 0 || len > most_bytes)
            return cn_fail_param(name, "%s[%zu] has %zu bytes: expected 1 to %zu", name, i, len,
                                 most_bytes);
        if (!is_utf8(list[i], len))
            return cn_fail_param(name, "%s[%zu] is not valid UTF-8", name, i);
    }
    return CN_OK;
}

static cn_status check_sampling_ids(const char *name, const uint32_t *ids, size_t n, size_t most,
                                    uint32_t vocab)
{
    CN_TRY(check_count(name, n, most));
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < vocab) continue;
        return cn_fail_param(name, "%s[%zu] is %u: expected an id below the vocabulary size %u",
                             name, i, ids[i], vocab);
    }
    return CN_OK;
}

static cn_status check_token_lists(const cn_sampling *p, uint32_t vocab)
{
    CN_TRY(check_strings("stop", p->stop, p->n_stop, CN_MAX_STOP_STRINGS, CN_MAX_STOP_BYTES));
    CN_TRY(check_sampling_ids("stop_token_ids", p->stop_token_ids, p->n_stop_token_ids,
                              CN_MAX_STOP_TOKEN_IDS, vocab));
    CN_TRY(check_sampling_ids("allowed_token_ids", p->allowed_token_ids, p->n_allowed_token_ids,
                              vocab, vocab));
    CN_TRY(check_strings("bad_words", p->bad_words, p->n_bad_words, CN_MAX_BAD_WORDS,
                         CN_MAX_BAD_WORD_BYTES));
    for (size_t i = 0; i < p->n_bad_words; i++)
        if (p->bad_words[i][strspn(p->bad_words[i], CN_WHITE_SPACE)] == '\0')
            return cn_fail_param("bad_words",
                                 "bad_words[%zu] is white space: expected other characters too", i);
    return CN_OK;
}

static cn_status check_biases(const cn_sampling *p, uint32_t vocab)
{
    CN_TRY(check_count("logit_bias", p->n_logit_bias, CN_MAX_LOGIT_BIASES));
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        const cn_logit_bias *b = &p->logit_bias[i];
        if (b->token >= vocab)
            return cn_fail_param("logit_bias",
                                 "logit_bias names token %u: expected an id below the vocabulary "
                                 "size %u",
                                 b->token, vocab);
        if (!(b->bias >= -100.0f && b->bias <= 100.0f))
            return cn_fail_param("logit_bias", "logit_bias of token %u is %g: expected -100 to 100",
                                 b->token, (double)b->bias);
        for (size_t j = 0; j < i; j++) {
            if (p->logit_bias[j].token == b->token)
                return cn_fail_param("logit_bias", "logit_bias names token %u twice", b->token);
        }
    }
    return CN_OK;
}

cn_status cn_sampling_check(const cn_sampling *p, uint32_t vocab, uint32_t max_model_len)
{
    CN_TRY(check_distribution(p, vocab));
    CN_TRY(check_sampling_lengths(p, max_model_len));
    CN_TRY(check_repetition(p));
    CN_TRY(check_token_lists(p, vocab));
    return check_biases(p, vocab);
}

/* ---- derivation ---- */

uint64_t cn_sampling_seed(const cn_sampling *p, uint64_t engine_seed, const char *custom_id,
                          uint64_t request_number)
{
    if (p->has_seed) return p->seed;
    /* The kind of identifier is hashed too, so that request number 7 and the custom_id with the
     * bytes of that number have different seeds. */
    const char *kind = custom_id ? "custom_id" : "number";
    uint64_t h = cn_hash64(0, &engine_seed, sizeof engine_seed);
    h = cn_hash64(h, kind, strlen(kind));
    if (custom_id) return cn_hash64(h, custom_id, strlen(custom_id));
    return cn_hash64(h, &request_number, sizeof request_number);
}

bool cn_sampling_needs_counts(const cn_sampling *p)
{
    return p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f ||
           p->repetition_penalty != 1.0f;
}

void cn_sampling_row(const cn_sampling *p, cn_sample_row *row)
{
    bool greedy = p->temperature == 0.0f;
    row->temperature = greedy ? 0.0f : fmaxf(p->temperature, LEAST_TEMPERATURE);
    row->top_p = p->top_p;
    row->min_p = p->min_p;
    row->top_k = p->top_k;
    row->presence_penalty = p->presence_penalty;
    row->frequency_penalty = p->frequency_penalty;
    row->repetition_penalty = p->repetition_penalty;
    row->force_token = -1;
    row->prev_row = -1;
    row->n_logprobs = p->logprobs;
}
