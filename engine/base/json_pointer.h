/* json_pointer.h - JSON pointers (RFC 6901), as "$ref" of a JSON Schema writes them: #/a/b/0.
 * Thread: any; no state. */
#pragma once

#include <jansson.h>

/* Decodes %HH in place. */
void cn_json_decode_percent(char *text);

/* What /a/b/0, which it changes, or "" points to in `at`; NULL: nothing. */
json_t *cn_json_follow(json_t *at, char *pointer);

/* What the reference points to in `root`; NULL: nothing, or not a "#" with a pointer, or out of
 * memory. */
json_t *cn_json_find_ref(const json_t *root, const char *ref);
