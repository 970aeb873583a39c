/* bench.h - shared by the modes of `cinch bench throughput`: one engine, requests of a fixed output
 * length, and counters of the requests that have ended.
 *
 *   bench_throughput.c  a dataset: all requests at once, until all have ended
 *   bench_lanes.c       the same on several engines
 *   bench_steady.c      a steady state: requests of every age, replaced as they end
 *   bench_serve.c       uses none of this: it is a client of a running server
 *   bench_decode.c      single steps: decode with a given number of resident tokens, and prefill
 *
 * Owner: cn_cmd_bench. Thread: the engine's. */
#pragma once

#include <jansson.h>

#include "engine/bench/bench_dataset.h"
#include "engine/bench/bench_timeline.h"
#include "engine/compare/compare_arms.h"
#include "engine/engine_probe.h"
#include "engine/offline/progress.h"

typedef struct cn_bench {
    cn_engine *engine;
    cn_config *config;
    cn_kv_params kv; /* of submitted requests */
    cn_compare_arms arms;  /* of --arms; n is 0 without */
    cn_timeline *timeline; /* NULL: no timeline */
    uint64_t done, failed, prompt_tokens, output_tokens; /* of requests that ended */
    cn_progress progress;
    uint64_t n_requests, n_tokens;  /* all requests and their output tokens; 0: not known */
    const volatile int *stop_asked; /* set by the caller's signal handler */
    bool interrupted;               /* a signal ended the measurement; its figures are partial */
} cn_bench;

/* Of a dataset. */
typedef struct cn_bench_figures {
    cn_stats stats;
    double elapsed_s, stalled_s;
} cn_bench_figures;

/* Submits a request with exactly output_len output tokens, the configured sampling and
 * b->kv. CN_ERR_BUSY if the queue is full. *request is set to its id; request may be
 * NULL. */
cn_status cn_bench_submit(cn_bench *b, const cn_tokens *prompt, uint32_t output_len,
                          uint64_t *request);

/* Runs one engine step, writes a row of the timeline if one is due, and shows the progress.
 * CN_ERR_DEVICE if a request failed, CN_ERR_CANCELLED after a signal. */
cn_status cn_bench_step(cn_bench *b, bool *idle);

/* Replaces *out with n random tokens of the whole vocabulary. --seed and the stream number
 * determine them. */
cn_status cn_bench_random_tokens(const cn_bench *b, uint64_t stream, uint32_t n, cn_tokens *out);

/* `cinch bench serve`: sends the dataset to a server over HTTP, one request per prompt. */
cn_status cn_bench_serve(const cn_config *c);

/* What the modes check before memory is allocated and weights are read: that all requests fit. */
cn_status cn_bench_check_steady(const cn_bench *b);
cn_status cn_bench_check_steps(cn_bench *b);

/* Loads the dataset for the model of b->engine, and checks that every request fits. */
cn_status cn_bench_load_dataset(cn_bench *b, cn_bench_dataset *d);
/* Prints the figures, and sets *json to them, an object. */
cn_status cn_bench_report(cn_bench *b, const cn_bench_figures *f, uint32_t n_requests,
                          json_t **json);
/* The dataset on the engines of --data-parallel-size or --devices. b has no engine. */
cn_status cn_bench_lanes(cn_bench *b, json_t **json);

/* Modes of `cinch bench throughput`. Each prints its figures and returns them in *json, an
 * object. */
cn_status cn_bench_steady(cn_bench *b, json_t **json);
cn_status cn_bench_steps(cn_bench *b, json_t **json);
