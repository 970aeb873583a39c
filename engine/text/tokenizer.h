/* tokenizer.h - text to token ids, as the checkpoint's tokenizer.json says and exactly as the
 * tokenizers package does it. Stage 2 of a request's way.
 * Owner: cn_engine. Immutable after load but for scratch memory and a word cache: one thread at a
 * time may encode; looking tokens up is free to all.
 *
 * Encoding, in order: find the added tokens that match raw text; normalize what lies between (NFC);
 * find the added tokens that match normalized text; cut the rest into words (pretoken.h); merge
 * each word's bytes (bpe.h); put BOS before and EOS behind if asked.
 *
 * Supported is byte-level BPE: model type BPE, normalizer NFC or none, the split rules of
 * pretoken.h, decoder ByteLevel, post-processors ByteLevel and TemplateProcessing. Anything else,
 * and any field that is not known here, is refused by name: a tokenizer that is almost right makes
 * a model that is quietly wrong. `truncation` and `padding` are ignored, as transformers does; they
 * belong to a training run. */
#ifndef CN_TOKENIZER_H
#define CN_TOKENIZER_H

#include "engine/base.h"
#include "engine/text/tokens.h"

/* NULL is a tokenizer that knows no token: looking up finds nothing, encoding is refused. */
typedef struct cn_tokenizer cn_tokenizer;

/* Reads tokenizer.json and, if it is there, tokenizer_config.json of a checkpoint. The latter's
 * add_bos_token and add_eos_token, where given, take the place of the post-processor.
 * CN_ERR_MODEL names the file and the field. */
cn_status cn_tokenizer_load(cn_tokenizer **out, const char *model_dir);
/* From the text of a tokenizer.json alone; `what` names it in errors. */
cn_status cn_tokenizer_parse(cn_tokenizer **out, const char *text, size_t n, const char *what);
void cn_tokenizer_free(cn_tokenizer *t); /* NULL is fine */

uint32_t cn_tokenizer_vocab_size(const cn_tokenizer *t); /* largest id + 1 */

/* Appends the ids of text[0 .. n_bytes), which may hold NULs; bytes that are no UTF-8 count as
 * U+FFFD (utf8.h). add_special: run the post-processor (BOS, EOS). The text of special tokens is
 * recognised in any case. On failure `out` is as before. */
cn_status cn_tokenizer_encode(cn_tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                              cn_tokens *out);

/* What a token stands for, not always whole UTF-8; valid while t lives. False, with nothing
 * written, for an id without a token. */
bool cn_tokenizer_token(const cn_tokenizer *t, uint32_t id, const char **bytes, size_t *n_bytes,
                        bool *special);

/* The id of a token by its string in tokenizer.json ("<|im_end|>"). */
bool cn_tokenizer_id(const cn_tokenizer *t, const char *content, uint32_t *id);

#endif
