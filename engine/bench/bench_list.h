/* bench_list.h - the lists that options of `cinch bench throughput` take: numbers, batches, shares.
 *
 * Owner: the caller. Thread: any. */
#pragma once

#include "engine/base/base.h"

enum { CN_BENCH_MOST = 64 }; /* numbers of a list */

/* Numbers of an option; for --batches those of requests, each with the tokens that they hold. */
typedef struct cn_bench_numbers {
    uint32_t at[CN_BENCH_MOST], resident[CN_BENCH_MOST];
    uint32_t n;
} cn_bench_numbers;

typedef struct cn_bench_shares {
    float at[CN_BENCH_MOST];
    uint32_t n;
} cn_bench_shares;

/* Parses "1,8,32x4096": numbers from 1 to max. resident: that of a number without its own; 0:
 * numbers have none. CN_ERR_ARG names the option and what is expected. */
cn_status cn_bench_parse_numbers(cn_bench_numbers *out, const char *option, const char *text,
                                 uint32_t max, uint32_t resident);

/* Parses "0.01,0.1": shares above 0 and up to 1. */
cn_status cn_bench_parse_shares(cn_bench_shares *out, const char *option, const char *text);
