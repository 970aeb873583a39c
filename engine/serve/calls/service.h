/* service.h - the engines behind the server: an intake thread that turns JSON into tokens and
 * chooses an engine, a thread for each engine (engine/lanes/lane.h), and their counters.
 *
 * Owner: cn_server. Thread: create, load and free on one thread at a time; calls (call.h) on any
 * thread that has a mailbox; statistics on any thread.
 *
 * Why an intake thread: parsing and tokenising a body of several megabytes takes longer than a
 * step. Neither the HTTP loop nor decoding requests may wait for that. The intake thread has its
 * own tokenizer. It takes short interactive requests before batch requests, and starts a thread for
 * each long one (intake_long.c). */
#pragma once

#include "engine/engine.h"
#include "engine/offline/time_forecast.h"
#include "engine/serve/calls/call.h"
#include "engine/serve/calls/serve_stats.h"

/* Creates the service without its engine. Its counters exist, but no call may be started yet. */
cn_status cn_service_create(cn_service **out, const cn_config *config);
/* Loads the model into all engines, then starts the intake. Call it once. */
cn_status cn_service_load(cn_service *s);
/* Cancels running requests and joins the threads. False: an engine hangs in a step, and nothing
 * that it may use can be freed. */
bool cn_service_stop(cn_service *s);
/* Ends cancelled calls of engines that hang, for a server that stops since then (cn_now_s). HTTP
 * thread, now and then. */
void cn_service_end_cancelled(cn_service *s, double since_s);
/* Stops the service and frees the engines, if none hangs. All calls must have been released, and
 * their update messages opened. NULL is fine. */
void cn_service_free(cn_service *s);

const cn_config *cn_service_config(const cn_service *s);
/* The names of the model in requests; responses have the first. */
const cn_served_names *cn_service_names(const cn_service *s);
const char *cn_service_model_name(const cn_service *s);
uint32_t cn_service_max_model_len(const cn_service *s);
cn_step_cost cn_service_step_cost(const cn_service *s); /* of requests with the default policy */

/* The values of parameters that a request does not set. */
const cn_api_defaults *cn_service_defaults(const cn_service *s);

/* ---- the engines ---- */

/* False when every engine has failed: every call then ends with an error. _failure appends the
 * causes to text. */
bool cn_service_is_healthy(cn_service *s);
void cn_service_failure(cn_service *s, cn_buf *text);

/* Gives requests of an engine whose step does not end to the others. HTTP thread, now and then. */
void cn_service_watch(cn_service *s);

/* True when the engines that have not failed stall: each makes a turn, one step and the messages
 * before it, for longer than --health-stall. now_s: cn_now_s(). _stall appends the reason. */
bool cn_service_is_stalled(const cn_service *s, double now_s);
void cn_service_stall(const cn_service *s, double now_s, cn_buf *text);

typedef struct cn_engine_figures {
    const char *device; /* "cuda:2" */
    const char *uuid;   /* of the GPU, or "" */
    cn_stats stats;     /* after the last step */
    double turn_s;      /* since its turn began; 0 while it waits for requests */
    bool is_up;         /* it has not failed and does not stall */
    const char *failure; /* NULL, or why a step failed */
} cn_engine_figures;
uint32_t cn_service_n_engines(const cn_service *s);
void cn_service_engine_figures(cn_service *s, uint32_t i, cn_engine_figures *out);
/* The sums over all engines. */
void cn_service_engine_stats(cn_service *s, cn_stats *out);

/* The server's counters. */
cn_serve_stats *cn_service_serve_stats(cn_service *s);
/* --max-buffered-bytes: host memory of bodies and of the requests made from them. */
cn_budget *cn_service_memory(cn_service *s);

/* The body of a /tokenize or /detokenize request, handled on the intake thread, which has the
 * tokenizer. */
typedef struct cn_token_job cn_token_job;
struct cn_token_job {
    cn_mail mail; /* mail and service are set by the service */
    cn_service *service;
    uint32_t owner; /* cn_request_params.owner */
    bool decode;    /* /detokenize */
    cn_buf body;   /* JSON text; the caller frees it, after done() */
    json_t *reply; /* out, with CN_OK; the caller drops the reference */
    cn_status status;
    cn_buf error, at_fault; /* the text; the invalid field, or empty */
    cn_mailbox *reply_to;
    void (*done)(cn_token_job *job); /* runs on the thread of reply_to */
};
/* False when too many requests wait at the intake. The job must live until done() is called. */
bool cn_service_try_tokens(cn_service *s, cn_token_job *job);
