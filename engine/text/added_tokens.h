/* added_tokens.h - finding added and special tokens in a text, before it is split into words.
 * Owner: cn_tokenizer. Immutable once sealed; any thread.
 *
 * The rules are those of the tokenizers package. The leftmost match wins; at one position the
 * longest token wins. `single_word` drops a match that touches a word character. `lstrip` and
 * `rstrip` extend a match over the white space beside it. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_added_token {
    const char *text; /* borrowed for the life of the set */
    size_t n;
    uint32_t id;
    bool single_word, lstrip, rstrip;
} cn_added_token;

/* Zero-initialise; add, then seal, then scan. */
typedef struct cn_added_set {
    cn_added_token *tokens; /* [len], sorted by bytes once sealed */
    size_t len;
    bool starts[256]; /* [byte] true if a token starts with it */
    int only_start;   /* the first byte of all tokens, or -1 if they differ */
} cn_added_set;

cn_status cn_added_set_add(cn_added_set *s, const cn_added_token *t);
/* CN_ERR_MODEL when two tokens have the same text. */
cn_status cn_added_set_seal(cn_added_set *s);
void cn_added_set_free(cn_added_set *s);

/* One pass over a text. Set the first three fields and zero-initialise the others. */
typedef struct cn_added_scan {
    const cn_added_set *set;
    const char *text; /* [n] well-formed UTF-8 */
    size_t n;
    size_t done;                 /* text before this index has been returned */
    size_t search;               /* the next match starts here or later */
    const cn_added_token *found; /* match to return after the text before it */
    size_t found_end;
} cn_added_scan;

/* Returns the next piece. For text, *token is NULL and text[*start .. *end) is not empty. For an
 * added token, *token is set. False at the end. */
bool cn_added_scan_next(cn_added_scan *s, size_t *start, size_t *end, const cn_added_token **token);
