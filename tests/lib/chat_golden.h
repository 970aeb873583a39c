/* chat_golden.h - reads tests/golden/chat_template/cases.json (its README describes it).
 * Thread: the test's. */
#pragma once

#include <jansson.h>

#include "tests/lib/scratch_dir.h"

/* Aborts when the file cannot be read. */
json_t *chat_golden_load(void);
/* Writes a tokenizer_config.json with the special tokens of the golden file. */
void chat_golden_put_tokens(const json_t *golden, const scratch_dir *dir);
/* A copy of text in which <<%Y-%m-%d>> and the like are dates of today. Free it. */
char *chat_golden_dates(const char *text);
