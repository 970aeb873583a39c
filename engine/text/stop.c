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

typedef struct stop_string {
    const char *text; /* borrowed */
    uint16_t *fail;   /* [length] longest proper border of text[0..i] */
    uint32_t length;
} stop_string;

struct cn_stop_rules {
    uint32_t *eos, *stop_tokens;
    uint32_t n_eos, n_stop_tokens;
    uint32_t min_tokens, max_output;

    stop_string *strings;
    uint32_t n_strings;

    uint32_t min_pattern, max_pattern, min_count;
};

struct cn_stop {
    const cn_stop_rules *rules;
    uint32_t n_output;
    int64_t stop_token;
    uint16_t *matched; /* [n_strings] state of each automaton */
    uint32_t *recent;  /* [max_pattern] ring of the last tokens */
    uint32_t *run;     /* [max_pattern + 1] */
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
    s->text = text;
    s->length = (uint32_t)strlen(text);
    CN_ASSERT(s->length > 0 && s->length <= UINT16_MAX);
    s->fail = cn_calloc(s->length, sizeof *s->fail);
    if (!s->fail) return cn_fail(CN_ERR_MEMORY, "out of memory for a stop string");
    for (uint16_t i = 1, border = 0; i < s->length; i++) {
        while (border > 0 && text[i] != text[border]) border = s->fail[border - 1];
        if (text[i] == text[border]) border++;
        s->fail[i] = border;
    }
    return CN_OK;
}

static cn_status rules_init(cn_stop_rules *r, const cn_stop_opts *o)
{
    const cn_sampling *p = o->sampling;
    CN_TRY(copy_ids(&r->eos, &r->n_eos, o->eos, p->ignore_eos ? 0 : o->n_eos));
    CN_TRY(copy_ids(&r->stop_tokens, &r->n_stop_tokens, p->stop_token_ids, p->n_stop_token_ids));
    r->strings = cn_calloc(p->n_stop, sizeof *r->strings);
    if (!r->strings) return cn_fail(CN_ERR_MEMORY, "out of memory for %zu stops", p->n_stop);
    for (size_t i = 0; i < p->n_stop; i++) {
        r->n_strings++;
        CN_TRY(string_init(&r->strings[i], p->stop[i]));
    }
    r->max_pattern = p->repetition_max_pattern_size;
    r->min_pattern = cn_max_u32(p->repetition_min_pattern_size, 1);
    r->min_count = p->repetition_min_count;
    return CN_OK;
}

cn_status cn_stop_rules_create(cn_stop_rules **out, const cn_stop_opts *o)
{
    CN_ASSERT(o->max_output > 0);
    cn_stop_rules *r = cn_calloc(1, sizeof *r);
    if (!r) return cn_fail(CN_ERR_MEMORY, "out of memory for a request");
    r->min_tokens = o->sampling->min_tokens;
    r->max_output = o->max_output;
    cn_status status = rules_init(r, o);
    if (status != CN_OK) {
        cn_stop_rules_free(r);
        return status;
    }
    *out = r;
    return CN_OK;
}

void cn_stop_rules_free(cn_stop_rules *r)
{
    if (!r) return;
    for (uint32_t i = 0; i < r->n_strings; i++) cn_free(r->strings[i].fail);
    cn_free(r->strings);
    cn_free(r->eos);
    cn_free(r->stop_tokens);
    cn_free(r);
}

cn_status cn_stop_create(cn_stop **out, const cn_stop_rules *rules)
{
    cn_stop *s = cn_calloc(1, sizeof *s);
    if (!s) return cn_fail(CN_ERR_MEMORY, "out of memory for a sample");
    s->rules = rules;
    s->stop_token = -1;
    s->matched = cn_calloc(rules->n_strings, sizeof *s->matched);
    s->recent = cn_calloc(rules->max_pattern, sizeof *s->recent);
    s->run = cn_calloc(rules->max_pattern + 1, sizeof *s->run);
    if (!s->matched || !s->recent || !s->run) {
        cn_stop_free(s);
        return cn_fail(CN_ERR_MEMORY, "out of memory for patterns of %u tokens",
                       rules->max_pattern);
    }
    *out = s;
    return CN_OK;
}

void cn_stop_free(cn_stop *s)
{
    if (!s) return;
    cn_free(s->matched);
    cn_free(s->recent);
    cn_free(s->run);
    cn_free(s);
}

/* ---- tokens ---- */

static bool contains_stop(const uint32_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* Records token number n_output (from 0); true if the output now ends in a repetition. */
static bool repeats_stop(cn_stop *s, uint32_t token)
{
    const cn_stop_rules *r = s->rules;
    bool found = false;
    uint32_t known = cn_min_u32(s->n_output, r->max_pattern);
    uint32_t now = s->n_output % r->max_pattern, at = now;
    for (uint32_t size = 1; size <= known; size++) {
        at = at > 0 ? at - 1 : r->max_pattern - 1;
        s->run[size] = s->recent[at] == token ? s->run[size] + 1 : 0;
        bool enough = s->run[size] >= (uint64_t)size * (r->min_count - 1);
        found = found || (enough && size >= r->min_pattern);
    }
    s->recent[now] = token;
    return found;
}

cn_finish cn_stop_push_token(cn_stop *s, uint32_t token)
{
    const cn_stop_rules *r = s->rules;
    bool repeated = r->max_pattern > 0 && repeats_stop(s, token);
    s->n_output++;
    bool full = s->n_output >= r->max_output;
    if (s->n_output < r->min_tokens) return full ? CN_FINISH_LENGTH : CN_FINISH_NONE;
    if (contains_stop(r->eos, r->n_eos, token)) return CN_FINISH_STOP;
    if (contains_stop(r->stop_tokens, r->n_stop_tokens, token)) {
        s->stop_token = token;
        return CN_FINISH_STOP;
    }
    if (full) return CN_FINISH_LENGTH;
    return repeated ? CN_FINISH_REPETITION : CN_FINISH_NONE;
}

int64_t cn_stop_token(const cn_stop *s) { return s->stop_token; }

bool cn_stop_bans_apply(const cn_stop *s, uint32_t n_pending)
{
    return s->n_output + n_pending < s->rules->min_tokens;
}

/* ---- text ---- */

/* Feeds byte `c` to an automaton in state *state; true if it completes the string. */
static bool advance_stop(const stop_string *s, uint16_t *state, char c)
{
    uint16_t matched = *state;
    while (matched > 0 && s->text[matched] != c) matched = s->fail[matched - 1];
    if (s->text[matched] == c) matched++;
    bool complete = matched == s->length;
    *state = complete ? s->fail[matched - 1] : matched;
    return complete;
}

bool cn_stop_push_text(cn_stop *s, const char *text, size_t n, cn_stop_match *match)
{
    const cn_stop_rules *r = s->rules;
    bool active = s->n_output > r->min_tokens;
    for (size_t i = 0; i < n; i++) {
        const stop_string *longest = NULL;
        for (uint32_t j = 0; j < r->n_strings; j++) {
            const stop_string *candidate = &r->strings[j];
            if (!advance_stop(candidate, &s->matched[j], text[i]) || !active) continue;
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
    for (uint32_t i = 0; i < s->rules->n_strings; i++) held = cn_max_u32(held, s->matched[i]);
    return held;
}

void cn_stop_cut_text(cn_stop *s)
{
    for (uint32_t i = 0; i < s->rules->n_strings; i++) s->matched[i] = 0;
}
