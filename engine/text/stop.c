/* stop.c - end of a sample. See stop.h.
 *
 * Stop strings: each has a Knuth-Morris-Pratt automaton that is fed byte by byte. Its state is how
 * many bytes of the string's beginning are at the end of the text. These bytes must be held back.
 *
 * Repetition: run[p] counts how many of the last tokens each equal the token p positions before.
 * The last p * count tokens are one pattern of p tokens repeated `count` times if and only if
 * run[p] >= p * (count - 1). Each token takes one pass over the pattern sizes; the length of the
 * output does not matter. */
#include "engine/text/stop.h"

#include <string.h>

typedef struct stop_string {
    char *text;
    uint32_t *fail; /* [length] longest proper border of text[0..i] */
    uint32_t length;
    uint32_t matched;
} stop_string;

struct cn_stop {
    uint32_t *eos, *stop_tokens;
    uint32_t n_eos, n_stop_tokens;
    uint32_t min_tokens, max_output, n_output;
    int64_t stop_token;

    stop_string *strings;
    uint32_t n_strings;

    uint32_t min_pattern, max_pattern, min_count;
    uint32_t *recent; /* [max_pattern] ring of the last tokens */
    uint32_t *run;    /* [max_pattern + 1] */
};

/* ---- creation ---- */

static cn_status copy_ids(uint32_t **out, uint32_t *n_out, const uint32_t *ids, size_t n)
{
    *out = cn_calloc(n, sizeof **out);
    if (!*out) return cn_fail(CN_ERR_MEMORY, "out of memory for %zu stop tokens", n);
    if (n) memcpy(*out, ids, n * sizeof *ids);
    *n_out = (uint32_t)n;
    return CN_OK;
}

static cn_status string_init(stop_string *s, const char *text)
{
    s->text = cn_strdup(text);
    s->length = (uint32_t)strlen(text);
    s->fail = cn_calloc(s->length, sizeof *s->fail);
    if (!s->text || !s->fail) return cn_fail(CN_ERR_MEMORY, "out of memory for a stop string");
    CN_ASSERT(s->length > 0);
    for (uint32_t i = 1, border = 0; i < s->length; i++) {
        while (border > 0 && text[i] != text[border]) border = s->fail[border - 1];
        if (text[i] == text[border]) border++;
        s->fail[i] = border;
    }
    return CN_OK;
}

static cn_status stop_init(cn_stop *s, const cn_stop_opts *o)
{
    const cn_sampling *p = o->sampling;
    CN_TRY(copy_ids(&s->eos, &s->n_eos, o->eos, p->ignore_eos ? 0 : o->n_eos));
    CN_TRY(copy_ids(&s->stop_tokens, &s->n_stop_tokens, p->stop_token_ids, p->n_stop_token_ids));
    s->strings = cn_calloc(p->n_stop, sizeof *s->strings);
    if (!s->strings) return cn_fail(CN_ERR_MEMORY, "out of memory for %zu stops", p->n_stop);
    for (size_t i = 0; i < p->n_stop; i++) {
        s->n_strings++;
        CN_TRY(string_init(&s->strings[i], p->stop[i]));
    }
    s->max_pattern = p->repetition_max_pattern_size;
    s->min_pattern = cn_max_u32(p->repetition_min_pattern_size, 1);
    s->min_count = p->repetition_min_count;
    s->recent = cn_calloc(s->max_pattern, sizeof *s->recent);
    s->run = cn_calloc(s->max_pattern + 1, sizeof *s->run);
    if (!s->recent || !s->run)
        return cn_fail(CN_ERR_MEMORY, "out of memory for patterns of %u tokens", s->max_pattern);
    return CN_OK;
}

cn_status cn_stop_create(cn_stop **out, const cn_stop_opts *o)
{
    CN_ASSERT(o->max_output > 0);
    cn_stop *s = cn_calloc(1, sizeof *s);
    if (!s) return cn_fail(CN_ERR_MEMORY, "out of memory for a sample");
    s->min_tokens = o->sampling->min_tokens;
    s->max_output = o->max_output;
    s->stop_token = -1;
    cn_status status = stop_init(s, o);
    if (status != CN_OK) {
        cn_stop_free(s);
        return status;
    }
    *out = s;
    return CN_OK;
}

void cn_stop_free(cn_stop *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->n_strings; i++) {
        cn_free(s->strings[i].text);
        cn_free(s->strings[i].fail);
    }
    cn_free(s->strings);
    cn_free(s->eos);
    cn_free(s->stop_tokens);
    cn_free(s->recent);
    cn_free(s->run);
    cn_free(s);
}

/* ---- tokens ---- */

static bool contains(const uint32_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* Records token number n_output (from 0); true if the output now ends in a repetition. */
static bool repeats(cn_stop *s, uint32_t token)
{
    bool found = false;
    uint32_t known = cn_min_u32(s->n_output, s->max_pattern);
    uint32_t now = s->n_output % s->max_pattern, at = now;
    for (uint32_t size = 1; size <= known; size++) {
        at = at > 0 ? at - 1 : s->max_pattern - 1;
        s->run[size] = s->recent[at] == token ? s->run[size] + 1 : 0;
        bool enough = s->run[size] >= (uint64_t)size * (s->min_count - 1);
        found = found || (enough && size >= s->min_pattern);
    }
    s->recent[now] = token;
    return found;
}

cn_finish cn_stop_push_token(cn_stop *s, uint32_t token)
{
    bool repeated = s->max_pattern > 0 && repeats(s, token);
    s->n_output++;
    bool full = s->n_output >= s->max_output;
    if (s->n_output < s->min_tokens) return full ? CN_FINISH_LENGTH : CN_FINISH_NONE;
    if (contains(s->eos, s->n_eos, token)) return CN_FINISH_STOP;
    if (contains(s->stop_tokens, s->n_stop_tokens, token)) {
        s->stop_token = token;
        return CN_FINISH_STOP;
    }
    if (full) return CN_FINISH_LENGTH;
    return repeated ? CN_FINISH_REPETITION : CN_FINISH_NONE;
}

int64_t cn_stop_token(const cn_stop *s) { return s->stop_token; }

bool cn_stop_bans_apply(const cn_stop *s, uint32_t n_pending)
{
    return s->n_output + n_pending < s->min_tokens;
}

/* ---- text ---- */

/* Feeds byte `c`; true if it completes the string. */
static bool advance(stop_string *s, char c)
{
    uint32_t matched = s->matched;
    while (matched > 0 && s->text[matched] != c) matched = s->fail[matched - 1];
    if (s->text[matched] == c) matched++;
    bool complete = matched == s->length;
    s->matched = complete ? s->fail[matched - 1] : matched;
    return complete;
}

bool cn_stop_push_text(cn_stop *s, const char *text, size_t n, cn_stop_match *match)
{
    bool active = s->n_output > s->min_tokens;
    for (size_t i = 0; i < n; i++) {
        const stop_string *longest = NULL;
        for (uint32_t j = 0; j < s->n_strings; j++) {
            stop_string *candidate = &s->strings[j];
            if (!advance(candidate, text[i]) || !active) continue;
            if (!longest || candidate->length > longest->length) longest = candidate;
        }
        if (!longest) continue;
        *match = (cn_stop_match){.end = i + 1, .length = longest->length, .text = longest->text};
        return true;
    }
    return false;
}

size_t cn_stop_held(const cn_stop *s)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < s->n_strings; i++) held = cn_max_u32(held, s->strings[i].matched);
    return held;
}

void cn_stop_cut_text(cn_stop *s)
{
    for (uint32_t i = 0; i < s->n_strings; i++) s->strings[i].matched = 0;
}
