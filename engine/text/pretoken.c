/* pretoken.c - the split rules. See pretoken.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/pretoken.h"

#include <pcre2.h>
#include <string.h>

struct cn_pretoken {
    cn_split_rule rule;
    bool jit;
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* PCRE2 10.42 has the data of Unicode 14; the tokenizers package has Unicode 16. The additions: */
#define YOUNG_LETTERS                                                                      \
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"       \
    "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}" \
    "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}"   \
    "\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}"  \
    "\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}"            \
    "\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"             \
    "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"  \
    "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"
#define YOUNG_NUMBERS                                                                      \
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}" \
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}" \
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"
#define LETTER_CLASS "\\p{L}" YOUNG_LETTERS
#define NUMBER_CLASS "\\p{N}" YOUNG_NUMBERS

/* PCRE2's own \s matches U+180E and, without UCP, no other character above U+007F. The models were
 * trained with \s as the property White_Space, so this class lists it. */
#define SPACE "\\t-\\r\\x{20}\\x{85}\\p{Z}"
#define TAIL "|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define MODERN_HEAD                                                               \
    "(?i:" CONTRACTIONS ")|[^\\r\\n" LETTER_CLASS NUMBER_CLASS "]?[" LETTER_CLASS \
    "]+|[" NUMBER_CLASS "]"
#define MODERN_TAIL "| ?[^" SPACE LETTER_CLASS NUMBER_CLASS "]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+" TAIL

/* `source` is the expression in tokenizer.json (GPT-2's is built into ByteLevel); `pattern` is the
 * same rule for PCRE2. */
static const struct {
    const char *source, *pattern;
} rules[] = {
    [CN_SPLIT_GPT2] = {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                       "|\\s+(?!\\S)|\\s+",
                       CONTRACTIONS "| ?[" LETTER_CLASS "]+| ?[" NUMBER_CLASS "]+"
                                    "| ?[^" SPACE LETTER_CLASS NUMBER_CLASS "]+" TAIL},
    [CN_SPLIT_QWEN2] = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                        MODERN_HEAD MODERN_TAIL},
    [CN_SPLIT_LLAMA3] = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                         MODERN_HEAD "{1,3}" MODERN_TAIL},
};

bool cn_split_rule_of_regex(const char *regex, cn_split_rule *rule)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (strcmp(regex, rules[i].source) != 0) continue;
        *rule = (cn_split_rule)i;
        return true;
    }
    return false;
}

cn_status cn_pretoken_create(cn_pretoken **out, cn_split_rule rule)
{
    enum { JIT_STACK_START_BYTES = 32 << 10, JIT_STACK_MAX_BYTES = 1 << 20 };
    *out = NULL;
    cn_pretoken *p = cn_calloc(1, sizeof *p);
    if (!p) return cn_fail(CN_ERR_MEMORY, "out of memory for the split rule");
    p->rule = rule;
    int error;
    PCRE2_SIZE where;
    p->code =
        pcre2_compile((PCRE2_SPTR)rules[rule].pattern, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NO_START_OPTIMIZE, &error, &where, NULL);
    CN_ASSERT(p->code); /* the patterns are constants */
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    p->match = pcre2_match_data_create_from_pattern(p->code, NULL);
    p->context = pcre2_match_context_create(NULL);
    if (p->jit) p->stack = pcre2_jit_stack_create(JIT_STACK_START_BYTES, JIT_STACK_MAX_BYTES, NULL);
    if (!p->match || !p->context || (p->jit && !p->stack)) {
        cn_pretoken_free(p);
        return cn_fail(CN_ERR_MEMORY, "out of memory for the split rule");
    }
    if (p->jit) pcre2_jit_stack_assign(p->context, NULL, p->stack);
    /* The patterns backtrack one repetition at a time, so a long text needs many steps but no
     * depth. The step limit protects against hostile patterns. These patterns are fixed, so it
     * would only reject long texts. */
    pcre2_set_match_limit(p->context, UINT32_MAX);
    *out = p;
    return CN_OK;
}

void cn_pretoken_free(cn_pretoken *p)
{
    if (!p) return;
    pcre2_jit_stack_free(p->stack);
    pcre2_match_context_free(p->context);
    pcre2_match_data_free(p->match);
    pcre2_code_free(p->code);
    cn_free(p);
}

cn_status cn_pretoken_next_pcre2(cn_pretoken *p, const char *text, size_t n, size_t at, size_t *end)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text + at;
    int got =
        p->jit
            ? pcre2_jit_match(p->code, subject, n - at, 0, PCRE2_NO_UTF_CHECK, p->match, p->context)
            : pcre2_match(p->code, subject, n - at, 0, PCRE2_NO_UTF_CHECK, p->match, p->context);
    size_t len = got > 0 ? pcre2_get_ovector_pointer(p->match)[1] : 0;
    if (len == 0)
        return cn_fail(CN_ERR_ARG,
                       "a text of %zu bytes cannot be split into words after byte %zu (PCRE2 code "
                       "%d): divide it into shorter texts",
                       n, at, got);
    *end = at + len;
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
