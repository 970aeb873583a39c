/* compile.h - compiles forms to automata, on a thread of its own: a form may take as long as
 * CN_NET_MAX_STEPS and CN_FIRST_MASK_STEPS allow, below 2 s, and nothing else waits for it.
 *
 * Owner: cn_grammars. Thread: the owner's, except where cn_compile_job says otherwise. */
#pragma once

#include "engine/cinch.h"
#include "engine/grammar/automaton.h"

enum {
    CN_COMPILE_MAX_CHOICES = 4096,
    CN_FIRST_MASK_STEPS = 1 << 27 /* automaton steps of the mask of the empty text, below 1 s */
};

/* One form. From cn_compiler_post until cn_compiler_take returns it, it belongs to the thread,
 * which reads the first two fields and writes the others. */
typedef struct cn_compile_job {
    cn_list_node node;
    cn_structure form;       /* its texts are borrowed; `text` is not NULL */
    cn_automaton *automaton; /* with the mask of the empty text; NULL: refused */
    uint64_t bytes;          /* the sum that the automaton counts in */
    cn_status status;        /* CN_ERR_ARG: the form is invalid or too large */
    char *error;             /* why; may be NULL when memory is short */
} cn_compile_job;

typedef struct cn_compiler cn_compiler;

/* The vocabulary is borrowed. */
cn_status cn_compiler_create(cn_compiler **out, const cn_vocabulary *vocabulary);
/* Waits for the form that is being compiled and drops the others, whose jobs the caller frees. NULL
 * is fine. */
void cn_compiler_free(cn_compiler *c);

/* Jobs are done one after the other. */
void cn_compiler_post(cn_compiler *c, cn_compile_job *job);
/* Takes a posted job back. False when the thread has begun it. */
bool cn_compiler_try_cancel(cn_compiler *c, cn_compile_job *job);
/* A job that is done, or NULL. */
cn_compile_job *cn_compiler_take(cn_compiler *c);
/* Waits until a job is done that was not taken, at most this long. */
void cn_compiler_wait(cn_compiler *c, uint32_t timeout_ms);
