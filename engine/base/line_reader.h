/* line_reader.h - the lines of a file, a pipe or standard input, one at a time. Memory holds the
 * current line and a buffer, independent of the size of the file.
 *
 * Owner: the caller. Thread: one. Stage: 1. */
#pragma once

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
    uint64_t offset; /* of its first byte in the file */
    bool too_long;   /* longer than max_line_bytes: text is its beginning, the rest is dropped */
} cn_line;

/* path "-" is standard input. CN_ERR_IO names the path. */
cn_status cn_line_reader_open(cn_line_reader **out, const char *path, size_t max_line_bytes);
void cn_line_reader_close(cn_line_reader *r); /* NULL is fine */

/* A part of a file. By lines: the lines whose number less 1 is `index` modulo `of`. By bytes: those
 * that begin in the index-th of `of` equal parts of a regular file. */
typedef struct cn_line_part {
    uint32_t index, of; /* of 0: the whole file */
    bool by_bytes;
} cn_line_part;

/* The bytes [*from, *to) of a part of a file. */
void cn_line_part_bytes(const cn_line_part *part, uint64_t file_bytes, uint64_t *from,
                        uint64_t *to);
/* Limits the reader to a part; call it before the first line is read. By bytes, only the part is
 * read, and its lines are numbered from 1. CN_ERR_ARG: by bytes, and the path is not a regular
 * file. */
cn_status cn_line_reader_take_part(cn_line_reader *r, const cn_line_part *part);
/* How many lines the file has before those that are numbered from 1. Reads the file up to the part
 * at the first call. */
cn_status cn_line_reader_lines_before(cn_line_reader *r, uint64_t *n);

/* Reads the next line that is not blank. Drops a byte order mark at the start of the file and a
 * carriage return at the end of a line. wait_ms: how long to wait for a pipe; 0 returns
 * immediately. */
cn_status cn_line_reader_next(cn_line_reader *r, int wait_ms, cn_line *line, cn_line_state *state);

uint64_t cn_line_reader_bytes_done(const cn_line_reader *r); /* of the lines read so far */
/* Of the file, or of a part by bytes; 0: not a regular file. */
uint64_t cn_line_reader_bytes_total(const cn_line_reader *r);
int cn_line_reader_fd(const cn_line_reader *r);
