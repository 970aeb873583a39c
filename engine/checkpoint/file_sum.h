/* file_sum.h - hashes of the files of a checkpoint directory, without reading all of its weights.
 *
 * Owner: none. Thread: any. Stage: start.
 *
 * Of each .safetensors file of weights a hash covers name, size, the first 64 KiB (the header) and
 * 256 samples of 4 KiB spread over the rest. Training changes all of a tensor, so samples suffice.
 * Other files are covered whole. Names of directories, times and other files do not matter: a copy
 * has the same hash. examples/retrieval/train.py computes the hash of weights too. */
#pragma once

#include <dirent.h>

#include "engine/base/base.h"

/* Whether the name is that of a file of weights. select.safetensors and retrieval.safetensors are
 * none. */
bool cn_file_is_weights(const char *name);

/* Adds the files of dir for which keep returns 1, in the byte order of their names. CN_ERR_IO if
 * the directory cannot be read. */
cn_status cn_file_sum_add(uint64_t *h, const char *dir, int (*keep)(const struct dirent *));

/* The hash of the weights. */
cn_status cn_file_sum_weights(uint64_t *out, const char *dir);
