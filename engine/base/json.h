/* json.h - strict reading of JSON over jansson: size and depth limits, no duplicate keys, and typed
 * getters whose errors name the place, the key and the value.
 *
 * Owner: the caller of cn_json_load_file/cn_json_parse frees the tree with json_decref().
 * Thread: any; a tree belongs to one thread at a time. Stage: loading, and parsing of requests.
 *
 * A key whose value is null counts as absent, as in Hugging Face files. A whole number may be
 * written 16 or 16.0. In a file with an integer beyond 64 bits (model_max_length of a tokenizer
 * without a limit is 10^30) every number is read as a double; the getters hide the difference. */
#pragma once

#include <jansson.h>

#include "engine/base/base.h"

/* White space between the values and marks of JSON. */
static inline bool cn_json_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Parses text[n], which must be exactly one JSON value. `what` names the text in errors (a path,
 * "line 12"). `error` is the status returned for invalid text: CN_ERR_MODEL for a checkpoint's
 * file, CN_ERR_ARG for a request. Invalid are: more than max_bytes, nesting deeper than max_depth,
 * bytes that are not UTF-8, a NUL inside a string, a duplicate key. */
cn_status cn_json_parse(json_t **out, const char *text, size_t n, const char *what,
                        size_t max_bytes, uint32_t max_depth, cn_status error);

/* Replaces the file `path` (cn_replace_file) by the indented text of a tree, which it frees. `tree`
 * may be NULL, the result of a json_pack without memory: CN_ERR_MEMORY. */
cn_status cn_json_write_file(json_t *tree, const char *path);

/* Appends the text of a regular file. CN_ERR_IO when it cannot be read, CN_ERR_MODEL when it
 * exceeds max_bytes. */
cn_status cn_json_read_file(cn_buf *out, const char *path, size_t max_bytes);

/* CN_ERR_MODEL if data[n] is a git-lfs pointer, which stands for a file that was not downloaded. */
cn_status cn_refuse_lfs_pointer(const char *path, const void *data, size_t n);

/* Reads and parses a file. CN_ERR_MODEL also when the text is invalid. */
cn_status cn_json_load_file(json_t **out, const char *path, size_t max_bytes, uint32_t max_depth);
/* The same for an open file, which `path` names in errors. */
cn_status cn_json_load_fd(json_t **out, int fd, const char *path, size_t max_bytes,
                          uint32_t max_depth);

/* What the tree of a text can take at most. A value is an object, an array, a string, a number or a
 * literal; it takes far more memory than its text. */
typedef struct cn_json_size {
    size_t values;
    size_t bytes; /* of memory, without the text of strings */
} cn_json_size;

/* Reads the size from the brackets and commas outside strings, without parsing. The text may be
 * invalid. */
cn_json_size cn_json_measure(const char *text, size_t n);
/* The same for a tree. */
cn_json_size cn_json_measure_tree(json_t *tree);

/* Limits of a request's text. */
typedef struct cn_json_limits {
    size_t max_bytes, max_values;
    uint32_t max_depth;
} cn_json_limits;

/* cn_json_parse for a request (CN_ERR_ARG), except that a string value may contain a NUL. The
 * reader of such a field must either call cn_json_refuse_nul, which names the field, or use the
 * string's length. A text with too many values is refused before it is parsed. */
cn_status cn_json_parse_request(json_t **out, const char *text, size_t n, const char *what,
                                const cn_json_limits *limits);

/* Whether the key is one of the names, which end with NULL. names may be NULL. */
bool cn_json_is_named(const char *const *names, const char *key);
/* Returns `error`, with the path of the string, if a string in value contains a NUL. `where` is the
 * path of value itself. value may be NULL. */
cn_status cn_json_refuse_nul(json_t *value, const char *where, cn_status error);
/* The same, except for strings that are members with one of these names (cn_json_is_named). */
cn_status cn_json_refuse_nul_except(json_t *value, const char *where, const char *const *exempt,
                                    cn_status error);

/* Short text of a value for messages: compact JSON, ASCII only, truncated to fit. Returns buf. */
const char *cn_json_describe(const json_t *value, char *buf, size_t size);

/* Returns a new JSON string of an external text (a path, a message), which may be invalid UTF-8:
 * every error becomes U+FFFD. NULL: out of memory. */
json_t *cn_json_text(const char *text);
/* The same for text[n]. */
json_t *cn_json_textn(const char *text, size_t n);

/* Copies text with bytes outside printable ASCII as \xNN, truncated to fit. Makes an untrusted name
 * safe to print in a message. Returns buf. */
const char *cn_json_printable(const char *text, char *buf, size_t size);

/* An object, its place for messages ("dir/config.json: rope_scaling"), and the status that getters
 * return for an invalid value. The pointers are borrowed. */
typedef struct cn_json_at {
    const json_t *object;
    const char *where;
    cn_status error;
} cn_json_at;

typedef enum cn_json_presence { CN_JSON_OPTIONAL, CN_JSON_REQUIRED } cn_json_presence;

/* Parses a text that must be an object (cn_json_parse), calls read(at, out) with it and frees the
 * tree. Returns the status of read; at->where is `what`. */
typedef cn_status (*cn_json_read_fn)(const cn_json_at *at, void *out);
cn_status cn_json_read_object(const char *text, size_t n, const char *what, size_t max_bytes,
                              uint32_t max_depth, cn_status error, cn_json_read_fn read, void *out);
/* The same for the file dir/name of a checkpoint. CN_OK, and nothing read, if there is none.
 * Errors: cn_json_read_file; CN_ERR_MODEL when it is not an object; those of read. */
cn_status cn_json_read_optional_file(const char *dir, const char *name, size_t max_bytes,
                                     uint32_t max_depth, cn_json_read_fn read, void *out);

/* Getters. An absent optional key leaves *out unchanged and returns CN_OK. A missing required key,
 * another type, a value outside [min, max] or a string with a NUL returns a->error; the text has
 * the key and the value. Strings, objects and arrays are borrowed from the tree. */
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

/* The value of a key; NULL if the key is absent or its value is null. */
json_t *cn_json_find(const cn_json_at *a, const char *key);

/* Reads a whole number in [min, max] from a value, such as an array element. False otherwise. */
bool cn_json_as_i64(const json_t *value, int64_t min, int64_t max, int64_t *out);

/* Token ids: an absent key or null is none, a number is one, an array is several. Each must be
 * below `vocab`, and there may be at most `max`. */
cn_status cn_json_token_ids(const cn_json_at *a, const char *key, uint32_t vocab, uint32_t max,
                            uint32_t *out, uint32_t *n_out);
