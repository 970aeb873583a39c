/* api_keys.c - see api_keys.h. */
#include "engine/serve/http/api_keys.h"

#include <errno.h>
#include <sha2.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>

#include "engine/base/line_reader.h"

enum {
    MAX_KEY_BYTES = 256,
    MAX_LINE_BYTES = 1024,
    NAME_DIGEST_BYTES = 6 /* of the digest in the name of an unnamed key */
};

typedef struct api_key {
    char *name;
    bool admin;
    int32_t min_priority;
    char secret[MAX_KEY_BYTES]; /* padded with zeros: the whole array is compared */
} api_key;

struct cn_api_keys {
    api_key *keys;
    uint32_t n;
};

/* Reads the words after a key: admin, priority=N. */
static cn_status read_rights(api_key *key, const char *text, size_t n, const char *where)
{
    char words[MAX_LINE_BYTES + 1], *save = NULL;
    snprintf(words, sizeof words, "%.*s", (int)n, text);
    for (char *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *end = word;
        const bool sets = strncmp(word, "priority=", 9) == 0;
        const long long priority = sets ? strtoll(word + 9, &end, 10) : 0;
        const bool valid =
            sets && end > word + 9 && !*end && priority >= INT32_MIN && priority <= INT32_MAX;
        if (strcmp(word, "admin") == 0)
            key->admin = true;
        else if (valid)
            key->min_priority = (int32_t)priority;
        else
            return cn_fail(CN_ERR_ARG,
                           "%s: key \"%s\": expected admin or priority=NUMBER after the "
                           "key, got \"%s\"",
                           where, key->name, word);
    }
    return CN_OK;
}

/* Makes the name of an unnamed key from the key. The spool stores names as owners, so a name must
 * not depend on the other lines of the key file. */
static char *keys_name_of(const char *secret, size_t n)
{
    static const char prefix[] = "key-";
    char name[sizeof prefix + 2 * NAME_DIGEST_BYTES];
    uint8_t digest[SHA256_DIGEST_LENGTH];
    SHA2_CTX sha256;
    SHA256Init(&sha256);
    SHA256Update(&sha256, (const uint8_t *)secret, n);
    SHA256Final(digest, &sha256);
    memcpy(name, prefix, sizeof prefix);
    for (size_t i = 0; i < NAME_DIGEST_BYTES; i++)
        snprintf(name + sizeof prefix - 1 + 2 * i, 3, "%02x", digest[i]);
    return cn_strdup(name);
}

/* The last key must have a name and a text of its own. */
static cn_status check_duplicate(const cn_api_keys *k, const char *where)
{
    const api_key *key = &k->keys[k->n - 1];
    for (uint32_t i = 0; i + 1 < k->n; i++) {
        const bool named = strcmp(k->keys[i].name, key->name) == 0;
        if (strcmp(k->keys[i].secret, key->secret) == 0)
            return cn_fail(CN_ERR_ARG, "%s: key %u is the same as key %u: use another one", where,
                           k->n, i + 1);
        if (named)
            return cn_fail(CN_ERR_ARG, "%s: duplicate key name \"%s\": give each key its own name",
                           where, key->name);
    }
    return CN_OK;
}

/* `line`: [NAME:]KEY [admin] [priority=N]. */
static cn_status add_key(cn_api_keys *k, const char *text, size_t n_line, const char *where)
{
    const char *blank = memchr(text, ' ', n_line);
    const size_t n = blank ? (size_t)(blank - text) : n_line;
    const char *colon = memchr(text, ':', n);
    size_t n_name = colon ? (size_t)(colon - text) : 0;
    const char *secret = colon ? colon + 1 : text;
    size_t n_secret = n - (colon ? n_name + 1 : 0);
    if (n_secret < CN_API_KEY_MIN_BYTES || n_secret >= MAX_KEY_BYTES || (colon && n_name == 0))
        return cn_fail(CN_ERR_ARG,
                       "%s: key %u: expected KEY or NAME:KEY with a key of %d to %d "
                       "bytes, got a key of %zu bytes%s",
                       where, k->n + 1, CN_API_KEY_MIN_BYTES, MAX_KEY_BYTES - 1, n_secret,
                       colon && n_name == 0 ? " and an empty name" : "");
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return cn_fail(CN_ERR_ARG, "%s: key %u: expected printable ASCII without spaces, got "
                           "byte 0x%02x", where, k->n + 1, (unsigned char)text[i]);
    char *name = colon ? cn_strndup(text, n_name) : keys_name_of(secret, n_secret);
    api_key *keys = cn_realloc(k->keys, k->n + 1, sizeof *keys);
    if (keys) k->keys = keys;
    if (!keys || !name) {
        cn_free(name);
        return cn_fail(CN_ERR_MEMORY, "out of memory for the API keys");
    }
    api_key *key = &keys[k->n];
    memset(key, 0, sizeof *key);
    key->name = name;
    memcpy(key->secret, secret, n_secret);
    k->n++;
    CN_TRY(check_duplicate(k, where));
    return read_rights(key, text + n, n_line - n, where);
}

static cn_status add_list(cn_api_keys *k, const char *list)
{
    for (const char *p = list;; p++) {
        size_t n = strcspn(p, ",");
        CN_TRY(add_key(k, p, n, "--api-key"));
        p += n;
        if (!*p) return CN_OK;
    }
}

static cn_status add_lines(cn_api_keys *k, cn_line_reader *r, const char *path)
{
    for (;;) {
        cn_line line;
        cn_line_state state;
        CN_TRY(cn_line_reader_next(r, -1, &line, &state));
        if (state == CN_LINE_END) return CN_OK;
        if (state == CN_LINE_READY && line.text[0] != '#')
            CN_TRY(add_key(k, line.text, line.n, path));
    }
}

static cn_status add_keys_file(cn_api_keys *k, const char *path)
{
    cn_line_reader *r;
    struct stat st;
    CN_TRY(cn_line_reader_open(&r, path, MAX_LINE_BYTES));
    cn_status status = CN_OK;
    if (fstat(cn_line_reader_fd(r), &st) != 0)
        status = cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
    else if (st.st_mode & (S_IROTH | S_IWOTH))
        status = cn_fail(CN_ERR_ARG, "%s: the key file is readable or writable by every user: run "
                         "chmod o-rw", path);
    else
        status = add_lines(k, r, path);
    if (status == CN_OK && st.st_mode & (S_IRGRP | S_IWGRP))
        cn_log(CN_LOG_WARN, "%s: the key file is readable or writable by its group: run chmod g-rw "
               "unless every member may use the keys", path);
    cn_line_reader_close(r);
    return status;
}

cn_status cn_api_keys_load(cn_api_keys **out, const char *list, const char *path)
{
    cn_api_keys *k = cn_calloc(1, sizeof *k);
    if (!k) return cn_fail(CN_ERR_MEMORY, "out of memory for the API keys");
    cn_status status = list ? add_list(k, list) : CN_OK;
    if (status == CN_OK && path) status = add_keys_file(k, path);
    if (status == CN_OK && path && k->n == 0)
        status = cn_fail(CN_ERR_ARG, "%s: the key file has no keys: expected a line KEY or "
                         "NAME:KEY for each client", path);
    if (status == CN_OK)
        *out = k;
    else
        cn_api_keys_free(k);
    return status;
}

void cn_api_keys_free(cn_api_keys *k)
{
    if (!k) return;
    for (uint32_t i = 0; i < k->n; i++) cn_free(k->keys[i].name);
    cn_free(k->keys);
    cn_free(k);
}

uint32_t cn_api_keys_count(const cn_api_keys *k) { return k->n; }

const char *cn_api_keys_name(const cn_api_keys *k, uint32_t key)
{
    CN_ASSERT(key < k->n);
    return k->keys[key].name;
}

bool cn_api_keys_is_admin(const cn_api_keys *k, uint32_t key) { return k->keys[key].admin; }

int32_t cn_api_keys_min_priority(const cn_api_keys *k, uint32_t key)
{
    return k->keys[key].min_priority;
}

uint32_t cn_api_keys_find_name(const cn_api_keys *k, const char *name)
{
    for (uint32_t i = 0; i < k->n; i++)
        if (strcmp(k->keys[i].name, name) == 0) return i;
    return CN_API_KEY_NONE;
}

/* ---- finding ---- */

/* Compares every byte of every key and never branches on the result, so that the time does not
 * depend on which key matches or how much of it does. */
static uint32_t find_secret(const cn_api_keys *k, const char *secret, size_t n)
{
    char padded[MAX_KEY_BYTES] = {0};
    uint32_t found = CN_API_KEY_NONE;
    memcpy(padded, secret, n < MAX_KEY_BYTES ? n : MAX_KEY_BYTES - 1);
    for (uint32_t i = 0; i < k->n; i++) {
        volatile unsigned char differs = n >= MAX_KEY_BYTES;
        for (size_t b = 0; b < MAX_KEY_BYTES; b++)
            differs = (unsigned char)(differs | (padded[b] ^ k->keys[i].secret[b]));
        uint32_t mask = (uint32_t)-(int32_t)(differs == 0);
        found = (found & ~mask) | (i & mask);
    }
    return found;
}

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Returns the number of bytes decoded into out[size], or -1. */
static ptrdiff_t decode_base64(const char *text, char *out, size_t size)
{
    uint32_t bits = 0, n_bits = 0;
    size_t n = 0;
    for (; *text && *text != '='; text++) {
        int value = base64_value(*text);
        if (value < 0 || n == size) return -1;
        bits = (bits << 6 | (uint32_t)value) & 0xffff;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        out[n++] = (char)(bits >> n_bits & 0xff);
    }
    return (ptrdiff_t)n;
}

uint32_t cn_api_keys_find(const cn_api_keys *k, const char *authorization, bool allow_basic)
{
    if (!authorization) return CN_API_KEY_NONE;
    size_t n_scheme = strcspn(authorization, " ");
    const char *value = authorization + n_scheme + strspn(authorization + n_scheme, " ");
    if (n_scheme == 6 && strncasecmp(authorization, "Bearer", 6) == 0)
        return find_secret(k, value, strlen(value));
    if (!allow_basic || n_scheme != 5 || strncasecmp(authorization, "Basic", 5) != 0)
        return CN_API_KEY_NONE;
    char plain[2 * MAX_KEY_BYTES];
    ptrdiff_t n = decode_base64(value, plain, sizeof plain);
    const char *colon = n > 0 ? memchr(plain, ':', (size_t)n) : NULL;
    if (!colon) return CN_API_KEY_NONE;
    return find_secret(k, colon + 1, (size_t)(plain + n - (colon + 1)));
}
