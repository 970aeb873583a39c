/* status_json.h - the object of GET /stats, which the server's page draws: figures of the engine
 * and the server, and a history of the last minutes or the last day.
 *
 * Owner: the caller. Thread: any; works on copies. */
#pragma once

#include "engine/serve/routes/history.h"
#include "engine/serve/routes/metrics.h"

typedef struct cn_status_figures {
    cn_metrics metrics;
    uint32_t max_model_len;
    double now_s;        /* since the epoch */
    bool draining;
    const char *failure; /* of the engine; NULL while it works */
    const cn_history *history;
    cn_history_span span;
} cn_status_figures;

/* Appends the object as compact JSON. CN_ERR_MEMORY. */
cn_status cn_status_json(const cn_status_figures *f, cn_buf *out);
