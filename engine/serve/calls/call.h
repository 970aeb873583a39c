/* call.h - one request to the engine from any part of the server, and its answer.
 *
 *     owner's thread          intake thread             engine thread           owner's thread
 *   cn_call_start --mail--> parse, check, tokenise --mail--> submit, step ... --mail--> update()
 *   cn_call_cancel ---------------------------------mail--> cancel
 *
 * Owner: the caller of cn_call_start(), until cn_call_release(). Thread: the owner's thread, which
 * is the one that empties the mailbox `reply_to`; update() runs on it too.
 *
 * Each call collects its output in one cn_api_result. A slow reader gets one large piece instead of
 * many small ones, so its unread output is bounded by what the request may generate. At most one
 * update message of a call is in flight. */
#pragma once

#include "engine/api/api_request.h"
#include "engine/api/api_response.h"
#include "engine/base/budget.h"
#include "engine/base/mailbox.h"

typedef struct cn_service cn_service; /* service.h: the intake and engine threads */
typedef struct cn_call cn_call;

/* Called when there is something new: output of a streamed call, or the end. */
typedef void (*cn_call_update_fn)(void *user, cn_call *call);

typedef struct cn_call_opts {
    /* Exactly one of the two. request: already parsed (batch lines), borrowed until the call is
     * released and over. body: JSON text, which the call takes over even on failure. */
    const cn_api_request *request;
    cn_buf body;
    cn_api_endpoint endpoint; /* of body */
    cn_class klass;
    uint32_t owner;       /* cn_request_params.owner */
    int32_t min_priority; /* the lowest that the request may set */
    cn_budget *samples; /* of the key; the caller has taken one. NULL: no limit */
    const char *custom_id; /* enters the seed when the request has none; copied; may be NULL */
    cn_mailbox *reply_to;
    cn_call_update_fn update;
    void *user;
} cn_call_opts;

/* CN_ERR_BUSY: too many requests wait at the intake. On failure there is no call, and body is
 * freed. */
cn_status cn_call_start(cn_call **out, cn_service *s, cn_call_opts *o);

/* Requests an early end. The call ends with CN_ERR_CANCELLED, or normally if it finished first. The
 * engine frees the request's KV at its next step. */
void cn_call_cancel(cn_call *call);
/* Drops the owner's reference: cancels the call if it runs, and calls update() no more. A borrowed
 * request must stay valid until the call is over: release such a call only then. NULL is fine. */
void cn_call_release(cn_call *call);

/* ---- after update() ---- */

bool cn_call_is_over(const cn_call *call);
/* The status of a call that is over. CN_ERR_ARG: the request is invalid. CN_ERR_BUSY: the engine's
 * queue is full. CN_ERR_CANCELLED: cancelled, or the server is stopping. Other errors are the
 * server's. _error: the text. _at_fault: the invalid field, or "". */
cn_status cn_call_status(const cn_call *call);
const char *cn_call_error(const cn_call *call);
const char *cn_call_at_fault(const cn_call *call);
/* True: so many engines failed while they had the request that it may be the cause. */
bool cn_call_is_suspect(const cn_call *call);

/* The parsed request. Valid once there is output, or the call is over with CN_OK. */
const cn_api_request *cn_call_request(const cn_call *call);

/* The output so far. It locks out the engine thread until cn_call_unlock: do nothing slow between.
 * NULL, and not locked, before the engine has accepted the request. */
cn_api_result *cn_call_lock(cn_call *call);
void cn_call_unlock(cn_call *call);
/* Moves the output of a call that is over to the caller. NULL when there is none. */
cn_api_result *cn_call_take_result(cn_call *call);
