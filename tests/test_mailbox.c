/* test_mailbox.c - messages arrive once and in order, express messages first. The descriptor is
 * readable while there are messages. try_post refuses when the box is full; post does not. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/base/mailbox.h"

enum { N_WRITERS = 4, N_EACH = 2000 };

typedef struct letter {
    cn_mail mail;
    int writer, number;
} letter;

static int n_opened, last_of[N_WRITERS];
static char opened[16];

static void note(cn_mail *mail)
{
    letter *l = (letter *)(void *)mail;
    CN_ASSERT(n_opened < (int)sizeof opened - 1);
    opened[n_opened++] = (char)('a' + l->number);
    opened[n_opened] = '\0';
}

static bool is_readable(const cn_mailbox *box)
{
    struct pollfd p = {.fd = cn_mailbox_fd(box), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static cn_mailbox *make_box(uint32_t capacity)
{
    cn_mailbox *box;
    n_opened = 0;
    opened[0] = '\0';
    assert_int_equal(cn_mailbox_create(&box, capacity), CN_OK);
    return box;
}

static void express_messages_come_first_and_order_is_kept(void **state)
{
    (void)state;
    letter l[4];
    cn_mailbox *box = make_box(8);
    assert_null(cn_mailbox_take(box));
    assert_false(is_readable(box));
    for (int i = 0; i < 4; i++) {
        l[i] = (letter){.mail.open = note, .number = i};
        cn_mailbox_post(box, i % 2 ? CN_MAIL_EXPRESS : CN_MAIL_NORMAL, &l[i].mail);
        assert_true(is_readable(box));
    }
    assert_int_equal(cn_mailbox_length(box), 4);
    assert_int_equal(cn_mailbox_open_all(box), 4);
    assert_string_equal(opened, "bdac");
    assert_false(is_readable(box));
    assert_int_equal(cn_mailbox_open_all(box), 0);
    cn_mailbox_free(box);
}

static void a_full_box_refuses_try_post_but_not_post(void **state)
{
    (void)state;
    letter l[3];
    cn_mailbox *box = make_box(1);
    for (int i = 0; i < 3; i++) l[i] = (letter){.mail.open = note, .number = i};
    assert_true(cn_mailbox_try_post(box, CN_MAIL_NORMAL, &l[0].mail));
    assert_false(cn_mailbox_try_post(box, CN_MAIL_EXPRESS, &l[1].mail));
    cn_mailbox_post(box, CN_MAIL_NORMAL, &l[2].mail);
    assert_int_equal(cn_mailbox_open_all(box), 2);
    assert_string_equal(opened, "ac");
    assert_true(cn_mailbox_try_post(box, CN_MAIL_EXPRESS, &l[1].mail));
    assert_int_equal(cn_mailbox_open_all(box), 1);
    cn_mailbox_free(box);
}

static cn_mailbox *shared;
static letter letters[N_WRITERS][N_EACH];

static void take_in_order(cn_mail *mail)
{
    letter *l = (letter *)(void *)mail;
    CN_ASSERT(l->number == last_of[l->writer] + 1);
    last_of[l->writer] = l->number;
    n_opened++;
}

static void *write_letters(void *arg)
{
    const int writer = (int)(intptr_t)arg;
    for (int i = 0; i < N_EACH; i++) {
        letters[writer][i] = (letter){{.open = take_in_order}, writer, i + 1};
        cn_mailbox_post(shared, writer % 2 ? CN_MAIL_EXPRESS : CN_MAIL_NORMAL,
                        &letters[writer][i].mail);
    }
    return NULL;
}

/* The reader sleeps while there is no message, and gets every message. */
static void threads_write_to_one_reader(void **state)
{
    (void)state;
    pthread_t writers[N_WRITERS];
    shared = make_box(1);
    for (intptr_t w = 0; w < N_WRITERS; w++)
        assert_int_equal(pthread_create(&writers[w], NULL, write_letters, (void *)w), 0);
    while (n_opened < N_WRITERS * N_EACH) {
        cn_mailbox_wait(shared, 10000);
        assert_true(cn_mailbox_open_all(shared) > 0);
    }
    for (int w = 0; w < N_WRITERS; w++) pthread_join(writers[w], NULL);
    assert_int_equal(cn_mailbox_length(shared), 0);
    cn_mailbox_free(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(express_messages_come_first_and_order_is_kept),
        cmocka_unit_test(a_full_box_refuses_try_post_but_not_post),
        cmocka_unit_test(threads_write_to_one_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
