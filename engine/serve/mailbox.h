/* mailbox.h - what threads of the server say to each other: a bounded queue of intrusive messages
 * with a file descriptor that is readable while any waits. Each thread has one; a message carries
 * the function that its reader runs.
 *
 * Owner: whoever created it, which outlives all that post to it. Thread: post from any; take, wait
 * and the opening of messages on the one thread that the mailbox belongs to.
 *
 * Posting allocates nothing: the message is part of what it is about, which must live until it is
 * opened and may be in one mailbox at a time. Two lanes: express messages are taken first. */
#ifndef CN_MAILBOX_H
#define CN_MAILBOX_H

#include "engine/base.h"
#include "engine/list.h"

typedef struct cn_mail cn_mail;
struct cn_mail {
    cn_list_node node;
    void (*open)(cn_mail *mail); /* on the reader's thread; may free what the mail is part of */
};

typedef enum cn_lane { CN_LANE_EXPRESS, CN_LANE_NORMAL, CN_N_LANES } cn_lane;

typedef struct cn_mailbox cn_mailbox;

/* capacity: messages that cn_mailbox_try_post accepts. CN_ERR_IO when there is no descriptor. */
cn_status cn_mailbox_create(cn_mailbox **out, uint32_t capacity);
void cn_mailbox_free(cn_mailbox *box); /* NULL is fine; must be empty */

/* False, nothing done, when `capacity` messages wait already. */
bool cn_mailbox_try_post(cn_mailbox *box, cn_lane lane, cn_mail *mail);
/* Never refused: for what ends work that was accepted, so that its number is bounded. */
void cn_mailbox_post(cn_mailbox *box, cn_lane lane, cn_mail *mail);

/* The next message, or NULL. */
cn_mail *cn_mailbox_take(cn_mailbox *box);
/* Opens all that wait now; what they post meanwhile is for the next time. The number opened. */
uint32_t cn_mailbox_open_all(cn_mailbox *box);
/* Sleeps until a message waits, or for timeout_ms (-1: forever). */
void cn_mailbox_wait(cn_mailbox *box, int timeout_ms);

/* Readable while messages wait: for an event loop that waits for other things too. */
int cn_mailbox_fd(const cn_mailbox *box);
uint32_t cn_mailbox_length(cn_mailbox *box);

#endif
