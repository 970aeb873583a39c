/* cmd_tokenize.h - `cinch tokenize`: text to token ids and back, for people and for comparisons
 * with other tokenizers. Called by main(); one thread. */
#ifndef CN_CMD_TOKENIZE_H
#define CN_CMD_TOKENIZE_H

#include "engine/base.h"

/* argv[0] is "tokenize". Writes to stdout; --help does, too, and is CN_OK. */
cn_status cn_cmd_tokenize(int argc, char **argv);

#endif
