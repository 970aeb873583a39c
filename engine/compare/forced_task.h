/* forced_task.h - one input file of a comparison by forced continuations: prompts and the tokens
 * that follow them.
 *
 * Owner: cinch compare. Thread: the engine's. Stage: before the first arm runs. */
#pragma once

#include "engine/engine.h"
#include "engine/text/tokens.h"

typedef struct cn_forced_document {
    char *id;
    uint64_t line;
    cn_tokens prompt;       /* plain text, not rendered as a chat */
    cn_tokens continuation; /* at least 2: the prompt predicts the first one */
} cn_forced_document;

typedef struct cn_forced_task {
    char *name;       /* the file's name without directory and extension */
    const char *path; /* borrowed */
    cn_forced_document *documents; /* [n] */
    uint32_t n;
} cn_forced_task;

/* Reads at most --limit lines of the file and tokenises the strings of --prompt-field and
 * --continue-field. CN_ERR_ARG names path, line and field if a line lacks one, and the lengths if
 * prompt and continuation exceed the context length. Free *out in every case. */
cn_status cn_forced_task_load(cn_forced_task *out, cn_engine *e, const char *path);
void cn_forced_task_free(cn_forced_task *t);
