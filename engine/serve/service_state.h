/* service_state.h - the insides of a call and of the service, shared by call.c (the owner's side),
 * intake.c, engine_thread.c and service.c. Internal to these.
 *
 * A call is counted: its owner, its way through the threads, and each message under way hold one
 * reference. What its threads share is under `lock`; the rest belongs to one of them at a time,
 * handed over with the message. */
#ifndef CN_SERVICE_STATE_H
#define CN_SERVICE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/serve/service.h"
#include "engine/text/chat_template.h"

/* cn_now_s at which it was started, accepted by the engine, brought its first and its latest token;
 * 0: not yet. */
typedef struct call_times {
    double started_s, submitted_s, first_token_s, last_token_s;
} call_times;

struct cn_call {
    cn_mail mail;        /* on its way: intake, then engine */
    cn_mail cancel_mail; /* to the engine, at most once */
    cn_mail news_mail;   /* to the owner */
    atomic_uint refs;
    atomic_bool cancelled;
    cn_service *service;
    cn_class klass;

    /* owner's */
    cn_mailbox *reply_to;
    cn_call_news_fn news;
    void *user;
    bool released;

    /* intake's, then the engine's, then nobody's */
    cn_buf body;
    cn_api_endpoint endpoint;
    char *custom_id;
    cn_api_request parsed;
    const cn_api_request *request;
    cn_tokens tokens;

    /* engine's */
    cn_list_node node; /* of service->active */
    uint64_t engine_request;
    bool submitted;
    double *last_s; /* [n] last delivery of each sample */

    pthread_mutex_t lock;
    cn_api_result *result; /* NULL before it was accepted */
    bool over, news_under_way;
    cn_status status;
    cn_buf error, at_fault;
    call_times times;
};

struct cn_service {
    cn_config *config;
    cn_engine *engine;
    cn_api_defaults defaults;
    uint32_t max_model_len;
    cn_serve_stats *serve_stats;

    /* intake */
    pthread_t intake_thread;
    cn_mailbox *intake_box;
    cn_mail intake_stop_mail;
    bool intake_stop;
    cn_tokenizer *tokenizer; /* its own: encoding has scratch memory */
    cn_chat_template *chat;
    uint32_t vocab;
    size_t max_prompt_bytes; /* more cannot fit the context, however it is cut into tokens */
    cn_buf prompt_text;

    /* engine */
    pthread_t engine_thread;
    cn_mailbox *engine_box;
    cn_mail engine_stop_mail;
    bool engine_stop, engine_idle;
    cn_list active; /* calls that the engine has accepted and not ended */
    uint32_t n_threads; /* started */

    pthread_mutex_t lock;
    cn_stats stats; /* after the last step */
    bool failed;
    cn_buf failure;
};

/* call.c */
void cn_call_unref(cn_call *call);
/* Ends the call with the thread's last error (unless CN_OK), tells the owner, drops the reference
 * of its way. */
void cn_call_finish(cn_call *call, cn_status status);
/* Tells the owner that there is something, unless it has been told and not looked yet. */
void cn_call_tell(cn_call *call);

/* intake.c */
cn_status cn_intake_open(cn_service *s);
void *cn_intake_main(void *service);
void cn_intake_stop(cn_service *s);
void cn_intake_take(cn_mail *mail); /* opens a call's message */
/* Tokens of a prompt, unless it is too long to fit whatever its tokens are. */
cn_status cn_intake_tokens(cn_service *s, const cn_request_params *p, cn_tokens *out);

/* intake_tokens.c */
cn_status cn_intake_token_job(cn_token_job *job);

/* engine_thread.c */
void *cn_engine_thread_main(void *service);
void cn_engine_thread_stop(cn_service *s);
void cn_engine_thread_take(cn_mail *mail);
void cn_engine_thread_cancel(cn_mail *mail);

#endif
