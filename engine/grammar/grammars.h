/* grammars.h - the grammars of an engine's requests: compiles them, shares equal ones, and bounds
 * their memory.
 *
 * Owner: cn_engine. Thread: engine only. Stage 7 of the path of a request.
 *
 * A grammar stays while a request uses it, and after that until the memory is needed. When all
 * automata together exceed CN_GRAMMARS_BYTES, unused ones are freed and the largest one forgets its
 * states; both are made again when they are needed. */
#ifndef CN_GRAMMARS_H
#define CN_GRAMMARS_H

#include "engine/cinch.h"
#include "engine/grammar/automaton.h"

typedef struct cn_grammars cn_grammars;
typedef struct cn_grammar cn_grammar;

enum {
    CN_GRAMMARS_BYTES = 256 << 20,   /* of all automata */
    CN_GRAMMARS_MAX_BYTES = 1 << 30, /* beyond it a new grammar is refused */
    CN_GRAMMAR_MAX_CHOICES = 4096,
    CN_GRAMMARS_UNUSED = 64 /* most grammars that no request uses */
};

typedef struct cn_grammars_opts {
    cn_token_bytes *tokens; /* [n_tokens] sorted in place; not kept, but their bytes are */
    uint32_t n_tokens;
    uint32_t vocab;      /* of the model */
    const uint32_t *eos; /* [n_eos] borrowed; each below vocab */
    uint32_t n_eos;
    uint64_t bytes; /* 0: CN_GRAMMARS_BYTES */
} cn_grammars_opts;

cn_status cn_grammars_create(cn_grammars **out, const cn_grammars_opts *o);
void cn_grammars_free(cn_grammars *g); /* no grammar is in use; NULL is fine */

/* Compiles a grammar, or finds it. CN_ERR_ARG says what is wrong with it; CN_ERR_BUSY when the
 * grammars of live requests fill the memory. */
cn_status cn_grammars_open(cn_grammars *g, const cn_structure *s, cn_grammar **out);
void cn_grammars_close(cn_grammar *grammar); /* NULL is fine */

/* Begins a text. The matcher must end before the grammar is closed. */
void cn_grammar_match(cn_grammar *grammar, cn_matcher *m);

/* cn_matcher_mask within the memory bound: masks from earlier calls may become invalid. */
cn_status cn_grammars_mask(cn_grammars *g, cn_matcher *m, const uint32_t **mask);

#endif
