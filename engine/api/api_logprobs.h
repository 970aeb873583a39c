/* api_logprobs.h - the log-probabilities of a choice: kept as numbers, written as JSON in slices.
 *
 * Owner: cn_api_result, one per choice. Thread: the result's. A token takes 8 bytes for itself and
 * 8 for each alternative; as JSON it takes ten times as much. */
#pragma once

#include <jansson.h>

#include "engine/api/api_request.h"
#include "engine/base/base.h"

/* Returns the bytes of a token, which may be incomplete UTF-8, and sets *special; NULL if the id is
 * unknown. */
typedef const char *(*cn_token_bytes_fn)(void *user, uint32_t token, size_t *n_bytes,
                                         bool *special);

typedef struct cn_api_logprobs {
    cn_logprob *entries; /* [n_tokens][1 + n_top] the token, then its alternatives */
    uint32_t *ranks;     /* [n_tokens] with has_ranks, as in cn_token_logprobs; else NULL */
    size_t n_tokens, cap_tokens;
} cn_api_logprobs; /* zero-initialise */

/* How they are written: for an endpoint, with up to n_top alternatives of a token. */
typedef struct cn_api_logprobs_form {
    cn_api_endpoint endpoint;
    uint32_t n_top;
    bool has_ranks;     /* of the tokens: prompts only */
    bool skips_special; /* the text of the output has no special tokens */
    cn_token_bytes_fn token_bytes;
    void *user;
} cn_api_logprobs_form;

void cn_api_logprobs_free(cn_api_logprobs *l);
cn_status cn_api_logprobs_add(cn_api_logprobs *l, const cn_api_logprobs_form *f,
                              const cn_token_logprobs *p);
/* The token i; its alternatives follow. */
const cn_logprob *cn_api_logprobs_token(const cn_api_logprobs *l, const cn_api_logprobs_form *f,
                                        size_t i);
/* Removes the first n tokens. */
void cn_api_logprobs_drop(cn_api_logprobs *l, const cn_api_logprobs_form *f, size_t n);
/* About the bytes of n tokens as JSON. */
size_t cn_api_logprobs_json_bytes(const cn_api_logprobs_form *f, size_t n);

/* The members of the JSON object: "content" for chats and responses, four parallel arrays for
 * completions. */
uint32_t cn_api_logprobs_n_members(cn_api_endpoint e);
const char *cn_api_logprobs_member(cn_api_endpoint e, uint32_t member);

/* A place in the text of tokens. Zeroed: the beginning of a text without a prompt. */
typedef struct cn_api_text_place {
    size_t chars; /* whole characters before it */
    char cut[4];  /* the bytes before it that are not yet a whole character */
    uint32_t n_cut;
    uint32_t n_prompt; /* tokens of the echoed prompt that follow */
    uint32_t n_added;  /* of these, the first ones that the text does not have */
} cn_api_text_place;

/* The array of one member, of tokens [first, end). *at: the place of `first`; the member
 * text_offset advances it. NULL: out of memory. The offset of a token is the number of characters
 * before the one to which its first byte belongs, so tokens with parts of a character have the same
 * offset. A token that the text does not have gets the offset of what follows it. */
json_t *cn_api_logprobs_json(const cn_api_logprobs *l, const cn_api_logprobs_form *f,
                             uint32_t member, size_t first, size_t end, cn_api_text_place *at);

/* Tokens [first, end) of a prompt in vLLM's form: null for the first, then objects of ids. NULL:
 * out of memory. */
json_t *cn_api_prompt_logprobs_json(const cn_api_logprobs *l, const cn_api_logprobs_form *f,
                                    size_t first, size_t end);
