/* bench_dataset.h - the prompts of a benchmark: random tokens, or lines of
 * JSON (texts, or the lengths of a workload), each with the number of tokens to generate.
 *
 * Owner: the caller. Thread: one. Stage: before the clock starts. */
#pragma once

#include "engine/base/base.h"
#include "engine/options/options.h"
#include "engine/text/tokenizer.h"

typedef struct cn_bench_prompt {
    cn_tokens tokens;
    uint32_t output_len;
} cn_bench_prompt;

typedef struct cn_bench_dataset {
    cn_bench_prompt *prompts; /* [n] */
    uint32_t n;
} cn_bench_dataset;

/* The model that the prompts are for. */
typedef struct cn_bench_model {
    uint32_t vocab, max_model_len;
    cn_tokenizer *tokenizer; /* NULL: only token ids */
} cn_bench_model;

/* Loads at most --num-prompts prompts, in the order of the file. Leaves out a prompt if it does not
 * fit into the model's context together with its output.
 *   random      lengths of --input-len and --output-len, both varied by --random-range-ratio;
 *               token ids of the whole vocabulary; all drawn from --seed
 *   custom      "prompt", and "output_tokens" unless --output-len is given
 *   --workload  lines of prompt_tokens and output_tokens, all of them unless --num-prompts is
 *               given; prompts that name the same prefix share their first prefix_tokens tokens
 * CN_ERR_ARG if no prompt is left. */
cn_status cn_bench_dataset_load(cn_bench_dataset *out, const cn_config *c,
                                const cn_bench_model *m);
void cn_bench_dataset_free(cn_bench_dataset *d);
