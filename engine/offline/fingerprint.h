/* fingerprint.h - identifies a checkpoint directory without reading all of it, so that a run is not
 * resumed with another model.
 *
 * Owner: none. Thread: any. Stage: start.
 *
 * Covers the whole of config.json, generation_config.json, the tokenizer's files and the index, and
 * samples of the weights (file_sum.h).
 *
 * select.safetensors and retrieval.safetensors have fingerprints of their own, because only runs
 * with selectors that rank labels, or with `spec`, depend on them. */
#pragma once

#include "engine/base/base.h"

/* Whether the engine reads a file of this name in a checkpoint directory. */
bool cn_fingerprint_covers(const char *name);

/* tokenizer_dir NULL: the tokenizer is in model_dir. CN_ERR_IO if a directory cannot be read. */
cn_status cn_fingerprint(uint64_t *out, const char *model_dir, const char *tokenizer_dir);

/* The same of select.safetensors alone; 0 when there is none. */
cn_status cn_fingerprint_channels(uint64_t *out, const char *model_dir);

/* The same of retrieval.safetensors and retrieval.json alone; 0 when there is none. */
cn_status cn_fingerprint_head(uint64_t *out, const char *model_dir);

/* The same of the file of --chat-template; 0 when the value is not a file. */
cn_status cn_fingerprint_template(uint64_t *out, const char *chat_template);
