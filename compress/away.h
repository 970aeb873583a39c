/* away.h - the homes as rows of one table, and the numbers of an away request: a request whose full
 * KV lies in a home space, on a cache device or in host memory. Pure functions; no device call.
 * HOMES.md.
 *
 * The block table of an away request is [X exchange blocks | policy blocks | spare]. Before its
 * first event the request is dense and has no exchange area. From the first event on the area is
 * always full, so all its slots are resident. `spade` and `last` attend to all of them. */
#pragma once

#include "engine/ops.h"

/* In the order of cn_kv_home. A request may ask for `auto`, which is no home: the scheduler gives
 * it one of the others. */
#define CN_HOME_NAMES "device|peer|host"
#define CN_HOME_CHOICES CN_HOME_NAMES "|auto"
enum { CN_N_HOMES = 3 };

/* What a home means for the requests that have it. */
typedef struct cn_home_kind {
    const char *name;
    bool is_away;    /* the full KV lies elsewhere, so there is an exchange area; `auto`: it may */
    bool is_chosen;  /* `auto`: at each admission the request gets one of the others */
    bool has_device; /* a cache device has the space, its digests and the scratch of exchanges;
                      * else K and V are in host memory, and the model's device has the rest */
    bool ranks_rows; /* each exchange can read all keys */
    uint32_t cap_share; /* by default an exchange replaces at most 1 / cap_share of the tokens */
} cn_home_kind;

/* The row of a home. A value that is not one of cn_kv_home has a row named "?". */
const cn_home_kind *cn_home_kind_of(cn_kv_home home);
/* The row of the home of a request. */
const cn_home_kind *cn_kv_home_kind(const cn_kv_params *kv);
static inline bool cn_kv_is_away(const cn_kv_params *kv) { return cn_kv_home_kind(kv)->is_away; }

/* The homes that a request may come to have: bit i is cn_kv_home i. These are `of_auto` with home
 * `auto`, and 0 with a value that is not one of cn_kv_home. */
uint32_t cn_kv_homes(const cn_kv_params *kv, uint32_t of_auto);

/* Makes a request keep and read all KV, on the device. */
void cn_kv_keep_all(cn_kv_params *kv);

typedef struct cn_away {
    uint32_t n_exchange;   /* X, blocks of the exchange area; 0: the request is not away */
    uint32_t entry_tokens; /* of an exchange entry: 1, or 64 for tiles */
    uint32_t n_entries;    /* entries of the area of a unit: X * b / entry_tokens */
    uint32_t cap;          /* most entries that one exchange replaces in a unit; at least 1 */
} cn_away;

/* Selectors that an away request may have: bit i is cn_kv_select i. */
uint32_t cn_away_selectors(void);

/* The other members of a kv object that are read because of its home: "home select_cap". */
const char *cn_away_params(const cn_kv_params *kv);

/* The parameters that a request with home `auto` has once it is given this home. On the device it
 * keeps all KV, so its policy is `full`; elsewhere the policy says what stays on the device.
 * Returns kv unchanged if its home is not `auto`. */
cn_kv_params cn_away_form(const cn_kv_params *kv, cn_kv_home home);

/* The longest request, in tokens of KV, of which n_requests fit whole into n_blocks blocks. This
 * is the threshold of home `auto`, for the device and for another home. */
uint32_t cn_home_longest(uint64_t n_blocks, uint32_t n_requests, uint32_t block_tokens);

/* kv has been checked. All 0 for home `device`. */
cn_away cn_away_of(const cn_kv_params *kv, uint32_t block_tokens);

/* Tokens that a policy `window` keeps beside an exchange area by default: one block, at least 128
 * tokens. */
uint32_t cn_away_budget(uint32_t block_tokens);

/* Block cap N_max = X + ceil(budget / b) + 1. 0 for a policy without a cap. */
uint32_t cn_away_n_max(const cn_kv_params *kv, uint32_t block_tokens);

/* What an exchange ranks. home_len: tokens that were home at the request's last commit. */
typedef struct cn_away_span {
    uint32_t base; /* position of the first candidate: a multiple of an entry */
    uint32_t n;    /* candidates, in entries */
    bool excludes_held; /* policy `zip`: tokens that the policy's area holds are no candidates.
                         * Otherwise the range has none of them. */
} cn_away_span;
cn_away_span cn_away_span_of(const cn_kv_params *kv, uint32_t home_len, uint32_t block_tokens);

/* Checks kv.home against policy and selector, and completes the parameters: policy `full` with an
 * away home becomes `window` with cn_away_budget. kv.home is not `auto`. Call before
 * cn_selector_check, which rounds select_tokens and sink_tokens up, and cn_policy_check. CN_ERR_ARG
 * names field, value and the way out. */
cn_status cn_away_check(cn_kv_params *kv, uint32_t block_tokens);
