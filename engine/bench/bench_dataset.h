/* bench_dataset.h - the prompts of a benchmark: random tokens, ShareGPT conversations, or lines of
 * JSON (texts, or the lengths of a workload), each with the number of tokens to generate.
 *
 * Owner: the caller. Thread: one. Stage: before the clock starts. */
#ifndef CN_BENCH_DATASET_H
#define CN_BENCH_DATASET_H

#include "engine/base.h"
#include "engine/options/options.h"
#include "engine/text/tokenizer.h"

typedef struct cn_bench_prompt {
    cn_tokens tokens;
    uint32_t output_len;
} cn_bench_prompt;

typedef struct cn_bench_dataset {
    cn_bench_prompt *prompts; /* [n] */
    uint32_t n, cap;
} cn_bench_dataset;

/* What the prompts are for. */
typedef struct cn_bench_model {
    uint32_t vocab, max_model_len;
    cn_tokenizer *tokenizer; /* NULL: token ids alone */
} cn_bench_model;

/* At most --num-prompts prompts, in the order of the file; none that the model's context cannot
 * hold with its output. random: lengths of --input-len and --output-len, both varied by
 * --random-range-ratio, token ids of the whole vocabulary, from --seed. sharegpt: the first two
 * turns; without --output-len as many tokens as the second has; as in vLLM, turns of under 4
 * tokens, prompts of over 1024 and sums of over 2048 are left out. custom: "prompt", and
 * "output_tokens" where --output-len does not say. --workload: lines of prompt_tokens and
 * output_tokens, all of them unless --num-prompts is given; prompts that name the same prefix have
 * their first prefix_tokens in common. CN_ERR_ARG when no prompt is left. */
cn_status cn_bench_dataset_load(cn_bench_dataset *out, const cn_config *c,
                                const cn_bench_model *m);
void cn_bench_dataset_free(cn_bench_dataset *d);

#endif
