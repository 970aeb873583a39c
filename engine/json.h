/* json.h - strict reading of JSON over jansson: size and depth limits, duplicate keys refused, and
 * typed getters whose errors name the place, the key and the value found.
 *
 * Owner: the caller of cn_json_load_file/cn_json_parse drops the tree with json_decref().
 * Thread: any; a tree belongs to one thread at a time. Stage: loading, and parsing of requests.
 *
 * A key whose value is null counts as absent, as Hugging Face files mean it. A whole number may be
 * written 16 or 16.0. Files with integers beyond 64 bits (model_max_length of a tokenizer without
 * a limit is 10^30) are read with every number as a double; the getters do not show the
 * difference. */
#ifndef CN_JSON_H
#define CN_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base.h"

/* Parses text[n], one JSON value and nothing after it. `what` names the text in errors (a path,
 * "line 12"). `error` is the status of a refusal: CN_ERR_MODEL for a checkpoint's file, CN_ERR_ARG
 * for a request. Refused: more than max_bytes, nesting deeper than max_depth, bytes that are not
 * UTF-8, a NUL inside a string, a key given twice. */
cn_status cn_json_parse(json_t **out, const char *text, size_t n, const char *what,
                        size_t max_bytes, uint32_t max_depth, cn_status error);

/* Appends the text of a whole regular file. CN_ERR_IO when it cannot be read, CN_ERR_MODEL when it
 * has more than max_bytes. */
cn_status cn_json_read_file(cn_buf *out, const char *path, size_t max_bytes);

/* Both: CN_ERR_MODEL also when the text is refused. */
cn_status cn_json_load_file(json_t **out, const char *path, size_t max_bytes, uint32_t max_depth);

/* cn_json_parse for a request, CN_ERR_ARG, but a string that is no key may hold a NUL: who reads it
 * refuses that by cn_json_refuse_nul, with the name of the field, or heeds the string's length. */
cn_status cn_json_parse_request(json_t **out, const char *text, size_t n, const char *what,
                                size_t max_bytes, uint32_t max_depth);

/* `error`, with the path of the string, when one in value, called `where`, holds a NUL. NULL is
 * fine. */
cn_status cn_json_refuse_nul(json_t *value, const char *where, cn_status error);

/* Short text of a value for messages: compact JSON, ASCII only, cut to fit. Returns buf. */
const char *cn_json_describe(const json_t *value, char *buf, size_t size);

/* Text with bytes outside printable ASCII as \xNN, cut to fit: a hostile name may enter a message.
 * Returns buf. */
const char *cn_json_printable(const char *text, char *buf, size_t size);

/* An object, the name of its place for messages ("dir/config.json: rope_scaling"), and the status
 * with which getters refuse. All borrowed. */
typedef struct cn_json_at {
    const json_t *object;
    const char *where;
    cn_status error;
} cn_json_at;

typedef enum cn_json_presence { CN_JSON_OPTIONAL, CN_JSON_REQUIRED } cn_json_presence;

/* Getters. An absent optional key leaves *out as it is and returns CN_OK; an absent required key,
 * another type or a value outside [min, max] is a->error with the key and the value in the text; a
 * string with a NUL is a->error too.
 * Strings, objects and arrays are borrowed from the tree. */
cn_status cn_json_bool(const cn_json_at *a, const char *key, cn_json_presence p, bool *out);
cn_status cn_json_u32(const cn_json_at *a, const char *key, cn_json_presence p, uint32_t min,
                      uint32_t max, uint32_t *out);
cn_status cn_json_i64(const cn_json_at *a, const char *key, cn_json_presence p, int64_t min,
                      int64_t max, int64_t *out);
cn_status cn_json_f64(const cn_json_at *a, const char *key, cn_json_presence p, double min,
                      double max, double *out);
cn_status cn_json_str(const cn_json_at *a, const char *key, cn_json_presence p, const char **out);
cn_status cn_json_obj(const cn_json_at *a, const char *key, cn_json_presence p, json_t **out);
cn_status cn_json_arr(const cn_json_at *a, const char *key, cn_json_presence p, json_t **out);

/* The value at a key when it is there and not null, else NULL. */
json_t *cn_json_find(const cn_json_at *a, const char *key);

/* A whole number in [min, max] out of a bare value: element of an array. False otherwise. */
bool cn_json_as_i64(const json_t *value, int64_t min, int64_t max, int64_t *out);

/* Token ids: absent or null is none, a number is one, an array several. Each must be below `vocab`
 * and there may be `max` at most. */
cn_status cn_json_token_ids(const cn_json_at *a, const char *key, uint32_t vocab, uint32_t max,
                            uint32_t *out, uint32_t *n_out);

#endif
