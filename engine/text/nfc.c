/* nfc.c - normalization form C. See nfc.h. */
#include "engine/text/nfc.h"

#include <utf8proc.h>

#include "engine/base/utf8.h"

typedef struct range {
    uint32_t first, last;
} range;

/* True if a sorted list of ranges contains cp, which must not exceed the last range. */
static bool in_ranges(const range *list, size_t n, uint32_t cp)
{
    size_t lo = 0;
    while (n) {
        size_t half = n / 2;
        bool right = list[lo + half].last < cp;
        lo = right ? lo + half + 1 : lo;
        n = right ? n - half - 1 : half;
    }
    return cp >= list[lo].first && cp <= list[lo].last;
}
#define IN_RANGES(list, cp)                                  \
    ((cp) <= (list)[sizeof(list) / sizeof *(list)-1].last && \
     in_ranges(list, sizeof(list) / sizeof *(list), cp))

/* Scripts and marks that are newer than Unicode 9, the version that models of this kind were
 * trained with. The tokenizers package treats them as characters that nothing combines with, and so
 * does cinch. Blocks that are new as a whole are listed whole, so that a later utf8proc makes no
 * difference. */
bool cn_nfc_is_younger(uint32_t cp)
{
    static const range younger[] = {
        {0x7FD, 0x7FD},     {0x860, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
        {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
        {0x1ABF, 0x1AFF},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D00, 0x10D8F},
        {0x10E80, 0x10FFF}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11380, 0x113FF},
        {0x1145E, 0x1145E}, {0x11800, 0x1184F}, {0x11900, 0x11ABF}, {0x11B00, 0x11BFF},
        {0x11D00, 0x11FFF}, {0x16100, 0x1613F}, {0x16D40, 0x16D7F}, {0x16FF0, 0x16FFF},
        {0x1E030, 0x1E08F}, {0x1E100, 0x1E7FF},
    };
    return IN_RANGES(younger, cp);
}

bool cn_nfc_is_boundary(uint32_t cp)
{
    /* U+11A7 is the code point before the first final consonant of Hangul; it joins nothing.
     * utf8proc drops it after a syllable without a final consonant. As a boundary it never gets
     * into such a stretch. */
    static const range safe[] = {
        {0x0000, 0x02FF}, {0x0376, 0x037D},   {0x0388, 0x0482}, {0x048A, 0x0587},
        {0x05D0, 0x05EA}, {0x0620, 0x064A}, {0x0904, 0x0928},
        {0x0E01, 0x0E37}, {0x10A0, 0x10FF},   {0x11A7, 0x11A7}, {0x1E00, 0x1EFF}, {0x2010, 0x2027},
        {0x2030, 0x205E}, {0x20A0, 0x20C0},   {0x2190, 0x2328}, {0x232B, 0x2ADB}, {0x2ADD, 0x2BFF},
        {0x3000, 0x3029}, {0x3030, 0x3098},   {0x309B, 0x30FF}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF},
        {0xAC00, 0xD7A3}, {0xFF01, 0xFFEF},   {0x1F300, 0x1FAFF},
    };
    return IN_RANGES(safe, cp) || cn_nfc_is_younger(cp);
}

static cn_status reserve_nfc(cn_nfc *w, size_t n)
{
    if (n <= w->cap) return CN_OK;
    size_t cap = w->cap ? w->cap : 256;
    while (cap < n) cap *= 2;
    int32_t *cps = cn_realloc(w->cps, cap, sizeof *cps);
    w->cps = cps ? cps : w->cps;
    if (!cps) return cn_fail(CN_ERR_MEMORY, "out of memory to normalize %zu characters", n);
    w->cap = cap;
    return CN_OK;
}

static unsigned class_of(int32_t cp)
{
    return (unsigned)utf8proc_get_property(cp)->combining_class;
}

/* Sorts marks into canonical order: by combining class, and within a class in their original
 * order. */
static cn_status sort_marks(cn_nfc *w, size_t from, size_t to)
{
    size_t starts[256] = {0}, sum = 0;
    int32_t *sorted = cn_calloc(to - from, sizeof *sorted);
    if (!sorted) return cn_fail(CN_ERR_MEMORY, "out of memory to sort %zu marks", to - from);
    for (size_t i = from; i < to; i++) starts[class_of(w->cps[i])]++;
    for (int class = 0; class < 256; class++) {
        const size_t n = starts[class];
        starts[class] = sum;
        sum += n;
    }
    for (size_t i = from; i < to; i++) sorted[starts[class_of(w->cps[i])]++] = w->cps[i];
    memcpy(w->cps + from, sorted, (to - from) * sizeof *sorted);
    cn_free(sorted);
    return CN_OK;
}

/* Orders every run of marks. */
static cn_status order_marks(cn_nfc *w, size_t n)
{
    for (size_t from = 0, to; from < n; from = to + 1) {
        bool in_order = true;
        unsigned last = 0;
        for (to = from; to < n; to++) {
            const unsigned class = class_of(w->cps[to]);
            if (class == 0) break;
            in_order = in_order && last <= class;
            last = class;
        }
        if (!in_order) CN_TRY(sort_marks(w, from, to));
    }
    return CN_OK;
}

/* Decomposes, orders and composes one stretch and appends it to w->text. */
static cn_status add_stretch(cn_nfc *w, const char *s, size_t n)
{
    enum { LONGEST_DECOMPOSITION = 8 }; /* the standard's stability policy allows 4 */
    size_t count = 0, len;
    for (size_t at = 0; at < n; at += len) {
        uint32_t cp;
        cn_utf8_read(s + at, n - at, &cp, &len);
        CN_TRY(reserve_nfc(w, count + LONGEST_DECOMPOSITION));
        utf8proc_ssize_t got =
            utf8proc_decompose_char((int32_t)cp, w->cps + count, LONGEST_DECOMPOSITION,
                                    UTF8PROC_STABLE | UTF8PROC_COMPOSE, NULL);
        CN_ASSERT(got > 0 && got <= LONGEST_DECOMPOSITION);
        count += (size_t)got;
    }
    CN_TRY(order_marks(w, count));
    utf8proc_ssize_t composed = utf8proc_normalize_utf32(w->cps, (utf8proc_ssize_t)count,
                                                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    CN_ASSERT(composed >= 0);
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
        char utf8[4];
        CN_TRY(cn_buf_add(&w->text, utf8, cn_utf8_write(utf8, (uint32_t)w->cps[i])));
    }
    return CN_OK;
}

/* Returns the start of the first stretch that may change, at or after `at`; n if there is none.
 * That is the last boundary before a character that is not a boundary, because a mark joins the
 * letter before it. Only a younger mark joins nothing: the stretch then starts after it. */
static size_t stretch_start(const char *s, size_t n, size_t at)
{
    size_t start = at, len;
    while (at < n) {
        size_t ascii = cn_utf8_ascii_prefix(s + at, n - at);
        if (ascii) start = at + ascii - 1;
        at += ascii;
        if (at == n) break;
        uint32_t cp;
        cn_utf8_read(s + at, n - at, &cp, &len);
        if (!cn_nfc_is_boundary(cp)) return start;
        start = cn_nfc_is_younger(cp) ? at + len : at;
        at += len;
    }
    return n;
}

/* Returns the end of a stretch: the first boundary after a character that is not a boundary. */
static size_t stretch_end(const char *s, size_t n, size_t start)
{
    size_t at = start, len;
    for (bool seen_mark = false; at < n; at += len) {
        uint32_t cp;
        cn_utf8_read(s + at, n - at, &cp, &len);
        bool boundary = cn_nfc_is_boundary(cp);
        if (boundary && seen_mark) break;
        seen_mark = seen_mark || !boundary;
    }
    return at;
}

cn_status cn_nfc_apply(cn_nfc *w, const char *s, size_t n, const char **out, size_t *n_out)
{
    *out = s;
    *n_out = n;
    size_t start = stretch_start(s, n, 0), copied = 0;
    if (start == n) return CN_OK;
    cn_buf_clear(&w->text);
    while (start < n) {
        size_t end = stretch_end(s, n, start);
        CN_TRY(cn_buf_add(&w->text, s + copied, start - copied));
        CN_TRY(add_stretch(w, s + start, end - start));
        copied = end;
        start = stretch_start(s, n, end);
    }
    CN_TRY(cn_buf_add(&w->text, s + copied, n - copied));
    *out = w->text.data;
    *n_out = w->text.len;
    return CN_OK;
}

void cn_nfc_free_scratch(cn_nfc *w)
{
    cn_free(w->cps);
    w->cps = NULL;
    w->cap = 0;
}

void cn_nfc_free(cn_nfc *w)
{
    cn_nfc_free_scratch(w);
    cn_buf_free(&w->text);
}
