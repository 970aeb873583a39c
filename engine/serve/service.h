/* service.h - the engine behind the server: an intake thread that turns JSON into tokens, the
 * engine thread that owns cn_engine and steps it, and what both count.
 *
 * Owner: cn_server. Thread: create, load and free on one at a time; calls (call.h) from any thread
 * that has a mailbox; statistics from any.
 *
 * Why an intake thread: parsing and tokenising a body of megabytes takes longer than a step, and
 * neither the HTTP loop nor the requests that decode may wait for it. It has a tokenizer of its
 * own. Interactive requests overtake batch ones there as in the scheduler. */
#ifndef CN_SERVICE_H
#define CN_SERVICE_H

#include "engine/engine.h"
#include "engine/serve/call.h"
#include "engine/serve/serve_stats.h"

/* The service without its engine: what counts is there, nothing may be asked of it. */
cn_status cn_service_create(cn_service **out, const cn_config *config);
/* Loads the model, then starts both threads. Once. */
cn_status cn_service_load(cn_service *s);
/* Cancels what runs, waits for both threads, frees the engine. All calls must have been released.
 * NULL is fine. */
void cn_service_free(cn_service *s);

const cn_config *cn_service_config(const cn_service *s);
/* "--served-model-name", else --model. */
const char *cn_service_model_name(const cn_service *s);
uint32_t cn_service_max_model_len(const cn_service *s);

/* What a request that says nothing gets: for cn_batch_item_read. */
const cn_api_defaults *cn_service_defaults(const cn_service *s);

/* Whether the engine works. After a device fault every call ends in error, and text has why. */
bool cn_service_is_healthy(cn_service *s);
void cn_service_failure(cn_service *s, cn_buf *text);

/* The engine's figures after its last step, and the server's counters: copies. */
void cn_service_engine_stats(cn_service *s, cn_stats *out);
cn_serve_stats *cn_service_serve_stats(cn_service *s);

/* The body of /tokenize or /detokenize, answered on the intake thread, which has the tokenizer. */
typedef struct cn_token_job cn_token_job;
struct cn_token_job {
    cn_mail mail; /* these two are the service's */
    cn_service *service;
    bool decode;
    cn_buf body;   /* JSON text; the job's to free, once done */
    json_t *reply; /* out, with CN_OK; the taker's */
    cn_status status;
    cn_buf error;
    cn_mailbox *reply_to;
    void (*done)(cn_token_job *job); /* on the thread of reply_to */
};
/* False when too many wait. The job must live until done() is called. */
bool cn_service_try_tokens(cn_service *s, cn_token_job *job);

#endif
