/* linked_products.h - the CPU backend with products that compute the norm between them
 * (cn_norm_link), which it does not have itself. A readable version of what a GPU does, so that the
 * forward pass with links is tested without one. Thread: the test's. */
#pragma once

#include "engine/ops.h"

/* Copies the table of a CPU backend whose ops run on the calling thread, and adds links. The copy
 * is valid as long as the backend. One backend at a time. */
void linked_products_open(cn_backend *linked, const cn_backend *cpu);

/* Returns how many second products of a link have run since linked_products_open. */
uint32_t linked_products_count(void);
