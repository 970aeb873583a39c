/* mailbox.c - two lists under a mutex, and an eventfd that counts 1 while either list has a
 * message. See mailbox.h. */
#include "engine/base/mailbox.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct cn_mailbox {
    pthread_mutex_t lock;
    cn_list queues[CN_N_MAIL_QUEUES];
    uint32_t n, capacity;
    int fd; /* counts 1 exactly while n > 0: written and read under the lock */
};

cn_status cn_mailbox_create(cn_mailbox **out, uint32_t capacity)
{
    cn_mailbox *box = cn_calloc(1, sizeof *box);
    if (!box) return cn_fail(CN_ERR_MEMORY, "out of memory for a mailbox");
    box->capacity = capacity;
    box->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (box->fd < 0) {
        cn_free(box);
        return cn_fail(CN_ERR_IO, "eventfd: %s", strerror(errno));
    }
    pthread_mutex_init(&box->lock, NULL);
    *out = box;
    return CN_OK;
}

void cn_mailbox_free(cn_mailbox *box)
{
    if (!box) return;
    CN_ASSERT(box->n == 0);
    close(box->fd);
    pthread_mutex_destroy(&box->lock);
    cn_free(box);
}

static void signal_first(cn_mailbox *box)
{
    const uint64_t one = 1;
    const ssize_t n = write(box->fd, &one, sizeof one);
    CN_ASSERT(n == sizeof one);
}

static bool put_mail(cn_mailbox *box, cn_mail_queue queue, cn_mail *mail, uint32_t capacity)
{
    CN_ASSERT(mail->open && queue < CN_N_MAIL_QUEUES);
    pthread_mutex_lock(&box->lock);
    bool fits = box->n < capacity;
    if (fits) {
        cn_list_append(&box->queues[queue], &mail->node);
        if (box->n++ == 0) signal_first(box);
    }
    pthread_mutex_unlock(&box->lock);
    return fits;
}

bool cn_mailbox_try_post(cn_mailbox *box, cn_mail_queue queue, cn_mail *mail)
{
    return put_mail(box, queue, mail, box->capacity);
}

void cn_mailbox_post(cn_mailbox *box, cn_mail_queue queue, cn_mail *mail)
{
    const bool fits = put_mail(box, queue, mail, UINT32_MAX);
    CN_ASSERT(fits);
}

/* One message less; the lock is held. */
static void count_down(cn_mailbox *box)
{
    uint64_t count;
    if (--box->n > 0) return;
    const ssize_t n = read(box->fd, &count, sizeof count);
    CN_ASSERT(n == sizeof count);
}

cn_mail *cn_mailbox_take(cn_mailbox *box)
{
    pthread_mutex_lock(&box->lock);
    cn_mail *mail = NULL;
    for (int queue = 0; queue < CN_N_MAIL_QUEUES && !mail; queue++)
        mail = CN_CONTAINER_OF(cn_list_pop(&box->queues[queue]), cn_mail, node);
    if (mail) count_down(box);
    pthread_mutex_unlock(&box->lock);
    return mail;
}

bool cn_mailbox_try_remove(cn_mailbox *box, cn_mail_queue queue, cn_mail *mail)
{
    pthread_mutex_lock(&box->lock);
    const cn_list_node *at = box->queues[queue].head;
    while (at && at != &mail->node) at = at->next;
    if (at) {
        cn_list_remove(&box->queues[queue], &mail->node);
        count_down(box);
    }
    pthread_mutex_unlock(&box->lock);
    return at != NULL;
}

uint32_t cn_mailbox_open_all(cn_mailbox *box)
{
    const uint32_t n = cn_mailbox_length(box);
    for (uint32_t i = 0; i < n; i++) {
        cn_mail *mail = cn_mailbox_take(box);
        mail->open(mail);
    }
    return n;
}

void cn_mailbox_wait(cn_mailbox *box, int timeout_ms)
{
    struct pollfd p = {.fd = box->fd, .events = POLLIN};
    poll(&p, 1, timeout_ms); /* a signal may interrupt it: callers loop */
}

int cn_mailbox_fd(const cn_mailbox *box) { return box->fd; }

uint32_t cn_mailbox_length(cn_mailbox *box)
{
    pthread_mutex_lock(&box->lock);
    uint32_t n = box->n;
    pthread_mutex_unlock(&box->lock);
    return n;
}
