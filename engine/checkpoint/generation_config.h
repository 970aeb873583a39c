/* generation_config.h - the sampling defaults a checkpoint brings along.
 *
 * Owner: engine. Thread: any. Stage: start, before the first request. */
#ifndef CN_GENERATION_CONFIG_H
#define CN_GENERATION_CONFIG_H

#include "engine/base.h"
#include "engine/checkpoint/model_config.h"

/* generation_config.json. A field counts only when its has_ flag is set. */
typedef struct cn_generation_config {
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty;
    bool has_max_new_tokens;
    bool greedy; /* do_sample is there and false */
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    uint32_t max_new_tokens;
    uint32_t eos[CN_MAX_EOS];
    uint32_t n_eos;
} cn_generation_config;

/* Reads model_dir/generation_config.json; a directory without one gives an all-empty config.
 * CN_ERR_MODEL names the key and the value; other keys than the above are ignored. */
cn_status cn_generation_config_load(cn_generation_config *out, const char *model_dir);

/* From the text of a generation_config.json, `what` naming it in errors. */
cn_status cn_generation_config_parse(cn_generation_config *out, const char *text, size_t n,
                                     const char *what);

/* Overrides the defaults in *s with what the checkpoint says: the fields above; do_sample false
 * sets temperature 0. */
void cn_generation_config_apply(const cn_generation_config *g, cn_sampling *s);

/* All tokens that end a text: those of config.json and of generation_config.json, each once, in
 * that order, into out[2 * CN_MAX_EOS]. CN_ERR_MODEL when one is outside the vocabulary. */
cn_status cn_generation_config_eos(const cn_generation_config *g, const cn_model_config *c,
                                   uint32_t *out, uint32_t *n_out);

#endif
