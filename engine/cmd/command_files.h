/* command_files.h - checks the files of a command before it begins its work.
 *
 * Owner: the caller. Thread: main. Stage: before the first request. */
#pragma once

#include "engine/options/options.h"

/* Checks that every file that the command reads can be read, and that every file that it writes can
 * be written and is no other file that it writes or reads. `more` are the positional arguments,
 * which are input files where a command has an input. Standard streams, pipes and devices may be
 * given twice. CN_ERR_ARG. */
cn_status cn_command_check_files(const cn_config *c, uint32_t sections, char *const *more,
                                 int n_more);
