/* sha256.c - see sha256.h. What FIPS 180-4 calls a to h is h[0] to h[7] here. */
#include "engine/serve/sha256.h"

#include <string.h>

enum { BLOCK_BYTES = 64, LENGTH_BYTES = 8, ROUNDS = 64 };

/* The fractions of the cube roots of the first 64 primes. */
static const uint32_t cube_roots[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

/* The 16 words of the block, big-endian, and 48 made from them. */
static void expand(const uint8_t *block, uint32_t w[ROUNDS])
{
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < ROUNDS; i++) {
        const uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + w[i - 7] +
               (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
    }
}

static void add_block(uint32_t hash[8], const uint8_t *block)
{
    uint32_t w[ROUNDS], h[8];
    expand(block, w);
    memcpy(h, hash, sizeof h);
    for (int i = 0; i < ROUNDS; i++) {
        const uint32_t e = h[4], a = h[0];
        const uint32_t chosen = (e & h[5]) ^ (~e & h[6]);
        const uint32_t majority = (a & h[1]) ^ (a & h[2]) ^ (h[1] & h[2]);
        const uint32_t t = h[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + chosen +
                           cube_roots[i] + w[i];
        memmove(h + 1, h, 7 * sizeof *h);
        h[4] += t;
        h[0] = t + (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + majority;
    }
    for (int i = 0; i < 8; i++) hash[i] += h[i];
}

void cn_sha256(const void *data, size_t n, uint8_t digest[CN_SHA256_BYTES])
{
    /* The fractions of the square roots of the first 8 primes. */
    uint32_t hash[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *p = data;
    size_t left = n;
    for (; left >= BLOCK_BYTES; left -= BLOCK_BYTES, p += BLOCK_BYTES) add_block(hash, p);
    /* The rest, a bit 1, zeros, and the number of bits, in one block or two. */
    uint8_t last[2 * BLOCK_BYTES] = {0};
    const size_t n_last = left + 1 + LENGTH_BYTES <= BLOCK_BYTES ? BLOCK_BYTES : 2 * BLOCK_BYTES;
    if (left > 0) memcpy(last, p, left);
    last[left] = 0x80;
    for (size_t i = 0; i < LENGTH_BYTES; i++)
        last[n_last - 1 - i] = (uint8_t)((uint64_t)n * 8 >> 8 * i);
    for (size_t i = 0; i < n_last; i += BLOCK_BYTES) add_block(hash, last + i);
    for (size_t i = 0; i < CN_SHA256_BYTES; i++)
        digest[i] = (uint8_t)(hash[i / 4] >> (24 - 8 * (i % 4)));
}
