/* key_index.h - numbers for keys, which are arrays of numbers: equal keys have one number.
 * Owner: the caller; cn_key_index_free. Thread: any; no state. */
#pragma once

#include "engine/base/base.h"

/* Numbers of keys, which are arrays of numbers, in the order in which they were found. */
typedef struct cn_key_index {
    uint32_t *data;  /* all keys, one after the other */
    uint32_t *at;    /* [n + 1] where key i begins in data */
    uint32_t *slots; /* [cap_slots] key + 1; 0: free */
    uint32_t n, cap, n_data, cap_data, cap_slots;
} cn_key_index;

void cn_key_index_free(cn_key_index *x);
/* The number of key[n], which is x->n if the key is new. CN_ERR_MEMORY. */
cn_status cn_key_index_number(cn_key_index *x, const uint32_t *key, uint32_t n, uint32_t *out);
