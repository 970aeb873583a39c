/* select_memory.h - the sizes of the memory of selection, and its items in the start plan.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start. */
#pragma once

#include "engine/start/start_plan.h"

/* Sizes of the scratch; all 0 without selectors. Pointers are NULL. */
cn_select_scratch cn_select_scratch_of(const cn_config *c, const cn_model_config *m,
                                       uint32_t block_tokens);

/* Bytes of the logits of a candidate, all kv heads. */
uint64_t cn_select_logit_bytes(const cn_start_plan *p);

/* Adds the scratch, and the channels of labels. */
void cn_select_declare(cn_start_plan *p, cn_select_scratch *s, cn_digest *d);

/* Adds the channels of the labels of a digest and their offsets. The names are literals. */
void cn_select_declare_channels(cn_start_plan *p, cn_memory_part part, const char *channels,
                                const char *offsets, cn_digest *d);
