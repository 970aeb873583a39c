/* start_line.h - the line that every command prints when it loads a model: what it runs on, and
 * why.
 *
 * Owner: none. Thread: any. Stage: start. */
#pragma once

#include "engine/start/device_choice.h"
#include "engine/start/planner.h"

typedef struct cn_start_facts {
    const char *model; /* as in --model */
    const cn_model_config *config;
    const cn_backend *backend;
    const cn_device_choice *choice;
    const cn_config *options;   /* NULL: no KV memory to speak of */
    const cn_memory_plan *plan; /* with options */
} cn_start_facts;

/* The name of the type of activations, as --dtype has it. */
const char *cn_start_dtype_name(cn_dtype t);

/* Writes the line without a newline. */
void cn_start_line_format(char *text, size_t size, const cn_start_facts *f);

/* Logs the line: as a warning if a GPU of the machine stays unused, else at info level. */
void cn_start_line_log(const cn_start_facts *f);
