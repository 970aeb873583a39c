/* overflow_model.h - the bundled checkpoint with finite weights whose keys overflow, so that all
 * logits are NaN. Thread: the test's. */
#ifndef CN_TEST_OVERFLOW_MODEL_H
#define CN_TEST_OVERFLOW_MODEL_H

#include "tests/lib/scratch_dir.h"

/* Creates the directory. Aborts on failure. */
void overflow_model_open(scratch_dir *d);

#endif
