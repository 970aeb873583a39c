/* bench.h - what the modes of `cinch bench throughput` share: one engine, requests that run to a
 * fixed length whatever the model says, and the counts of what has ended.
 *
 *   bench_throughput.c  a dataset, all at once, until it is done
 *   bench_steady.c      a steady state: requests of every age, replaced as they end
 *   bench_serve.c       none of it: a client of a running server
 *   bench_decode.c      single steps: decode at a given residency, prefill
 *
 * Owner: cn_cmd_bench. Thread: the engine's. */
#ifndef CN_BENCH_H
#define CN_BENCH_H

#include <jansson.h>

#include "engine/bench/bench_timeline.h"
#include "engine/engine_probe.h"

typedef struct cn_bench {
    cn_engine *engine;
    const cn_config *config;
    cn_timeline *timeline; /* NULL: none is wanted */
    uint64_t done, failed, prompt_tokens, output_tokens; /* of requests that ended */
} cn_bench;

/* Queues a request of exactly output_len tokens, of the configured sampling and kv policy.
 * CN_ERR_BUSY when the queue is full. request: its id, out; may be NULL. */
cn_status cn_bench_submit(cn_bench *b, const cn_tokens *prompt, uint32_t output_len,
                          uint64_t *request);

/* One engine step, and the timeline's row when it is time for one. */
cn_status cn_bench_step(cn_bench *b, bool *idle);

/* Replaces *out with n tokens of the whole vocabulary, the same for the same stream number. */
cn_status cn_bench_random_tokens(const cn_bench *b, uint64_t stream, uint32_t n, cn_tokens *out);

/* `cinch bench serve`: the dataset through a server's HTTP, request by request. */
cn_status cn_bench_serve(const cn_config *c);

/* The modes of throughput. Each prints its figures and leaves them in *json as an object. */
cn_status cn_bench_steady(cn_bench *b, json_t **json);
cn_status cn_bench_steps(cn_bench *b, json_t **json);

#endif
