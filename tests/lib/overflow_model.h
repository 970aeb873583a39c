/* overflow_model.h - the bundled checkpoint with finite weights whose keys overflow, so that all
 * logits are NaN. Thread: the test's. */
#pragma once

#include "tests/lib/scratch_dir.h"

/* Creates the directory. Aborts on failure. */
void overflow_model_open(scratch_dir *d);
