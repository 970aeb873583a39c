/* grammar_open.h - grammars for tests, which wait for the compiler and for masks. */
#ifndef CN_TEST_GRAMMAR_OPEN_H
#define CN_TEST_GRAMMAR_OPEN_H

#include "engine/grammar/grammars.h"

/* Has the form compiled, waits, and opens the grammar. */
cn_status grammar_open(cn_grammars *g, const cn_structure *s, cn_grammar **out);
/* Makes room for a mask and makes it, however long that takes. */
cn_status grammar_mask(cn_grammars *g, cn_matcher *m, const uint32_t **mask);

#endif
