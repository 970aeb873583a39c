/* grammar_open.c - see grammar_open.h. */
#include "tests/lib/grammar_open.h"

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
