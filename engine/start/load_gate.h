/* load_gate.h - lets each of several engines measure its links alone: when none reads weights any
 * more, and one after the other, as they share the host's memory and the links to it.
 *
 * Owner: who loads the engines. Thread: each engine is loaded on its own. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_load_gate cn_load_gate;

/* For n engines. */
cn_status cn_load_gate_create(cn_load_gate **out, uint32_t n);
void cn_load_gate_free(cn_load_gate *g); /* NULL is fine */

/* The rest does nothing for NULL. */

/* This engine reads no more weights: it has them, or has failed. Once for each engine. */
void cn_load_gate_arrive(cn_load_gate *g);
/* Waits until all engines have arrived and no other one measures. */
void cn_load_gate_enter(cn_load_gate *g);
void cn_load_gate_leave(cn_load_gate *g);
/* Some engines will never arrive, as the load is given up: none waits for them. */
void cn_load_gate_open(cn_load_gate *g);
