/* tokenizer_json.h - tokenizer.json to a cn_tokenizer. Private to the tokenizer: tokenizer.c owns
 * the life of the struct, tokenizer_json.c fills it. Thread: the one that loads. */
#ifndef CN_TOKENIZER_JSON_H
#define CN_TOKENIZER_JSON_H

#include <jansson.h>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/nfc.h"
#include "engine/text/pretoken.h"
#include "engine/text/tokenizer.h"
#include "engine/text/vocab.h"

struct cn_tokenizer {
    cn_vocab vocab;
    cn_bpe *bpe;
    cn_pretoken *pretoken;
    cn_added_set raw;        /* added tokens that match text as it came */
    cn_added_set normalized; /* added tokens that match normalized text */
    char *added_text;        /* what they match, all behind one another */
    bool nfc;
    cn_tokens prefix, suffix; /* of the post-processor */
    cn_nfc nfc_scratch;
    cn_buf lossy; /* scratch: a damaged text, mended */
};

/* Fills a zeroed tokenizer from the parsed file; on failure the caller frees it. */
cn_status cn_tokenizer_from_json(cn_tokenizer *t, const json_t *root);

/* Applies add_bos_token and add_eos_token of tokenizer_config.json. */
cn_status cn_tokenizer_apply_config(cn_tokenizer *t, const json_t *config);

#endif
