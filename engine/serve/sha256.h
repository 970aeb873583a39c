/* sha256.h - SHA-256 (FIPS 180-4) of a short text in memory.
 *
 * Owner: nobody. Thread: any. It is here for the names of API keys, so that the server needs no
 * cryptographic library. cn_hash64 (base.h) would not do: it can be inverted. */
#ifndef CN_SHA256_H
#define CN_SHA256_H

#include "engine/base.h"

enum { CN_SHA256_BYTES = 32 };

void cn_sha256(const void *data, size_t n, uint8_t digest[CN_SHA256_BYTES]);

#endif
