/* api_unknown.h - what happens to members of a body that cinch does not know.
 *
 * Owner: the program that reads bodies; its cn_api_defaults points to it. Thread: any. */
#pragma once

#include <jansson.h>
#include <pthread.h>

#include "engine/base/base.h"

enum {
    CN_API_LOGGED_NAMES = 64, /* names that are logged; further ones are only in responses */
    CN_API_MAX_WARNINGS = 16  /* of one request */
};

typedef struct cn_api_unknown {
    bool refuse; /* --unknown-fields refuse */
    pthread_mutex_t lock;
    uint64_t logged[CN_API_LOGGED_NAMES]; /* hashes of the names that were logged */
    uint32_t n_logged;
} cn_api_unknown;

void cn_api_unknown_init(cn_api_unknown *u, bool refuse);
void cn_api_unknown_destroy(cn_api_unknown *u);

/* Takes note of a member that has no effect, and why: logs its name once, and adds a text to
 * *warnings, which it creates, unless the text is there. CN_ERR_ARG: such members are refused, or u
 * is NULL. */
cn_status cn_api_ignore(cn_api_unknown *u, const char *key, const char *why, const json_t *value,
                        json_t **warnings);
/* The same for a member that cinch does not know. */
cn_status cn_api_unknown_take(cn_api_unknown *u, const char *key, const json_t *value,
                              json_t **warnings);

/* The same for each member of an object that is not in `known`, which ends with NULL, and not null.
 * CN_ERR_ARG is about that member (cn_last_param). */
cn_status cn_api_unknown_members(cn_api_unknown *u, const json_t *o, const char *const *known,
                                 json_t **warnings);
