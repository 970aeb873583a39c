/* generation_config.h - the sampling defaults of a checkpoint.
 *
 * Owner: engine. Thread: any. Stage: start, before the first request. */
#pragma once

#include "engine/base/base.h"
#include "engine/checkpoint/model_config.h"

/* generation_config.json. A field is valid only if its has_ flag is set. */
typedef struct cn_generation_config {
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty;
    bool greedy; /* do_sample is given and false */
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    uint32_t max_new_tokens; /* 0: not set */
    uint32_t eos[CN_MAX_EOS];
    uint32_t n_eos;
} cn_generation_config;

/* Reads model_dir/generation_config.json. If the file does not exist, no field is set. CN_ERR_MODEL
 * names an invalid key and its value; unknown keys are ignored. */
cn_status cn_generation_config_load(cn_generation_config *out, const char *model_dir);

/* The same from the text of a generation_config.json; `what` names it in errors. */
cn_status cn_generation_config_parse(cn_generation_config *out, const char *text, size_t n,
                                     const char *what);

/* Overwrites the fields of *s that the checkpoint sets, but max_tokens: max_new_tokens is a limit
 * that a prompt may leave no room for. do_sample false sets temperature 0. */
void cn_generation_config_apply(const cn_generation_config *g, cn_sampling *s);

/* Writes all EOS tokens to out[2 * CN_MAX_EOS]: those of config.json, then those of
 * generation_config.json, each once. CN_ERR_MODEL when one is outside the vocabulary. */
cn_status cn_generation_config_eos(const cn_generation_config *g, const cn_model_config *c,
                                   uint32_t *out, uint32_t *n_out);
