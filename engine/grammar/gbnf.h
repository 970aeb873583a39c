/* gbnf.h - a grammar in llama.cpp's GBNF as a network: name ::= alternatives, literals, classes, .,
 * groups, | * + ? {m,n} and comments with #. The root rule is `root`.
 *
 * Thread: any; no state. */
#pragma once

#include "engine/grammar/network.h"

/* Makes the root rule, which must be the only one, read the grammar. CN_ERR_ARG names line, column
 * and what is wrong. */
cn_status cn_gbnf_emit(const char *text, size_t len, cn_net *net);
