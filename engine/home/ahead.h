/* ahead.h - exchanges of selector `spec`: before layer 0 of a step they rank the tokens of a home
 * with the retrieval head's query of that step. One list serves all layers, and each pack waits for
 * its own fetch. So there is no lag. HOMES.md §15.
 *
 * Owner: cn_homes. Thread: engine. Stage: 6 of the path of a request. */
#pragma once

#include "engine/home/home.h"

/* Call when the home space is described. Does nothing if no declared selector ranks ahead. */
cn_status cn_ahead_create(const cn_homes *hs, cn_home *h);
void cn_ahead_free(const cn_homes *hs, cn_home *h);

/* Copies the head's keys and states in these blocks of a sequence, if it has such a selector. Those
 * of tokens after its first event are written by home block as they are computed. */
cn_status cn_ahead_put(const cn_homes *hs, const cn_home *h, cn_stream *s, const cn_seq *seq,
                       const cn_block_copy *blocks, uint32_t n);

/* Ranks the rows, and starts the pushes of all packs behind the rank. queries: as of `drafted` in
 * cn_layer_hook. */
cn_status cn_ahead_exchange(const cn_homes *hs, cn_home *h, const cn_home_rows *st,
                            const void *queries);

/* Fills the exchange area of one request with its newest candidates, on the event stream: an event
 * has no query of the head. The first step after it then replaces all that its query wants to. */
cn_status cn_ahead_fill(const cn_homes *hs, cn_home *h, const cn_exchange_rows *r);
