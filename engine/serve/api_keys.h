/* api_keys.h - who may ask: named keys from --api-key and --api-key-file.
 *
 * Owner: cn_server. Thread: HTTP. A key file has one key a line, "name:key" or the key alone (named
 * key-1, key-2 by their order); blank lines and lines that begin with # are skipped. */
#ifndef CN_API_KEYS_H
#define CN_API_KEYS_H

#include "engine/base.h"

typedef struct cn_api_keys cn_api_keys;

enum { CN_API_KEY_NONE = UINT32_MAX, CN_API_KEY_MIN_BYTES = 8 };

/* `list`: comma separated, name:key or key, or NULL; `path`: a file, or NULL. CN_ERR_ARG for a key
 * shorter than CN_API_KEY_MIN_BYTES, a name given twice, a file that others may read. */
cn_status cn_api_keys_load(cn_api_keys **out, const char *list, const char *path);
void cn_api_keys_free(cn_api_keys *k); /* NULL is fine */

uint32_t cn_api_keys_count(const cn_api_keys *k);
const char *cn_api_keys_name(const cn_api_keys *k, uint32_t key);

/* The key that an Authorization header carries, or CN_API_KEY_NONE: "Bearer KEY" or, if allowed,
 * "Basic base64(anybody:KEY)", which is what browsers ask their users for. Takes the same time
 * whichever key matches, and however much of it does. NULL is no header. */
uint32_t cn_api_keys_find(const cn_api_keys *k, const char *authorization, bool allow_basic);

#endif
