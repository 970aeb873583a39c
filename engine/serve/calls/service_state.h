/* service_state.h - the internals of a call and of the service, shared by call.c, intake.c,
 * intake_tokens.c, engine_choice.c, engine_thread.c and service.c. Internal to these.
 *
 * A call has a reference count. Its owner, its way through the threads, and each cancel or update
 * message in flight hold one reference. `lock` protects the fields that threads share. Every other
 * field belongs to one thread at a time and passes to the receiver with the message. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "engine/base/json.h"
#include "engine/lanes/lane.h"
#include "engine/lanes/lane_engines.h"
#include "engine/serve/calls/service.h"
#include "engine/serve/calls/turns.h"
#include "engine/text/chat_template.h"
#include "engine/token_rules.h"

/* A larger body is read after the smaller ones that wait. */
enum { CN_LARGE_BODY_BYTES = 64 << 10 };

/* As CN_BATCH_MOST_LOST: a request that so many engines failed with may be the cause. */
enum { CN_CALL_MOST_LOST = 3 };

/* Times (cn_now_s) of the start, of the acceptance by the engine, of the first admission by its
 * scheduler, and of the first and the latest token; 0: not yet. */
typedef struct call_times {
    double started_s, submitted_s, admitted_s, first_token_s, last_token_s;
} call_times;

/* What an engine has, and what is on its way there: added by who chooses the engine, and removed on
 * the engine's thread. */
typedef struct cn_lane_load {
    atomic_uint samples[2];   /* not ended, by cn_class */
    atomic_ullong tokens[2]; /* of the prompts and outputs of calls that have not ended */
    /* Calls that one more failure ends. An engine gets one at a time if others have none, so that
     * not all calls of a failed engine follow the one that made it fail. */
    atomic_uint suspects;
} cn_lane_load;

/* An engine of the service, with its thread. */
typedef struct cn_service_lane {
    cn_lane lane;
    cn_service *service;
    cn_lane_load load;
    /* Its thread has the lock while it works on a call, so that the calls can be taken away from an
     * engine that hangs. It protects the lists, and the fields of their calls. */
    pthread_mutex_t lock;
    cn_list posted;  /* calls in the lane's mailbox */
    cn_list active;  /* calls that the engine has accepted and not ended */
    cn_list orphans; /* submissions whose call was taken away */
    bool is_stalled; /* the HTTP thread has told so */
    /* its thread's */
    uint64_t n_steps, n_tokens; /* at the end of the last step */
} cn_service_lane;

/* A call as an engine has it. */
typedef struct cn_submission {
    cn_list_node node; /* of `orphans` */
    cn_service_lane *at;
    cn_call *call;   /* NULL: it was taken away, and what the engine says of it is dropped */
    uint64_t first;  /* of its engine requests */
    uint32_t n, n_left; /* all, and those that have not ended */
} cn_submission;

struct cn_call {
    cn_mail mail;        /* to the intake, then to the engine */
    cn_mail cancel_mail; /* to the engine; posted at most once */
    cn_service_lane *cancel_at;
    cn_mail update_mail; /* to the owner */
    atomic_uint refs;
    atomic_bool cancelled;
    cn_service *service;
    cn_class klass;

    /* the owner's */
    cn_mailbox *reply_to;
    cn_call_update_fn update;
    void *user;
    bool released;

    /* the thread's that reads the request, then the engine thread's; read-only when the call is
     * over */
    cn_buf body;
    cn_api_endpoint endpoint;
    char *custom_id;
    cn_api_request parsed;
    const cn_api_request *request;
    /* One for each prompt of the request, which may be gone when the call ends. */
    cn_tokens *tokens;
    uint32_t n_tokens;
    cn_bad_words *bad_words;
    bool is_read; /* it has taken its samples and memory; the intake sees it again if it moves */

    _Atomic(cn_service_lane *) at; /* NULL: at the intake */
    uint32_t load_samples;         /* what it adds to the load of `at` */
    uint64_t load_tokens;
    bool load_suspect;
    uint32_t n_lost; /* engines that have failed with it */

    /* the engine thread's */
    cn_list_node node; /* of `posted` or `active` */
    cn_submission *submission;
    bool was_accepted; /* by an engine; another one that gets it does not refuse it */
    bool has_begun;    /* the time to its first token has been observed */
    bool too_long; /* the output exceeds --max-reply-bytes */
    uint32_t owner;
    int32_t min_priority;
    cn_budget *samples;  /* of the key, or NULL */
    uint64_t held_bytes; /* taken from service->memory */
    uint32_t held_samples; /* taken from samples, besides the exchange's */
    double *last_s; /* [n] time of the last delivery of each sample */

    pthread_mutex_t lock;  /* protects the fields below */
    cn_api_result *result; /* NULL before the engine has the request */
    bool over, update_in_flight;
    bool is_suspect; /* CN_CALL_MOST_LOST engines have failed with it, and others work */
    bool was_read; /* the owner has looked at the output */
    cn_status status;
    cn_buf error, at_fault;
    call_times times;
};

struct cn_service {
    cn_config *config;
    cn_lane_engines engines;
    cn_service_lane *lanes; /* [engines.n] */
    uint32_t n_lanes;       /* opened; of the thread that loads, until the intake starts */
    atomic_uint n_ready;    /* for the HTTP thread: 0, or n_lanes when all are loaded */
    cn_mailbox *load_box;   /* of the thread that loads */
    uint32_t n_loaded;
    cn_api_defaults defaults;
    cn_api_unknown unknown;
    cn_served_names names;
    uint32_t max_model_len;
    cn_step_cost step_cost;
    double stall_s; /* a longer turn of an engine's thread is a stall; 0: none is */
    cn_serve_stats *serve_stats;
    cn_budget memory;

    /* the intake thread's */
    pthread_t intake_thread;
    bool has_intake;
    cn_mailbox *intake_box;
    cn_mail intake_stop_mail;
    bool intake_untrimmed; /* large requests have ended since memory was last returned */
    cn_list long_waiting, long_running; /* large requests */
    uint32_t n_long;                    /* of both */

    /* of the intake thread and those of large requests, which only read all but the turns */
    atomic_bool intake_stop;
    cn_tokenizer *tokenizer; /* not the engine's; it encodes in turns */
    cn_turns *turns;
    cn_chat_template *chat;
    uint32_t vocab;
    cn_json_limits json_limits; /* of a body */
    size_t longest_token;       /* bytes */

    pthread_mutex_t choice_lock; /* protects the field below */
    uint32_t next_lane;          /* of equal engines, the first to look at */
};

/* call.c */
void cn_call_unref(cn_call *call);
void cn_call_free_tokens(cn_call *call);
/* Ends the call with this status and, unless it is CN_OK, the thread's last error as its text.
 * Tells the owner and drops the reference of the call's way through the threads. */
void cn_call_finish(cn_call *call, cn_status status);
/* Posts an update message to the owner, unless one is in flight. */
void cn_call_post_update(cn_call *call);

/* intake.c */
cn_status cn_intake_open(cn_service *s);
void *cn_intake_main(void *service);
void cn_intake_stop(cn_service *s);
void cn_intake_take(cn_mail *mail); /* opens the message of a call */
/* Parses a body. *bytes: what its tree takes from the budget of memory beyond the text, which the
 * exchange has taken; the caller gives it back. CN_ERR_BUSY: the budget has no room now. */
cn_status cn_intake_parse(cn_service *s, const cn_buf *text, json_t **body, uint64_t *bytes);

/* Who encodes texts at the intake. */
typedef struct cn_intake_turn {
    cn_service *service;
    const atomic_bool *cancelled; /* NULL: never */
    bool is_long;
} cn_intake_turn;

/* intake_long.c */

typedef struct cn_intake_long {
    uint32_t owner;
    cn_class klass;
    size_t bytes; /* of the body, or of the texts */
} cn_intake_long;
/* Calls run(object), on a thread of its own, when the large requests of this owner and class that
 * came before have ended. Intake thread. */
void cn_intake_run_long(cn_service *s, const cn_intake_long *o, void (*run)(void *object),
                        void *object);
/* Waits for mail. A second after the last large request returns its memory. Intake thread. */
void cn_intake_rest(cn_service *s);
/* How a text is encoded. `turn` is borrowed. */
cn_encode_opts cn_intake_encode_opts(const cn_intake_turn *turn);

/* intake_tokens.c */
cn_status cn_intake_token_job(cn_token_job *job, bool is_long);

/* engine_choice.c */
/* Chooses the engine of a call whose prompts are tokens, and adds the call to its load. Any thread
 * that reads requests. */
cn_service_lane *cn_engine_choose(cn_service *s, cn_call *call);
/* Removes the call, or one of its samples, from the load of its engine. Engine thread. */
void cn_engine_unload(cn_call *call);
void cn_engine_unload_sample(cn_call *call);
/* False: it has failed, or its step does not end. */
bool cn_engine_is_up(const cn_service_lane *at);

/* engine_thread.c */
/* Sends a call to its engine. Any thread that reads requests. */
void cn_engine_thread_post(cn_call *call);
/* Gives what engines that hang have and their clients have not seen to the other engines, and ends
 * what its clients have cancelled. HTTP thread, now and then. The log of the only engine is its
 * caller's. */
void cn_engine_thread_watch(cn_service *s);
/* Ends the calls of an engine that hangs which their clients have cancelled. HTTP thread. */
void cn_engine_thread_end_cancelled(cn_service_lane *at);
void cn_engine_thread_cancel(cn_mail *mail);
void cn_engine_thread_step(cn_lane *lane, double seconds);
void cn_engine_thread_end(cn_lane *lane, cn_status status);
