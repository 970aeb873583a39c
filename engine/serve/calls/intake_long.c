/* intake_long.c - large requests at the intake: each on a thread of its own, one at a time for each
 * key and class. Reading a body of 32 MB as JSON, rendering its chat and normalizing its text take
 * a second, during which the other requests go on. The tokenizer, which they share, is used in
 * turns (turns.h): a large text passes its turn between words, and small requests come first.
 *
 * Thread: intake, except where a function says so. */
#include <malloc.h>

#include "engine/serve/calls/service_state.h"

enum {
    MAX_THREADS = 64,
    TRIM_AFTER_MS = 1000,
    /* Larger requests start only while the bodies that are read are at most this part of
     * --max-buffered-bytes. Reading takes a multiple of a body. */
    UNCOUNTED_BYTES = 1 << 20,
    PART_OF_BUFFER = 4
};

typedef struct long_job {
    cn_list_node node; /* of service->long_waiting or long_running */
    cn_mail done;
    cn_service *service;
    uint32_t owner;
    cn_class klass;
    size_t bytes;
    void (*run)(void *object);
    void *object;
    pthread_t thread;
} long_job;

static void start_waiting(cn_service *s);

static void on_long_done(cn_mail *mail)
{
    long_job *job = CN_CONTAINER_OF(mail, long_job, done);
    cn_service *s = job->service;
    pthread_join(job->thread, NULL);
    cn_list_remove(&s->long_running, &job->node);
    cn_free(job);
    s->n_long--;
    s->intake_untrimmed = true;
    start_waiting(s);
}

/* The thread of a job. */
static void *job_main(void *arg)
{
    long_job *job = arg;
    job->run(job->object);
    cn_mailbox_post(job->service->intake_box, CN_MAIL_EXPRESS, &job->done);
    return NULL;
}

static bool may_start(const cn_service *s, const long_job *job)
{
    uint32_t n = 0;
    uint64_t bytes = job->bytes;
    for (cn_list_node *at = s->long_running.head; at; at = at->next, n++) {
        const long_job *other = CN_CONTAINER_OF(at, long_job, node);
        if (other->owner == job->owner && other->klass == job->klass) return false;
        if (other->bytes > UNCOUNTED_BYTES) bytes += other->bytes;
    }
    const bool fits = bytes == job->bytes || job->bytes <= UNCOUNTED_BYTES ||
                      bytes <= s->memory.most / PART_OF_BUFFER;
    return fits && n < MAX_THREADS;
}

static void start_job(cn_service *s, long_job *job)
{
    cn_list_remove(&s->long_waiting, &job->node);
    if (pthread_create(&job->thread, NULL, job_main, job) == 0) {
        cn_list_append(&s->long_running, &job->node);
        return;
    }
    job->run(job->object);
    s->n_long--;
    cn_free(job);
}

static void start_waiting(cn_service *s)
{
    CN_LIST_EACH_SAFE(long_job, job, &s->long_waiting, node) {
        if (may_start(s, job)) start_job(s, job);
    }
}

void cn_intake_run_long(cn_service *s, const cn_intake_long *o, void (*run)(void *object),
                        void *object)
{
    long_job *job = cn_calloc(1, sizeof *job);
    if (!job) {
        run(object);
        return;
    }
    *job = (long_job){.done.open = on_long_done, .service = s, .owner = o->owner, .klass = o->klass,
                      .bytes = o->bytes, .run = run, .object = object};
    s->n_long++;
    cn_list_append(&s->long_waiting, &job->node);
    start_waiting(s);
}

void cn_intake_rest(cn_service *s)
{
    cn_mailbox_wait(s->intake_box, s->intake_untrimmed ? TRIM_AFTER_MS : -1);
    if (!s->intake_untrimmed || cn_mailbox_length(s->intake_box) > 0) return;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    s->intake_untrimmed = false;
}

/* ---- turns at the tokenizer: any thread ---- */

static cn_status check_cancelled(const cn_intake_turn *turn)
{
    const bool gone = turn->cancelled && atomic_load(turn->cancelled);
    if (gone) return cn_fail(CN_ERR_CANCELLED, "cancelled");
    return atomic_load(&turn->service->intake_stop)
               ? cn_fail(CN_ERR_CANCELLED, "the server is stopping")
               : CN_OK;
}

static cn_status enter_turn(void *context)
{
    const cn_intake_turn *turn = context;
    CN_TRY(check_cancelled(turn));
    cn_turns_enter(turn->service->turns, !turn->is_long);
    return CN_OK;
}

static cn_status pause_at_word(void *context)
{
    const cn_intake_turn *turn = context;
    if (turn->is_long) cn_turns_pass(turn->service->turns);
    return check_cancelled(turn);
}

static void leave(void *context)
{
    cn_turns_leave(((const cn_intake_turn *)context)->service->turns);
}

cn_encode_opts cn_intake_encode_opts(const cn_intake_turn *turn)
{
    return (cn_encode_opts){.enter = enter_turn,
                            .pause = pause_at_word,
                            .leave = leave,
                            .context = (void *)(uintptr_t)turn};
}
