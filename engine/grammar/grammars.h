/* grammars.h - the grammars of an engine's requests: has them compiled, shares equal ones,
 * remembers refused ones, and bounds their memory.
 *
 * Owner: cn_engine. Thread: engine only; compile.h has the thread that compiles.
 * Stage 7 of the path of a request.
 *
 *   unknown --cn_grammars_begin--> being made --cn_grammars_poll--> made, or refused
 *
 * A grammar stays while a request uses it, and after that until the memory is needed. A network
 * does not grow. All networks together have at most CN_GRAMMARS_NET_BYTES, and one more grammar;
 * all states and masks CN_GRAMMARS_STATE_BYTES, and what one step adds: then the largest automaton
 * forgets its states, which are made again when they are needed. */
#pragma once

#include "engine/cinch.h"
#include "engine/grammar/automaton.h"

typedef struct cn_grammars cn_grammars;
typedef struct cn_grammar cn_grammar;

enum {
    CN_FORM_MAX_BYTES = 256 << 10, /* of a form's text */
    CN_GRAMMARS_STATE_BYTES = 256 << 20,
    CN_GRAMMARS_NET_BYTES = 1 << 30,
    CN_GRAMMARS_UNUSED = 64,             /* most grammars that no request uses */
    CN_GRAMMARS_UNUSED_BYTES = 64 << 20, /* and the bytes of their networks */
    CN_GRAMMARS_REFUSED = 256,           /* refusals that are remembered */
    CN_GRAMMARS_REFUSED_BYTES = 4 << 20  /* and the bytes of their texts */
};

typedef struct cn_grammars_opts {
    cn_token_bytes *tokens; /* [n_tokens] sorted in place; not kept, but their bytes are */
    uint32_t n_tokens;
    uint32_t vocab;      /* of the model */
    const uint32_t *eos; /* [n_eos] borrowed; each below vocab */
    uint32_t n_eos;
    uint64_t state_bytes; /* 0: CN_GRAMMARS_STATE_BYTES */
    uint64_t net_bytes;   /* 0: CN_GRAMMARS_NET_BYTES */
} cn_grammars_opts;

cn_status cn_grammars_create(cn_grammars **out, const cn_grammars_opts *o);
void cn_grammars_free(cn_grammars *g); /* no grammar is in use; NULL is fine */

/* A form and the hash of its text, by which grammars are found. */
typedef struct cn_form {
    cn_structure structure; /* its texts are owned, and `text` is not NULL */
    uint64_t hash;
} cn_form;

/* CN_ERR_ARG: longer than any form that can be compiled. */
cn_status cn_form_copy(cn_form *out, const cn_structure *s);
void cn_form_free(cn_form *f);
bool cn_form_equal(const cn_form *a, const cn_form *b);

/* Uses a grammar that is made. *out is NULL if it is unknown or being made. CN_ERR_ARG: the form is
 * refused, for a reason that is remembered. */
cn_status cn_grammars_open(cn_grammars *g, const cn_form *f, cn_grammar **out);
void cn_grammars_close(cn_grammar *grammar); /* NULL is fine */

/* What the grammar does not enforce: lines of text, or NULL. Valid until it is closed. */
const char *cn_grammar_warnings(const cn_grammar *grammar);

/* Has a form compiled that is unknown. Nothing happens when it is being made. */
cn_status cn_grammars_begin(cn_grammars *g, const cn_form *f);
/* Nobody waits for the form any more: it is not compiled if that has not begun. */
void cn_grammars_cancel(cn_grammars *g, const cn_form *f);
/* Takes what has been compiled. Returns whether there was anything. */
bool cn_grammars_poll(cn_grammars *g);
/* Waits until a form is compiled, at most this long. Returns at once if none is being made. */
void cn_grammars_wait(cn_grammars *g, uint32_t timeout_ms);

/* Bytes of the network of a grammar. */
uint64_t cn_grammar_bytes(const cn_grammar *grammar);
/* Whether somebody whose requests use networks of held_bytes may have another form compiled: with
 * less than the networks in use leave free, so that there is always room for somebody else. */
bool cn_grammars_have_room(const cn_grammars *g, uint64_t held_bytes);

/* Begins a text. The matcher must end before the grammar is closed. */
void cn_grammar_match(cn_grammar *grammar, cn_matcher *m);

/* Keeps the memory within its bounds: masks from earlier calls may become invalid, but not those of
 * live matchers. */
void cn_grammars_make_room(cn_grammars *g);
