/* progress.h - shows the progress of a batch on standard error: on a terminal one line that is
 * redrawn, elsewhere a plain line every 10 seconds.
 *
 * Owner: cn_batch_drive. Thread: one. Stage: beside all stages. */
#pragma once

#include "engine/options/options.h"

/* The figures to show. Requests of earlier runs of the file count as read and as done. */
typedef struct cn_progress_figures {
    uint64_t read, done, errors;             /* lines; errors are done too */
    uint64_t answered_now;                   /* by this run */
    uint64_t input_bytes, input_bytes_total; /* total 0: unknown */
    bool input_ended;                        /* `read` is the total */
    uint64_t tokens_earlier; /* output tokens of earlier runs of the file */
    uint64_t tokens_total;   /* output tokens of all requests, if they are known; 0: estimate */
    uint64_t most_tokens;    /* output tokens of a request at most; 0: unknown */
    uint64_t running_tokens; /* of stats.generation_tokens, those of requests that still run */
    const char *doing;       /* what runs, such as an arm; NULL: the command alone says it */
    cn_stats stats;          /* of this run's engines */
    /* Output tokens of the engines that made the fewest and the most, and which those are. The
     * plain lines show them if they differ by more than a tenth. */
    struct {
        uint64_t tokens;
        uint32_t engine;
    } least, most;
} cn_progress_figures;

typedef struct cn_progress {
    FILE *f;
    bool bar, off;
    double started_s, shown_s, rate_s;
    uint64_t rate_tokens;
    double tokens_per_s; /* smoothed; 0: not known yet */
} cn_progress;

void cn_progress_begin(cn_progress *p, cn_opt_progress mode, FILE *f);

/* True when a line is due. Cheap: call it at every step. */
bool cn_progress_is_due(const cn_progress *p);
void cn_progress_show(cn_progress *p, const cn_progress_figures *g);
void cn_progress_end(cn_progress *p); /* removes the bar from the terminal */

/* Estimates the tokens still to be generated from the answers so far. False while the lengths or
 * the number of requests are unknown. */
bool cn_progress_tokens_left(const cn_progress_figures *g, uint64_t *tokens);

/* The line, at most `width` characters: as many of its parts as fit, the most important first. */
void cn_progress_format(const cn_progress *p, const cn_progress_figures *g, char *text,
                        size_t size, size_t width);
