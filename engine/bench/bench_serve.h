/* bench_serve.h - what `cinch bench serve` measures for each request, and the figures of a run.
 *
 *   bench_serve.c         sends the dataset's requests, records when pieces arrive
 *   bench_serve_report.c  the figures, under the names of `vllm bench serve`
 *   bench_http.c          the client
 *
 * Owner: cn_bench_serve. Thread: one. */
#pragma once

#include <jansson.h>

#include "engine/options/options.h"

typedef struct cn_served {
    double sent_s, first_s, last_s, end_s; /* cn_now_s; first and last piece of text, or 0 */
    double *gaps_s;                        /* [n_gaps] between two pieces */
    uint32_t n_gaps;
    uint64_t prompt_tokens, output_tokens; /* as the server counts them */
    bool completed;
    char error[128];
} cn_served;

/* Returns the figures of a run as an object, with detail arrays under --save-detailed; NULL if out
 * of memory. */
json_t *cn_served_figures(const cn_served *requests, uint32_t n, const cn_config *c,
                          const char *model, double duration_s);
/* Prints such an object as a table. */
void cn_served_print(const json_t *figures);
