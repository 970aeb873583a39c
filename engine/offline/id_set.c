/* id_set.c - open addressing with linear probing. The marks are in the two low bits of an entry; an
 * entry without marks is free. See id_set.h. */
#include "engine/offline/id_set.h"

enum { MARK_BITS = 3, FIRST_CAP = 1024 };

cn_id cn_id_of(const char *kind, const void *text, size_t n)
{
    uint64_t seed = cn_hash64(0, kind, strlen(kind));
    cn_id id = {.hi = cn_hash64(seed, text, n)};
    /* The seed of the second hash is the first one, so that texts which agree in one half do not
     * agree in the other. */
    id.lo = cn_hash64(id.hi, text, n) & ~(uint64_t)MARK_BITS;
    return id;
}

void cn_id_format(cn_id id, char text[CN_ID_TEXT_BYTES])
{
    snprintf(text, CN_ID_TEXT_BYTES, "%016llx%016llx", (unsigned long long)id.hi,
             (unsigned long long)id.lo);
}

static bool parse_ids_hex(const char *text, uint64_t *out)
{
    *out = 0;
    for (int i = 0; i < 16; i++) {
        const char c = text[i];
        uint64_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint64_t)(c - 'a') + 10;
        else
            return false;
        *out = *out << 4 | digit;
    }
    return true;
}

bool cn_id_parse(const char *text, cn_id *out)
{
    return strlen(text) == CN_ID_TEXT_BYTES - 1 && parse_ids_hex(text, &out->hi) &&
           parse_ids_hex(text + 16, &out->lo) && (out->lo & MARK_BITS) == 0;
}

/* Index of the slot of id, or of the free slot where it belongs. */
static size_t find_id(const cn_id_set *s, cn_id id)
{
    size_t i = (size_t)id.hi & (s->cap - 1);
    for (const cn_id *at; (at = &s->slots[i].id)->lo & MARK_BITS;) {
        if (at->hi == id.hi && (at->lo & ~(uint64_t)MARK_BITS) == id.lo) break;
        i = (i + 1) & (s->cap - 1);
    }
    return i;
}

static cn_status grow_ids(cn_id_set *s)
{
    cn_id_set wider = {.cap = s->cap ? s->cap * 2 : FIRST_CAP, .len = s->len};
    wider.slots = cn_calloc(wider.cap, sizeof *wider.slots);
    if (!wider.slots)
        return cn_fail(CN_ERR_MEMORY, "out of memory for the ids of %zu lines", wider.cap);
    for (size_t i = 0; i < s->cap; i++) {
        cn_id id = s->slots[i].id;
        if (!(id.lo & MARK_BITS)) continue;
        id.lo &= ~(uint64_t)MARK_BITS;
        wider.slots[find_id(&wider, id)] = s->slots[i];
    }
    cn_free(s->slots);
    *s = wider;
    return CN_OK;
}

unsigned cn_id_set_marks(const cn_id_set *s, cn_id id)
{
    return s->cap ? (unsigned)(s->slots[find_id(s, id)].id.lo & MARK_BITS) : 0;
}

cn_status cn_id_set_add(cn_id_set *s, cn_id id, cn_id_mark mark)
{
    if (4 * (s->len + 1) > 3 * s->cap) CN_TRY(grow_ids(s));
    cn_id *slot = &s->slots[find_id(s, id)].id;
    if (!(slot->lo & MARK_BITS)) {
        *slot = id;
        s->len++;
    }
    slot->lo |= (uint64_t)mark;
    return CN_OK;
}

void cn_id_set_put_hash(cn_id_set *s, cn_id id, uint64_t request_hash)
{
    CN_ASSERT(cn_id_set_marks(s, id));
    s->slots[find_id(s, id)].request_hash = request_hash;
}

uint64_t cn_id_set_hash(const cn_id_set *s, cn_id id)
{
    return cn_id_set_marks(s, id) ? s->slots[find_id(s, id)].request_hash : 0;
}

void cn_id_set_free(cn_id_set *s)
{
    cn_free(s->slots);
    *s = (cn_id_set){0};
}
