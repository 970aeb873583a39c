/* turns.h - lets one thread at a time do a part of its work, in turns.
 *
 * Owner: its creator. Thread: any. A thread that enters waits for its turn: those that entered with
 * `first` come before the others, and within these the one that has waited longest. A thread with
 * much work passes its turn now and then. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_turns cn_turns;

cn_status cn_turns_create(cn_turns **out);
void cn_turns_free(cn_turns *t); /* NULL is fine; nobody may be inside or wait */

void cn_turns_enter(cn_turns *t, bool first);
/* Lets the others that wait go before; returns at the next turn of this thread. */
void cn_turns_pass(cn_turns *t);
void cn_turns_leave(cn_turns *t);
