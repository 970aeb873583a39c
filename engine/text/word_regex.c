/* word_regex.c - see word_regex.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/word_regex.h"

#include <pcre2.h>

struct cn_word_regex {
    bool jit;
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static cn_status compile_word(cn_word_regex *r, const char *pattern, uint32_t options)
{
    int error;
    uint32_t matches_empty = 0;
    PCRE2_SIZE where;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return cn_fail(CN_ERR_MEMORY, "out of memory for a split rule");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_MULTILINE | options, &error, &where, context);
    pcre2_compile_context_free(context);
    if (!r->code)
        return cn_fail(CN_ERR_MODEL, "PCRE2 refuses this expression (PCRE2 code %d)", error);
    pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty)
        return cn_fail(CN_ERR_MODEL, "an expression that matches the empty text is not supported");
    return CN_OK;
}

static cn_status make_scratch(cn_word_regex *r)
{
    enum { JIT_STACK_START_BYTES = 32 << 10, JIT_STACK_MAX_BYTES = 1 << 20 };
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
    r->match = pcre2_match_data_create_from_pattern(r->code, NULL);
    r->context = pcre2_match_context_create(NULL);
    if (r->jit) r->stack = pcre2_jit_stack_create(JIT_STACK_START_BYTES, JIT_STACK_MAX_BYTES, NULL);
    if (!r->match || !r->context || (r->jit && !r->stack))
        return cn_fail(CN_ERR_MEMORY, "out of memory for a split rule");
    if (r->jit) pcre2_jit_stack_assign(r->context, NULL, r->stack);
    /* The usual patterns backtrack one repetition at a time, so a long text needs many steps but no
     * depth. A lower limit would only reject long texts. */
    pcre2_set_match_limit(r->context, UINT32_MAX);
    return CN_OK;
}

cn_status cn_word_regex_create(cn_word_regex **out, const char *pattern, bool anchored)
{
    *out = NULL;
    cn_word_regex *r = cn_calloc(1, sizeof *r);
    if (!r) return cn_fail(CN_ERR_MEMORY, "out of memory for a split rule");
    cn_status status =
        compile_word(r, pattern, anchored ? PCRE2_ANCHORED | PCRE2_NO_START_OPTIMIZE : 0);
    if (status == CN_OK) status = make_scratch(r);
    if (status == CN_OK)
        *out = r;
    else
        cn_word_regex_free(r);
    return status;
}

void cn_word_regex_free(cn_word_regex *r)
{
    if (!r) return;
    pcre2_jit_stack_free(r->stack);
    pcre2_match_context_free(r->context);
    pcre2_match_data_free(r->match);
    pcre2_code_free(r->code);
    cn_free(r);
}

cn_status cn_word_regex_find(cn_word_regex *r, const char *text, size_t n, size_t at, bool *found,
                             size_t *start, size_t *end)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    int got = r->jit ? pcre2_jit_match(r->code, subject, n, at, options, r->match, r->context)
                     : pcre2_match(r->code, subject, n, at, options, r->match, r->context);
    *found = got > 0;
    if (!*found && got != PCRE2_ERROR_NOMATCH)
        return cn_fail(CN_ERR_ARG,
                       "a text of %zu bytes cannot be split into words after byte %zu (PCRE2 code "
                       "%d): divide it into shorter texts",
                       n, at, got);
    if (!*found) return CN_OK;
    *start = pcre2_get_ovector_pointer(r->match)[0];
    *end = pcre2_get_ovector_pointer(r->match)[1];
    return CN_OK;
}
