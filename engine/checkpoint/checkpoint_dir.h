/* checkpoint_dir.h - what --model names, before any file of it is read.
 * Owner: none. Thread: any. Stage: start. */
#pragma once

#include "engine/base/base.h"

/* Refuses a file, and a directory that has GGUF files instead of a checkpoint: CN_ERR_MODEL says
 * how to convert them. CN_ERR_IO if nothing is there. */
cn_status cn_checkpoint_dir_check(const char *dir);

/* Refuses a directory that has a GGUF file, for a caller that found no file it can read; else
 * CN_OK. */
cn_status cn_checkpoint_dir_refuse_gguf(const char *dir);
