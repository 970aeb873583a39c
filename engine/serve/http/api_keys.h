/* api_keys.h - named API keys from --api-key and --api-key-file.
 *
 * Owner: cn_server. Thread: HTTP; getters on any. A key file has one key per line: "name:key" or
 * only the key. A key without a name is called key- and 12 hexadecimal digits of its SHA-256. Such
 * a name stays the same when other lines change. A random key cannot be computed from it, but a
 * reader of the name can test guesses of a short key. Blank lines and lines that begin with # are
 * skipped. The rights of a key follow it after a space: "admin" (it sees the files and batches of
 * all keys) and "priority=N" (the lowest number that its requests may set; default 0). */
#pragma once

#include "engine/base/base.h"

typedef struct cn_api_keys cn_api_keys;

enum { CN_API_KEY_NONE = UINT32_MAX, CN_API_KEY_MIN_BYTES = 8 };

/* `list`: comma-separated keys, each name:key or key; may be NULL. `path`: a key file; may be NULL.
 * CN_ERR_ARG: a key shorter than CN_API_KEY_MIN_BYTES, a duplicate name, or a file that every user
 * may read or write. */
cn_status cn_api_keys_load(cn_api_keys **out, const char *list, const char *path);
void cn_api_keys_free(cn_api_keys *k); /* NULL is fine */

uint32_t cn_api_keys_count(const cn_api_keys *k);
const char *cn_api_keys_name(const cn_api_keys *k, uint32_t key);
bool cn_api_keys_is_admin(const cn_api_keys *k, uint32_t key);
int32_t cn_api_keys_min_priority(const cn_api_keys *k, uint32_t key);
uint32_t cn_api_keys_find_name(const cn_api_keys *k, const char *name); /* or CN_API_KEY_NONE */

/* Returns the index of the key in an Authorization header, or CN_API_KEY_NONE. Accepts "Bearer KEY"
 * and, with allow_basic, "Basic base64(NAME:KEY)" with any name, which browsers send after asking
 * for a name and a password. The time does not depend on which key matches or how much of it does.
 * NULL means that there is no header. */
uint32_t cn_api_keys_find(const cn_api_keys *k, const char *authorization, bool allow_basic);
