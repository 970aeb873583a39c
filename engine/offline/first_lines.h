/* first_lines.h - finds out early that an input was meant for other options: its first line lacks a
 * field that the options name, or its first lines all fail for one reason.
 *
 * Owner: cn_batch_run. Thread: one. Stage: 1. */
#pragma once

#include "engine/offline/batch_input.h"

enum { CN_FIRST_LINES = 100 };

typedef struct cn_first_lines {
    bool watching; /* set by the owner; reset once a line is good or fails for another reason */
    uint32_t n_failed;
    char reason[64];  /* the field at fault, or the beginning of the message */
    char cause[1024]; /* of the first line: its message, and the way out */
} cn_first_lines;

/* Counts a line that failed. param: its invalid field; NULL or "": none. True:
 * CN_FIRST_LINES lines or more failed, all for one reason, which is in f->cause. */
bool cn_first_lines_failed(cn_first_lines *f, const cn_batch_item *item,
                           const cn_batch_format *format, const char *param, const char *message);

/* CN_ERR_ARG if the line lacks the prompt field or the id field of the format; the text lists the
 * fields that it has. */
cn_status cn_first_line_check(const cn_batch_item *item, const cn_batch_format *format);

/* The same for the first line of a regular file. Anything else passes. */
cn_status cn_first_line_check_file(const char *path, const cn_batch_format *format);

/* Sets *hash to a hash of the first line of a regular file; 0 if path is not one, or is empty. */
cn_status cn_first_line_hash(const char *path, uint64_t *hash);
