/* bench_timeline.c - see bench_timeline.h. */
#include "engine/bench/bench_timeline.h"

#include <errno.h>

struct cn_timeline {
    FILE *file;
    char *path;
    double interval_s, began_s, row_s; /* row_s: time of the last row; 0 before the first tick */
    cn_stats last;
};

cn_status cn_timeline_open(cn_timeline **out, const char *path, double interval_s)
{
    cn_timeline *t = cn_calloc(1, sizeof *t);
    if (!t) return cn_fail(CN_ERR_MEMORY, "out of memory for a timeline");
    t->interval_s = interval_s;
    t->path = cn_strdup(path);
    t->file = t->path ? fopen(path, "w") : NULL;
    if (!t->file) {
        const cn_status status =
            t->path ? cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno))
                    : cn_fail(CN_ERR_MEMORY, "out of memory for a timeline");
        cn_free(t->path);
        cn_free(t);
        return status;
    }
    fputs("time_s,steps,output_tokens,running,waiting,compressing,blocks_used,blocks_total,"
          "preemptions,recomputed_tokens,compressions\n",
          t->file);
    *out = t;
    return CN_OK;
}

static unsigned long long since(uint64_t now, uint64_t then) { return now - then; }

static void write_row(cn_timeline *t, const cn_engine *e, double now_s)
{
    cn_stats s;
    cn_engine_stats(e, &s);
    const cn_stats *l = &t->last;
    fprintf(t->file, "%.4f,%llu,%llu,%u,%u,%u,%u,%u,%llu,%llu,%llu\n", now_s - t->began_s,
            since(s.steps, l->steps), since(s.generation_tokens, l->generation_tokens), s.running,
            s.waiting, s.compressing, s.blocks_used, s.blocks_total,
            since(s.preemptions, l->preemptions),
            since(s.recomputed_tokens, l->recomputed_tokens),
            since(s.compressions, l->compressions));
    t->last = s;
    t->row_s = now_s;
}

cn_status cn_timeline_tick(cn_timeline *t, const cn_engine *e)
{
    const double now_s = cn_now_s();
    if (t->row_s <= 0) {
        t->began_s = t->row_s = now_s;
        cn_engine_stats(e, &t->last);
    } else if (now_s - t->row_s >= t->interval_s) {
        write_row(t, e, now_s);
    }
    return ferror(t->file) ? cn_fail(CN_ERR_IO, "%s: writing failed", t->path) : CN_OK;
}

cn_status cn_timeline_close(cn_timeline *t, const cn_engine *e)
{
    if (!t) return CN_OK;
    if (t->row_s > 0) write_row(t, e, cn_now_s());
    const bool bad = ferror(t->file) != 0;
    const bool failed = fclose(t->file) != 0 || bad;
    const cn_status status = failed ? cn_fail(CN_ERR_IO, "%s: writing failed", t->path) : CN_OK;
    cn_free(t->path);
    cn_free(t);
    return status;
}
