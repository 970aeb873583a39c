/* lark.h - a grammar in the part of Lark's language that constrained decoding uses, as a network:
 * rules and terminals, "str", "str"i, "a".."z", /expression/ with flags i and s, groups,
 * [optional], | * + ? ~n ~n..m {n,m}, %ignore, and %import of common terminals. The root rule is
 * `start`. %llguidance {} and the attributes capture and temperature are accepted. Modifiers,
 * aliases and priorities have no effect on the texts that match. A terminal matches wherever its
 * text does, not the longest text only.
 *
 * Thread: any; no state. */
#pragma once

#include "engine/grammar/network.h"

/* Makes the root rule, which must be the only one, read the grammar. CN_ERR_ARG names line, column
 * and what is wrong. */
cn_status cn_lark_emit(const char *text, size_t len, cn_net *net);
