/* exchange_cost.h - what a step of a request moves from its home at most, and the batch up to which
 * these transfers hide behind the step. `cinch plan` prints it, and home `auto` (HOMES.md §13)
 * leaves out a home that would slow every step, unless a request fits nowhere else.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start. */
#pragma once

#include "compress/away.h"
#include "compress/selector.h"
#include "engine/checkpoint/model_config.h"
#include "engine/ops.h"
#include "engine/options/options.h"

/* The exchange of a request with the default parameters of a selector. */
typedef struct cn_exchange_cost {
    cn_kv_select select;
    cn_away away;
    uint64_t step_bytes;     /* K and V of `away.cap` entries in all units */
    double link_bytes_per_s; /* for entries of this size; 0: not measured */
    uint32_t hidden_batch;   /* requests up to which it hides; UINT32_MAX: any number */
} cn_exchange_cost;

/* Bytes per second. 0: not measured. */
typedef struct cn_exchange_rates {
    double read;          /* of the memory of the device */
    double tokens, tiles; /* of the link, for entries of this size */
} cn_exchange_rates;

/* The rates over a link that copies blocks at link_bytes_per_s. Loads of tiles from host memory
 * reach 92 % of it, of rows of single tokens a third. */
cn_exchange_rates cn_exchange_rates_of(cn_kv_home home, double read_bytes_per_s,
                                       double link_bytes_per_s);

/* Sets `out` to the exchanges of the declared selectors with a home. Returns their number. be: of
 * the device that runs the model. */
uint32_t cn_exchange_costs(cn_exchange_cost out[CN_N_SELECTORS], const cn_config *c,
                           const cn_model_config *m, const cn_backend *be, cn_kv_home home,
                           uint32_t block_tokens, const cn_exchange_rates *rates);
