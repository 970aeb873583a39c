/* added_tokens.c - finding added and special tokens in a text. See added_tokens.h. */
#include "engine/text/added_tokens.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "engine/base/utf8.h"

cn_status cn_added_set_add(cn_added_set *s, const cn_added_token *t)
{
    CN_ASSERT(t->n > 0);
    CN_TRY(CN_ROOM(&s->tokens, s->len, "the added tokens"));
    s->tokens[s->len++] = *t;
    return CN_OK;
}

static int compare_added_tokens(const void *a, const void *b)
{
    const cn_added_token *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

cn_status cn_added_set_seal(cn_added_set *s)
{
    if (s->len) qsort(s->tokens, s->len, sizeof *s->tokens, compare_added_tokens);
    for (size_t i = 0; i < s->len; i++) {
        const cn_added_token *t = &s->tokens[i];
        if (i && compare_added_tokens(t - 1, t) == 0)
            return cn_fail(CN_ERR_MODEL, "added tokens %u and %u have the same text", t[-1].id,
                           t->id);
        s->starts[(unsigned char)t->text[0]] = true;
    }
    bool one = s->len && s->tokens[0].text[0] == s->tokens[s->len - 1].text[0];
    s->only_start = one ? (unsigned char)s->tokens[0].text[0] : -1;
    return CN_OK;
}

void cn_added_set_free(cn_added_set *s)
{
    cn_free(s->tokens);
    *s = (cn_added_set){0};
}

/* Returns the index of the first token in tokens[lo .. hi) whose byte at `depth` is at least
 * `byte`; hi if there is none. The tokens in the range are longer than `depth` and equal before
 * it. */
static size_t lower_bound(const cn_added_set *s, size_t lo, size_t hi, size_t depth, unsigned byte)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)s->tokens[mid].text[depth] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Returns the longest token that text[0 .. n) starts with, or NULL. Narrows the sorted list byte by
 * byte. In a range that shares a prefix, the token equal to the prefix comes first. */
static const cn_added_token *longest_match(const cn_added_set *s, const char *text, size_t n)
{
    const cn_added_token *best = NULL;
    size_t lo = 0, hi = s->len;
    for (size_t depth = 0; lo < hi; depth++) {
        if (s->tokens[lo].n == depth) {
            best = &s->tokens[lo++];
            if (lo == hi) break;
        }
        if (depth == n) break;
        unsigned byte = (unsigned char)text[depth];
        lo = lower_bound(s, lo, hi, depth, byte);
        hi = lower_bound(s, lo, hi, depth, byte + 1);
    }
    return best;
}

/* \s of the tokenizers package: the property White_Space. */
static bool is_space(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return (cp >= 0x09 && cp <= 0x0D) || cp == 0x85 || c == UTF8PROC_CATEGORY_ZS ||
           c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP;
}

/* \w of the tokenizers package: Alphabetic, marks, decimal digits, connectors, joiners. Alphabetic
 * is letters, letter numbers, marks, and circled or squared letters. */
static bool is_word(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default:
        return cp == 0x200C || cp == 0x200D || (cp >= 0x24B6 && cp <= 0x24E9) ||
               (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
               (cp >= 0x1F170 && cp <= 0x1F189);
    }
}

/* Returns the code point that ends before text[at], at > 0, and its length in bytes. */
static uint32_t char_before(const char *text, size_t at, size_t *len)
{
    size_t start = at - 1;
    while (start > 0 && ((unsigned char)text[start] & 0xC0) == 0x80) start--;
    uint32_t cp;
    cn_utf8_read(text + start, at - start, &cp, len);
    return cp;
}

static bool touches_word(const char *text, size_t n, size_t start, size_t end)
{
    uint32_t cp;
    size_t len;
    if (start > 0 && is_word(char_before(text, start, &len))) return true;
    if (end == n) return false;
    cn_utf8_read(text + end, n - end, &cp, &len);
    return is_word(cp);
}

/* Returns the start of the white space that ends at `at`, but never less than `floor`. */
static size_t space_before(const char *text, size_t floor, size_t at)
{
    size_t len;
    while (at > floor && is_space(char_before(text, at, &len))) at -= len;
    return at > floor ? at : floor;
}

static size_t space_after(const char *text, size_t n, size_t at)
{
    uint32_t cp;
    size_t len;
    for (; at < n; at += len) {
        cn_utf8_read(text + at, n - at, &cp, &len);
        if (!is_space(cp)) break;
    }
    return at;
}

/* Returns the first index at or after `at` where a token may start; n if there is none. */
static size_t next_start(const cn_added_set *set, const char *text, size_t n, size_t at)
{
    if (at >= n || set->len == 0) return n;
    if (set->only_start >= 0) {
        const char *p = memchr(text + at, set->only_start, n - at);
        return p ? (size_t)(p - text) : n;
    }
    while (at < n && !set->starts[(unsigned char)text[at]]) at++;
    return at;
}

bool cn_added_scan_next(cn_added_scan *s, size_t *start, size_t *end, const cn_added_token **token)
{
    *token = s->found;
    if (s->found) {
        *start = *end = s->done = s->found_end;
        s->found = NULL;
        return true;
    }
    while ((s->search = next_start(s->set, s->text, s->n, s->search)) < s->n) {
        const cn_added_token *t = longest_match(s->set, s->text + s->search, s->n - s->search);
        if (!t) {
            s->search++;
            continue;
        }
        size_t from = s->search, to = from + t->n;
        s->search = to;
        if (t->single_word && touches_word(s->text, s->n, from, to)) continue;
        if (t->lstrip) from = space_before(s->text, s->done, from);
        if (t->rstrip) to = space_after(s->text, s->n, to);
        s->found = t;
        s->found_end = to;
        if (s->done >= from) return cn_added_scan_next(s, start, end, token);
        *start = s->done;
        *end = from;
        return true;
    }
    *start = s->done;
    *end = s->n;
    s->done = s->n;
    return *start < *end;
}
