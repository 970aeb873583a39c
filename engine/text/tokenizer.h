/* tokenizer.h - text to token ids by the checkpoint's tokenizer.json, exactly as in the tokenizers
 * package.
 * Owner: cn_engine. Thread: one at a time may encode, because encoding uses scratch memory and a
 * word cache; any thread may look up tokens. Stage: 2.
 *
 * Encoding has these steps:
 *   1. find the added tokens that match raw text;
 *   2. normalize the text between them (NFC);
 *   3. find the added tokens that match normalized text;
 *   4. cut the rest into words (word_steps.h);
 *   5. merge the bytes of each word (bpe.h); bytes without a token become the unknown token or are
 *      dropped;
 *   6. add BOS and EOS if add_special is set.
 *
 * Only byte-level BPE is supported: model type BPE, normalizer NFC or none, the pre-tokenizers of
 * word_steps.h, decoder ByteLevel, post-processors ByteLevel and TemplateProcessing. Anything else,
 * and any unknown field, is rejected by name, because an almost correct tokenizer makes a model
 * silently wrong. `truncation` and `padding` are ignored, as in transformers: they are for
 * training. */
#pragma once

#include "engine/base/base.h"
#include "engine/text/tokens.h"

/* NULL is a tokenizer without tokens: lookups find nothing and encoding fails. */
typedef struct cn_tokenizer cn_tokenizer;

/* Reads tokenizer.json and, if present, tokenizer_config.json of a checkpoint. If the latter has
 * add_bos_token or add_eos_token, these replace the post-processor. CN_ERR_MODEL names the file and
 * the field. */
cn_status cn_tokenizer_load(cn_tokenizer **out, const char *model_dir);
/* From the text of a tokenizer.json only; `what` names it in errors. */
cn_status cn_tokenizer_parse(cn_tokenizer **out, const char *text, size_t n, const char *what);
void cn_tokenizer_free(cn_tokenizer *t); /* NULL is fine */

uint32_t cn_tokenizer_vocab_size(const cn_tokenizer *t); /* largest id + 1 */

/* Appends the ids of text[0 .. n_bytes), which may contain NULs. Bytes that are not UTF-8 count as
 * U+FFFD (utf8.h). add_special: run the post-processor (BOS, EOS). Special tokens in the text are
 * recognised in either case. On failure `out` is unchanged. */
cn_status cn_tokenizer_encode(cn_tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                              cn_tokens *out);

/* How a long text is encoded beside others. Only steps 4 and 5 use memory of the tokenizer: they
 * run between `enter` and `leave`, and call `pause` between words after some 32 KiB of text. While
 * a text is outside, or in `pause`, the tokenizer may encode another one, also on another thread.
 * Each function may be NULL. A failure of `enter` or `pause` ends the encoding. */
typedef struct cn_encode_opts {
    bool add_special; /* run the post-processor (BOS, EOS) */
    size_t keep;      /* append only the last tokens; 0: all */
    cn_status (*enter)(void *context);
    cn_status (*pause)(void *context);
    void (*leave)(void *context);
    void *context;
} cn_encode_opts;

/* cn_tokenizer_encode with options. *n_tokens: of the text, kept or not. */
cn_status cn_tokenizer_encode_by(cn_tokenizer *t, const char *text, size_t n_bytes,
                                 const cn_encode_opts *o, cn_tokens *out, uint64_t *n_tokens);

/* The bytes that a token decodes to; they may end inside a UTF-8 character. Valid while t lives.
 * Returns false and writes nothing for an id without a token. */
bool cn_tokenizer_token(const cn_tokenizer *t, uint32_t id, const char **bytes, size_t *n_bytes,
                        bool *special);

/* Whether the token is an added one, such as <think> or the begin of a turn, and not part of a
 * word. */
bool cn_tokenizer_is_added(const cn_tokenizer *t, uint32_t id);

/* Finds the id of a token by its string in tokenizer.json ("<|im_end|>"); false if there is
 * none. */
bool cn_tokenizer_id(const cn_tokenizer *t, const char *content, uint32_t *id);
