/* stat_rows.h - a table of the figures of an engine: how they add up over engines, and how /metrics
 * shows them.
 *
 * Owner: none. Thread: any. Stage: reports. */
#pragma once

#include "engine/cinch.h"

typedef struct cn_stat_row {
    size_t at; /* offset in cn_stats */
    enum { CN_STAT_U32, CN_STAT_U64, CN_STAT_DOUBLE } number;
    const char *type;        /* of Prometheus */
    const char *name, *help; /* of the series; NULL: there is none, or one with more labels */
} cn_stat_row;

const cn_stat_row *cn_stat_rows(size_t *n);
double cn_stat_value(const cn_stats *s, const cn_stat_row *row);

/* Adds the figures of an engine to those of others. */
void cn_stats_add(cn_stats *to, const cn_stats *s);
