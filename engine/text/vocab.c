/* vocab.c - the tokens of a vocabulary. See vocab.h. */
#include "engine/text/vocab.h"

#include "engine/base/utf8.h"

enum { FREE_SLOT = 0xFFFFFFFF };

/* GPT-2's alphabet keeps the printable bytes and shifts the 68 others, in order, to U+0100 and
 * up. */
static bool is_printable(uint32_t byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

uint32_t cn_vocab_byte_char(unsigned char byte)
{
    if (is_printable(byte)) return byte;
    if (byte <= ' ') return 0x100u + byte;
    return byte == 0xAD ? 0x143u : 0x100u + 33 + (byte - 0x7Fu);
}

int cn_vocab_char_byte(uint32_t cp)
{
    if (cp < 0x100) return is_printable(cp) ? (int)cp : -1;
    if (cp == 0x143) return 0xAD;
    uint32_t shifted = cp - 0x100;
    if (shifted <= ' ') return (int)shifted;
    return shifted < 67 ? (int)(shifted - 33 + 0x7F) : -1;
}

/* Returns the slot of the content, or the free slot where it belongs. */
static uint32_t *find_vocab_slot(const cn_vocab *v, const char *content, size_t n)
{
    for (size_t i = cn_hash64(0, content, n);; i++) {
        uint32_t *slot = &v->table[i & (v->table_size - 1)];
        if (*slot == FREE_SLOT) return slot;
        const cn_vocab_entry *e = &v->entries[*slot];
        if (e->n_content == n && memcmp(v->text.data + e->content, content, n) == 0) return slot;
    }
}

static cn_status grow_table(cn_vocab *v)
{
    size_t size = v->table_size ? 2 * v->table_size : 1024;
    uint32_t *table = cn_realloc(NULL, size, sizeof *table);
    if (!table) return cn_fail(CN_ERR_MEMORY, "out of memory for a vocabulary of %zu", size);
    cn_free(v->table);
    v->table = table;
    v->table_size = size;
    memset(table, 0xFF, size * sizeof *table);
    for (uint32_t id = 0; id < v->len; id++) {
        const cn_vocab_entry *e = &v->entries[id];
        if (e->present) *find_vocab_slot(v, v->text.data + e->content, e->n_content) = id;
    }
    return CN_OK;
}

static cn_status grow_entries(cn_vocab *v, uint32_t id)
{
    if (id < v->cap) return CN_OK;
    uint32_t cap = v->cap ? v->cap : 1024;
    while (cap <= id) cap *= 2;
    cn_vocab_entry *entries = cn_realloc(v->entries, cap, sizeof *entries);
    if (!entries) return cn_fail(CN_ERR_MEMORY, "out of memory for %u tokens", cap);
    memset(entries + v->cap, 0, (cap - v->cap) * sizeof *entries);
    v->entries = entries;
    v->cap = cap;
    return CN_OK;
}

cn_status cn_vocab_set_bytes(cn_vocab *v, uint32_t id, const char *content, size_t n)
{
    size_t start = v->text.len, len;
    bool byte_level = true;
    for (size_t at = 0; at < n && byte_level; at += len) {
        uint32_t cp;
        cn_utf8_read(content + at, n - at, &cp, &len);
        int byte = cn_vocab_char_byte(cp);
        byte_level = byte >= 0;
        char raw = (char)byte;
        if (byte_level) CN_TRY(cn_buf_add(&v->text, &raw, 1));
    }
    if (!byte_level) {
        v->text.len = start;
        CN_TRY(cn_buf_add(&v->text, content, n));
    }
    cn_vocab_entry *e = &v->entries[id];
    e->bytes = start;
    e->n_bytes = (uint32_t)(v->text.len - start);
    e->byte_level = byte_level;
    return CN_OK;
}

cn_status cn_vocab_add(cn_vocab *v, const char *content, size_t n, uint32_t id)
{
    if (id > CN_VOCAB_MAX_ID || n > UINT32_MAX)
        return cn_fail(CN_ERR_MODEL, "token id %u exceeds the maximum of %d", id, CN_VOCAB_MAX_ID);
    if (2 * ((size_t)v->count + 1) > v->table_size) CN_TRY(grow_table(v));
    uint32_t *slot = find_vocab_slot(v, content, n);
    if (*slot != FREE_SLOT)
        return cn_fail(CN_ERR_MODEL, "the same token has two ids, %u and %u", *slot, id);
    if (cn_vocab_at(v, id)) return cn_fail(CN_ERR_MODEL, "id %u has two tokens", id);
    CN_TRY(grow_entries(v, id));
    size_t start = v->text.len;
    CN_TRY(cn_buf_add(&v->text, content, n));
    v->entries[id] = (cn_vocab_entry){.content = start, .n_content = (uint32_t)n};
    CN_TRY(cn_vocab_set_bytes(v, id, content, n));
    v->entries[id].present = true;
    *slot = id;
    v->count++;
    v->len = cn_max_u32(v->len, id + 1);
    return CN_OK;
}

void cn_vocab_free(cn_vocab *v)
{
    cn_buf_free(&v->text);
    cn_free(v->entries);
    cn_free(v->table);
    *v = (cn_vocab){0};
}

bool cn_vocab_find(const cn_vocab *v, const char *content, size_t n, uint32_t *id)
{
    if (!v->table) return false;
    uint32_t slot = *find_vocab_slot(v, content, n);
    if (slot == FREE_SLOT) return false;
    *id = slot;
    return true;
}

const cn_vocab_entry *cn_vocab_at(const cn_vocab *v, uint32_t id)
{
    return id < v->len && v->entries[id].present ? &v->entries[id] : NULL;
}
