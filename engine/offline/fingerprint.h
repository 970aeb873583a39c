/* fingerprint.h - tells one checkpoint directory from another without reading all of it, so that a
 * run is not resumed with another model.
 *
 * Owner: none. Thread: any. Stage: start.
 *
 * Covers config.json, generation_config.json, the tokenizer's files and the index in full, and of
 * each .safetensors file its name, size, first 64 KiB (its header) and 256 samples of 4 KiB spread
 * over the rest: training changes all of a tensor, so samples tell. Names of directories, times
 * and other files do not matter: a copy has the same fingerprint. */
#ifndef CN_FINGERPRINT_H
#define CN_FINGERPRINT_H

#include "engine/base.h"

/* tokenizer_dir NULL: the model's. CN_ERR_IO when model_dir cannot be read. */
cn_status cn_fingerprint(uint64_t *out, const char *model_dir, const char *tokenizer_dir);

#endif
