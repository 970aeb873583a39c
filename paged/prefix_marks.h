/* prefix_marks.h - tells other threads which prefixes a prefix cache probably has.
 * Owner: cn_prefix_cache. Thread: the engine's sets and clears; any thread asks, without a lock.
 *
 * A mark is the hash of all tokens of a prefix and of its owner. The table has one place for a
 * hash, and the newer of two marks takes it. So an answer may be wrong, both ways: it is good for a
 * choice between engines, and for nothing else. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_prefix_marks cn_prefix_marks;

/* For about n prefixes. CN_ERR_MEMORY. */
cn_status cn_prefix_marks_create(cn_prefix_marks **out, uint32_t n);
void cn_prefix_marks_free(cn_prefix_marks *m); /* NULL is fine */

/* The hash of the prefix that continues one with the hash `before` by tokens[n]. Never 0. */
uint64_t cn_prefix_hash(uint64_t before, const uint32_t *tokens, uint32_t n);

void cn_prefix_marks_set(cn_prefix_marks *m, uint64_t hash);
void cn_prefix_marks_clear(cn_prefix_marks *m, uint64_t hash);
bool cn_prefix_marks_has(const cn_prefix_marks *m, uint64_t hash);
