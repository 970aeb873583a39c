/* line_reader.h - the lines of a file, a pipe or standard input, one at a time: what is in memory
 * is the current line and a buffer, whatever the size of the file.
 *
 * Owner: the caller. Thread: one. Stage: 1. */
#ifndef CN_LINE_READER_H
#define CN_LINE_READER_H

#include "engine/base.h"

typedef struct cn_line_reader cn_line_reader;

typedef enum cn_line_state {
    CN_LINE_READY,
    CN_LINE_WAIT, /* nothing there yet (a pipe), or a signal came */
    CN_LINE_END
} cn_line_state;

typedef struct cn_line {
    const char *text; /* [n], no newline, not NUL-terminated; valid until the next call */
    size_t n;
    uint64_t number; /* from 1; blank lines count but are not handed out */
    bool too_long;   /* longer than max_line_bytes: text is its beginning, the rest was dropped */
} cn_line;

/* path "-" is standard input. CN_ERR_IO names the path. */
cn_status cn_line_reader_open(cn_line_reader **out, const char *path, size_t max_line_bytes);
void cn_line_reader_close(cn_line_reader *r); /* NULL is fine */

/* The next line that is not blank. A byte order mark at the start and a carriage return at the end
 * of a line are dropped. wait_ms: how long to wait for a pipe; 0 returns at once. */
cn_status cn_line_reader_next(cn_line_reader *r, int wait_ms, cn_line *line, cn_line_state *state);

uint64_t cn_line_reader_bytes_done(const cn_line_reader *r); /* of the lines handed out */
uint64_t cn_line_reader_bytes_total(const cn_line_reader *r); /* 0: not a regular file */
int cn_line_reader_fd(const cn_line_reader *r);

#endif
