/* pretoken.c - the split rules. See pretoken.h. */
#include "engine/text/pretoken.h"

#include "engine/text/split_regex.h"
#include "engine/text/word_regex.h"

struct cn_pretoken {
    cn_split_rule rule;
    cn_word_regex *regex;
};

/* The expressions as they are in tokenizer.json; GPT-2's is built into ByteLevel. */
static const char *const rules[] = {
    [CN_SPLIT_GPT2] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                      "|\\s+(?!\\S)|\\s+",
    [CN_SPLIT_QWEN2] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                       "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    [CN_SPLIT_LLAMA3] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

bool cn_split_rule_of_regex(const char *regex, cn_split_rule *rule)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (strcmp(regex, rules[i]) != 0) continue;
        *rule = (cn_split_rule)i;
        return true;
    }
    return false;
}

cn_status cn_pretoken_create(cn_pretoken **out, cn_split_rule rule)
{
    *out = NULL;
    cn_pretoken *p = cn_calloc(1, sizeof *p);
    if (!p) return cn_fail(CN_ERR_MEMORY, "out of memory for the split rule");
    p->rule = rule;
    cn_buf pattern = {0};
    cn_status status = cn_split_regex_translate(&pattern, rules[rule]);
    if (status == CN_OK) status = cn_word_regex_create(&p->regex, pattern.data, true);
    cn_buf_free(&pattern);
    if (status == CN_OK)
        *out = p;
    else
        cn_pretoken_free(p);
    return status;
}

void cn_pretoken_free(cn_pretoken *p)
{
    if (!p) return;
    cn_word_regex_free(p->regex);
    cn_free(p);
}

cn_status cn_pretoken_next_pcre2(cn_pretoken *p, const char *text, size_t n, size_t at, size_t *end)
{
    bool found;
    size_t start;
    CN_TRY(cn_word_regex_find(p->regex, text, n, at, &found, &start, end));
    if (!found)
        return cn_fail(CN_ERR_ARG, "a text of %zu bytes cannot be split into words after byte %zu",
                       n, at);
    return CN_OK;
}

/* ---- words whose end depends on ASCII alone ---- */

enum { LETTER = 1, DIGIT = 2, BLANK = 4, NEWLINE = 8, OTHER = 16, HIGH = 32 };
#define L LETTER
#define D DIGIT
#define S BLANK
#define N (BLANK | NEWLINE)
#define O OTHER
static const unsigned char classes[128] = {
    O, O, O, O, O, O, O, O, O, S, N, S, S, N, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, D, D, D, D, D, D, D, D, D, D, O, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
};
#undef L
#undef D
#undef S
#undef N
#undef O

/* Class of text[i]; at the end of the text 0, which is in no class. */
static inline unsigned class_at(const char *text, size_t n, size_t i)
{
    if (i >= n) return 0;
    unsigned char c = (unsigned char)text[i];
    return c < 128 ? classes[c] : HIGH;
}

/* Returns the first index at or after i whose class is not in `mask`. */
static inline size_t run_end(const char *text, size_t n, size_t i, unsigned mask)
{
    while (class_at(text, n, i) & mask) i++;
    return i;
}

/* Length of the contraction at text[at] == '\''; 0 if there is none. It does not see the long s
 * (U+017F), which equals s if case is ignored: that is not ASCII, and the caller leaves it to
 * PCRE2. */
static size_t contraction_len(const char *text, size_t n, size_t at, bool any_case)
{
    char a = at + 1 < n ? text[at + 1] : '\0', b = at + 2 < n ? text[at + 2] : '\0';
    if (any_case && a >= 'A' && a <= 'Z') a = (char)(a + 32);
    if (any_case && b >= 'A' && b <= 'Z') b = (char)(b + 32);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    bool two = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
    return two ? 3 : 0;
}

/* Returns the end of the word that starts with the white space at `at`; 0 if a byte above 0x7F may
 * change it. A run with a newline ends after its last newline (not GPT-2). Else the last blank of
 * the run belongs to the next word. */
static size_t space_end(const char *text, size_t n, size_t at, bool newline_ends)
{
    size_t end = run_end(text, n, at, BLANK);
    if (class_at(text, n, end) == HIGH) return 0;
    for (size_t i = end; newline_ends && i > at; i--)
        if (class_at(text, n, i - 1) & NEWLINE) return i;
    return end == n || end == at + 1 ? end : end - 1;
}

/* Returns the end of the word at `at` by GPT-2's rule; 0 if a byte above 0x7F may change it. */
static size_t gpt2_ascii_end(const char *text, size_t n, size_t at)
{
    if (text[at] == '\'') {
        size_t len = contraction_len(text, n, at, false);
        if (len) return at + len;
    }
    size_t first = at + (text[at] == ' ');
    unsigned kind = class_at(text, n, first);
    if (kind == HIGH) return 0;
    if (!(kind & (LETTER | DIGIT | OTHER))) return space_end(text, n, at, false);
    size_t end = run_end(text, n, first, kind);
    return class_at(text, n, end) == HIGH ? 0 : end;
}

/* Returns the end of the word at `at` by the rule of Qwen2 and Llama 3; 0 if a byte above 0x7F may
 * change it. The two differ only in max_digits, the most digits in a word. */
static size_t modern_ascii_end(const char *text, size_t n, size_t at, size_t max_digits)
{
    unsigned here = class_at(text, n, at), next = class_at(text, n, at + 1);
    if (here == HIGH || next == HIGH) return 0;
    if (text[at] == '\'') {
        size_t len = contraction_len(text, n, at, true);
        if (len) return at + len;
    }
    size_t end;
    if (here & LETTER || (next & LETTER && !(here & (DIGIT | NEWLINE)))) {
        end = run_end(text, n, at + 1, LETTER);
    } else if (here & DIGIT) {
        size_t most = n - at < max_digits ? n - at : max_digits;
        end = run_end(text, at + most, at, DIGIT);
        if (end == at + most) return end;
    } else if (here & OTHER || (text[at] == ' ' && next & OTHER)) {
        end = run_end(text, n, at + 1, OTHER);
        if (class_at(text, n, end) != HIGH) return run_end(text, n, end, NEWLINE);
    } else {
        return space_end(text, n, at, true);
    }
    return class_at(text, n, end) == HIGH ? 0 : end;
}

cn_status cn_pretoken_next(cn_pretoken *p, const char *text, size_t n, size_t at, size_t *end)
{
    size_t found = p->rule == CN_SPLIT_GPT2
                       ? gpt2_ascii_end(text, n, at)
                       : modern_ascii_end(text, n, at, p->rule == CN_SPLIT_QWEN2 ? 1 : 3);
    if (!found) return cn_pretoken_next_pcre2(p, text, n, at, end);
    *end = found;
    return CN_OK;
}
