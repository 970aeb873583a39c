/* draft_head.h - the bundled checkpoint in a folder of its own, with a retrieval head that reads
 * states of the model. The head has random weights, so that its lists depend on every bit of the
 * states. Fails the test when that fails. */
#pragma once

#include "tests/lib/scratch_dir.h"

enum { DRAFT_HEAD_KV_HEADS = 2, DRAFT_HEAD_DIM = 32 };

void draft_head_open(scratch_dir *folder);
/* Writes the head anew, with fused states that are multiplied by `states`. */
void draft_head_write(const scratch_dir *folder, float states);
/* Writes the same head as a published EAGLE-3 file, with the other tensors of such a file and its
 * config.json. */
void draft_head_write_eagle(const scratch_dir *folder, float states);
