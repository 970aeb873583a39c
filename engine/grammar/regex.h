/* regex.h - a regular expression as a network. The syntax is the common part of ECMAScript and of
 * Python: characters, classes, groups, alternatives, greedy or lazy repetition, ^ and $ at the
 * ends. Anything else is refused by name: look-around (but see text_dfa.h), back-references, \b,
 * flags.
 *
 * Thread: any; no state. */
#pragma once

#include "engine/grammar/charset.h"

enum { CN_REGEX_MAX_BYTES = 4096 };

/* Adds a network that reads a text of the given form which matches pattern[len]. `anywhere`: a
 * match of a part of the text is enough, as for JSON Schema's `pattern`; otherwise the whole text
 * must match. CN_ERR_ARG says what is wrong at which byte. */
cn_status cn_regex_emit(const char *pattern, size_t len, bool anywhere, cn_text_form form,
                        cn_net *net, uint32_t from, uint32_t to);

/* Does the same with CN_TEXT_BYTES for a match anywhere. Where dialects differ, what one of them
 * matches is read: cn_regex_emit reads what all of them do. */
cn_status cn_regex_emit_widely(const char *pattern, size_t len, cn_net *net, uint32_t from,
                               uint32_t to);
