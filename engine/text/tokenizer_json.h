/* tokenizer_json.h - tokenizer.json to a cn_tokenizer. Private to the tokenizer: tokenizer.c
 * creates and frees the struct, tokenizer_json.c fills it. Thread: the one that loads. */
#pragma once

#include <jansson.h>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/nfc.h"
#include "engine/text/tokenizer.h"
#include "engine/text/vocab.h"
#include "engine/text/word_steps.h"

struct cn_tokenizer {
    cn_vocab vocab;
    cn_bpe *bpe;
    cn_word_steps *words;
    cn_added_set raw;        /* added tokens that match text before normalization */
    cn_added_set normalized; /* added tokens that match normalized text */
    char *added_text;        /* the texts that they match, concatenated */
    bool nfc;
    cn_tokens prefix, suffix; /* what the post-processor adds */
    cn_nfc nfc_scratch; /* of loading */
};

/* Fills a zeroed tokenizer from the parsed file; on failure the caller frees it. */
cn_status cn_tokenizer_from_json(cn_tokenizer *t, const json_t *root);

/* Applies add_bos_token and add_eos_token of tokenizer_config.json. */
cn_status cn_tokenizer_apply_config(cn_tokenizer *t, const json_t *config);
