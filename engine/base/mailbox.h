/* mailbox.h - messages between threads: a bounded queue of intrusive messages with a
 * file descriptor that is readable while a message waits.
 *
 * Each thread has one mailbox. A message carries the function that the reader runs ("opens").
 *
 * Owner: its creator, which must outlive all threads that post to it. Thread: any thread may post;
 * one thread takes, waits and opens messages.
 *
 * Posting allocates nothing: a message is embedded in the object it concerns. That object must live
 * until the message is opened, and the message may be in only one mailbox at a time. There are two
 * queues; express messages are taken first. */
#pragma once

#include "engine/base/base.h"
#include "engine/base/list.h"

typedef struct cn_mail cn_mail;
struct cn_mail {
    cn_list_node node;
    void (*open)(cn_mail *mail); /* runs on the reader's thread; may free the object of the mail */
};

typedef enum cn_mail_queue { CN_MAIL_EXPRESS, CN_MAIL_NORMAL, CN_N_MAIL_QUEUES } cn_mail_queue;

typedef struct cn_mailbox cn_mailbox;

/* capacity: how many messages may wait before cn_mailbox_try_post fails. CN_ERR_IO: no file
 * descriptor. */
cn_status cn_mailbox_create(cn_mailbox **out, uint32_t capacity);
void cn_mailbox_free(cn_mailbox *box); /* NULL is fine; must be empty */

/* False, and nothing done, when `capacity` messages are waiting. */
bool cn_mailbox_try_post(cn_mailbox *box, cn_mail_queue queue, cn_mail *mail);
/* Never fails. For messages about work that was already accepted, which bounds their number. */
void cn_mailbox_post(cn_mailbox *box, cn_mail_queue queue, cn_mail *mail);

/* Removes and returns the next message, or NULL. */
cn_mail *cn_mailbox_take(cn_mailbox *box);
/* Removes this message, unless it was taken. Not beside cn_mailbox_open_all. O(messages). */
bool cn_mailbox_try_remove(cn_mailbox *box, cn_mail_queue queue, cn_mail *mail);
/* Opens the messages that are waiting now, not those posted meanwhile. Returns their number. */
uint32_t cn_mailbox_open_all(cn_mailbox *box);
/* Sleeps until a message waits, a signal arrives, or timeout_ms have passed (-1: no timeout). */
void cn_mailbox_wait(cn_mailbox *box, int timeout_ms);

/* Readable while messages wait. For an event loop that also waits for other descriptors. */
int cn_mailbox_fd(const cn_mailbox *box);
uint32_t cn_mailbox_length(cn_mailbox *box);
