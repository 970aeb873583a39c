/* grammar_open.c - see grammar_open.h. */
#include "tests/lib/grammar_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

char grammar_bytes[GRAMMAR_BYTES];

cn_grammars *grammar_words(const char *const *words, uint32_t n, uint64_t state_bytes)
{
    static uint32_t eos; /* the same for each vocabulary in use */
    cn_token_bytes tokens[GRAMMAR_BYTES + GRAMMAR_MAX_WORDS];
    assert_true(n <= GRAMMAR_MAX_WORDS);
    for (uint32_t i = 0; i < GRAMMAR_BYTES; i++) {
        grammar_bytes[i] = (char)i;
        tokens[i] = (cn_token_bytes){&grammar_bytes[i], i, 1};
    }
    eos = GRAMMAR_BYTES + n;
    for (uint32_t i = 0; i < n; i++)
        tokens[GRAMMAR_BYTES + i] =
            (cn_token_bytes){words[i], GRAMMAR_BYTES + i, (uint32_t)strlen(words[i])};
    const cn_grammars_opts o = {.tokens = tokens,
                                .n_tokens = eos,
                                .vocab = eos + 1,
                                .eos = &eos,
                                .n_eos = 1,
                                .state_bytes = state_bytes};
    cn_grammars *g;
    assert_int_equal(cn_grammars_create(&g, &o), CN_OK);
    return g;
}

bool grammar_matches(cn_grammar *grammar, const char *text)
{
    cn_matcher m;
    cn_grammar_match(grammar, &m);
    const bool ok = cn_matcher_push(&m, text, strlen(text)) == CN_OK && cn_matcher_accepts(&m);
    cn_matcher_end(&m);
    return ok;
}

void grammar_check_texts(cn_grammar *grammar, const char *name, const char *const *good,
                         const char *const *bad)
{
    for (; *good; good++)
        if (!grammar_matches(grammar, *good)) fail_msg("%s does not read %s", name, *good);
    for (; *bad; bad++)
        if (grammar_matches(grammar, *bad)) fail_msg("%s reads %s", name, *bad);
}

cn_status grammar_open(cn_grammars *g, const cn_structure *s, cn_grammar **out)
{
    cn_form f;
    CN_TRY(cn_form_copy(&f, s));
    cn_status status = cn_grammars_open(g, &f, out);
    if (status == CN_OK && !*out) {
        status = cn_grammars_begin(g, &f);
        while (status == CN_OK && !cn_grammars_poll(g)) cn_grammars_wait(g, 1000);
        if (status == CN_OK) status = cn_grammars_open(g, &f, out);
    }
    cn_form_free(&f);
    return status;
}

cn_status grammar_mask(cn_grammars *g, cn_matcher *m, const uint32_t **mask)
{
    uint64_t work = UINT64_MAX / 2;
    cn_grammars_make_room(g);
    return cn_matcher_mask(m, &work, mask);
}
