/* call.h - one request to the engine from any part of the server, on its way and back.
 *
 *     owner's thread          intake thread             engine thread           owner's thread
 *   cn_call_start --mail--> parse, check, tokenise --mail--> submit, step ... --mail--> news()
 *   cn_call_cancel ---------------------------------mail--> cancel
 *
 * Owner: who started it, until cn_call_release(). Thread: all functions on the owner's thread,
 * which is the one that empties the mailbox `reply_to`; there news() runs too.
 *
 * Output is gathered in one cn_api_result per call, whoever reads it: a slow reader finds one big
 * piece instead of many small ones, and what waits for it is bounded by what the request may
 * generate. At most one news message of a call is under way. */
#ifndef CN_CALL_H
#define CN_CALL_H

#include "engine/api/api_request.h"
#include "engine/api/api_response.h"
#include "engine/serve/mailbox.h"

typedef struct cn_service cn_service; /* service.h: the threads behind */
typedef struct cn_call cn_call;

/* Called when something new is to be had: output of a streamed call, or the end. */
typedef void (*cn_call_news_fn)(void *user, cn_call *call);

typedef struct cn_call_opts {
    /* Either a request that was read already (batch lines), borrowed until the call is released
     * and over; or the JSON text of one, which the call takes over in any case. */
    const cn_api_request *request;
    cn_buf body;
    cn_api_endpoint endpoint; /* of body */
    cn_class klass;
    const char *custom_id; /* enters the seed of a body without one; copied; may be NULL */
    cn_mailbox *reply_to;
    cn_call_news_fn news;
    void *user;
} cn_call_opts;

/* CN_ERR_BUSY when too many wait at the intake, or the server drains and the class is batch;
 * nothing is kept then but the loss of body. */
cn_status cn_call_start(cn_call **out, cn_service *s, cn_call_opts *o);

/* Asks for an early end, which comes as CN_ERR_CANCELLED, or as the proper end if that was first.
 * The engine frees the request's KV at its next step. */
void cn_call_cancel(cn_call *call);
/* Gives the call up: cancelled if it runs, and silent from now on. NULL is fine. A borrowed
 * request must stay until the end has been told: do not release such a call before. */
void cn_call_release(cn_call *call);

/* ---- from news() on ---- */

bool cn_call_is_over(const cn_call *call);
/* Of a call that is over: CN_OK; CN_ERR_ARG the request is at fault; CN_ERR_BUSY the engine's queue
 * is full; CN_ERR_CANCELLED; anything else is the server's fault. The text, and the field at fault
 * ("" when none). */
cn_status cn_call_status(const cn_call *call);
const char *cn_call_error(const cn_call *call);
const char *cn_call_at_fault(const cn_call *call);

/* What the body asked for; once output has come or the call is over with CN_OK. */
const cn_api_request *cn_call_request(const cn_call *call);

/* The output so far, locked against the engine thread until cn_call_unlock: take from it, do
 * nothing slow. NULL before the request was accepted. */
cn_api_result *cn_call_lock(cn_call *call);
void cn_call_unlock(cn_call *call);
/* Of a call that is over: its output becomes the caller's. NULL when there is none. */
cn_api_result *cn_call_take_result(cn_call *call);

#endif
