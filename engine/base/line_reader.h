/* line_reader.h - the lines of a file, a pipe or standard input, one at a time. Memory holds the
 * current line and a buffer, independent of the size of the file.
 *
 * Owner: the caller. Thread: one. Stage: 1. */
#ifndef CN_LINE_READER_H
#define CN_LINE_READER_H

#include "engine/base/base.h"

typedef struct cn_line_reader cn_line_reader;

typedef enum cn_line_state {
    CN_LINE_READY,
    CN_LINE_WAIT, /* no input yet (a pipe), or a signal arrived */
    CN_LINE_END
} cn_line_state;

typedef struct cn_line {
    const char *text; /* [n], no newline, not NUL-terminated; valid until the next call */
    size_t n;
    uint64_t number; /* from 1; blank lines count but are not returned */
    bool too_long;   /* longer than max_line_bytes: text is its beginning, the rest is dropped */
} cn_line;

/* path "-" is standard input. CN_ERR_IO names the path. */
cn_status cn_line_reader_open(cn_line_reader **out, const char *path, size_t max_line_bytes);
void cn_line_reader_close(cn_line_reader *r); /* NULL is fine */

/* Reads the next line that is not blank. Drops a byte order mark at the start of the file and a
 * carriage return at the end of a line. wait_ms: how long to wait for a pipe; 0 returns
 * immediately. */
cn_status cn_line_reader_next(cn_line_reader *r, int wait_ms, cn_line *line, cn_line_state *state);

uint64_t cn_line_reader_bytes_done(const cn_line_reader *r); /* of the lines returned so far */
uint64_t cn_line_reader_bytes_total(const cn_line_reader *r); /* 0: not a regular file */
int cn_line_reader_fd(const cn_line_reader *r);

#endif
