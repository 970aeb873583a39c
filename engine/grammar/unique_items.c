/* unique_items.c - see unique_items.h. */
#include "engine/grammar/unique_items.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/utf8.h"

enum { FIRST_KNOWN = 64, NUMBER_BYTES = 340 };

void cn_unique_items_free(cn_unique_items *u)
{
    cn_buf_free(&u->text);
    cn_free(u->known);
    cn_free(u->slots);
    *u = (cn_unique_items){0};
}

/* ---- the set ---- */

/* Of a text with one more byte. */
static uint64_t extend(uint64_t hash, char c)
{
    hash = (hash + (uint8_t)c + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

/* Of no byte: arrays have hashes of their own. */
static uint64_t begin_hash(const cn_unique_items *u) { return extend(u->at.base, '\0'); }

/* Of a text that is a whole item. */
static uint64_t whole(uint64_t hash) { return ~extend(hash, '\0'); }

/* The slot that has the hash, which is not 0, or a free one. */
static uint64_t *find_unique_slot(cn_unique_items *u, uint64_t hash)
{
    uint32_t i = (uint32_t)hash & (u->n_slots - 1);
    while (u->slots[i] && u->slots[i] != hash) i = (i + 1) & (u->n_slots - 1);
    return &u->slots[i];
}

static bool is_known(cn_unique_items *u, uint64_t hash)
{
    u->steps++;
    return u->n_slots > 0 && *find_unique_slot(u, hash | 1);
}

/* Twice as many slots. */
static cn_status grow_unique(cn_unique_items *u)
{
    const uint32_t cap = u->cap_known ? 2 * u->cap_known : FIRST_KNOWN, n_slots = 2 * cap;
    uint64_t *known = cn_realloc(u->known, cap, sizeof *known);
    if (known) u->known = known;
    uint64_t *slots = cn_calloc(n_slots, sizeof *slots);
    if (!known || !slots) {
        cn_free(slots);
        return cn_fail(CN_ERR_MEMORY, "out of memory for the items of an array");
    }
    cn_free(u->slots);
    u->slots = slots;
    u->n_slots = n_slots;
    u->cap_known = cap;
    for (uint32_t i = 0; i < u->at.n_known; i++) *find_unique_slot(u, u->known[i]) = u->known[i];
    return CN_OK;
}

static cn_status add_known(cn_unique_items *u, uint64_t hash)
{
    if (is_known(u, hash)) return CN_OK;
    if (u->at.n_known == u->cap_known) CN_TRY(grow_unique(u));
    *find_unique_slot(u, hash | 1) = hash | 1;
    u->known[u->at.n_known++] = hash | 1;
    return CN_OK;
}

void cn_unique_items_back(cn_unique_items *u, const cn_items_mark *mark)
{
    for (uint32_t i = u->at.n_known; i > mark->n_known; i--)
        *find_unique_slot(u, u->known[i - 1]) = 0;
    u->at = *mark;
    u->text.len = mark->len;
    if (u->text.data) u->text.data[mark->len] = '\0';
}

void cn_unique_items_keep(cn_unique_items *u)
{
    if (u->at.place == CN_ITEMS_NONE) cn_unique_items_back(u, &(cn_items_mark){0});
}

/* ---- items ---- */

static cn_status add_item_bytes(cn_unique_items *u, const char *bytes, size_t n)
{
    CN_TRY(cn_buf_add(&u->text, bytes, n));
    u->at.len = (uint32_t)u->text.len;
    return CN_OK;
}

static cn_status begin_item(cn_unique_items *u, cn_items_place place, char c)
{
    u->at.place = place;
    u->at.begin = (uint32_t)u->text.len;
    u->at.hash = extend(begin_hash(u), c);
    u->at.is_new = place == CN_ITEMS_STRING && !is_known(u, u->at.hash);
    return add_item_bytes(u, &c, 1);
}

/* The item in progress has ended: its text is as it is compared. */
static cn_status end_unique_item(cn_unique_items *u, bool *same)
{
    const bool is_string = u->at.place == CN_ITEMS_STRING;
    uint64_t hash = begin_hash(u);
    u->at.place = CN_ITEMS_AFTER;
    for (uint32_t i = u->at.begin; i < u->at.len; i++) {
        hash = extend(hash, u->text.data[i]);
        if (is_string) CN_TRY(add_known(u, hash));
    }
    *same = is_known(u, whole(hash));
    u->at.n++;
    CN_TRY(add_known(u, whole(hash)));
    return add_item_bytes(u, "\xff", 1); /* in no item: the texts of other items differ */
}

/* ---- numbers and literals ---- */

static bool is_word_byte(uint8_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' ||
           c == '-' || c == '.';
}

/* Writes the text of a number by which it is compared. False: the word stays as it is. */
static bool try_unique_number(const char *word, char *out)
{
    const bool is_number = *word == '-' || (*word >= '0' && *word <= '9');
    if (!is_number || (!strpbrk(word, ".eE") && strcmp(word, "-0") != 0)) return false;
    const double x = strtod(word, NULL);
    snprintf(out, NUMBER_BYTES, floor(x) == x ? "%.0f" : "%.17g", x == 0 ? 0.0 : x);
    return true;
}

/* The compared text follows that of the word, to which the text may go back. */
static cn_status end_unique_word(cn_unique_items *u, bool *same)
{
    char number[NUMBER_BYTES];
    const uint32_t begin = u->at.begin;
    const bool changed = try_unique_number(u->text.data + begin, number);
    if (changed) {
        u->at.begin = (uint32_t)u->text.len;
        CN_TRY(add_item_bytes(u, number, strlen(number)));
    }
    return end_unique_item(u, same);
}

/* ---- strings ---- */

static cn_status add_unique_text(cn_unique_items *u, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) u->at.hash = extend(u->at.hash, bytes[i]);
    if (!u->at.is_new) u->at.is_new = !is_known(u, u->at.hash);
    return add_item_bytes(u, bytes, n);
}

static uint32_t hex_unit(const char *digits)
{
    char text[5] = "";
    memcpy(text, digits, 4);
    return (uint32_t)strtoul(text, NULL, 16);
}

/* Takes a byte of an escape sequence. */
static cn_status add_unique_escaped(cn_unique_items *u, char c)
{
    static const char codes[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    cn_items_mark *at = &u->at;
    char text[4];
    at->escape[at->n_escape++] = c;
    if (at->n_escape == 2 && c != 'u') {
        const char *code = strchr(codes, c);
        at->n_escape = 0;
        return code ? add_unique_text(u, &bytes[code - codes], 1) : CN_OK;
    }
    if (at->n_escape != 6 && at->n_escape != CN_ITEM_ESCAPE_BYTES) return CN_OK;
    uint32_t character = hex_unit(at->escape + 2);
    const bool is_half = character >= 0xd800 && character < 0xdc00;
    if (is_half && at->n_escape == 6) return CN_OK;
    if (is_half)
        character = 0x10000 + ((character & 0x3ff) << 10) + (hex_unit(at->escape + 8) & 0x3ff);
    at->n_escape = 0;
    return add_unique_text(u, text, cn_utf8_write(text, character));
}

static cn_status read_unique_string(cn_unique_items *u, char c, bool *same)
{
    if (u->at.n_escape > 0) return add_unique_escaped(u, c);
    if (c == '"') return end_unique_item(u, same);
    if (c != '\\') return add_unique_text(u, &c, 1);
    u->at.escape[u->at.n_escape++] = c;
    return CN_OK;
}

/* ---- the array ---- */

static void begin_array(cn_unique_items *u)
{
    u->at.place = CN_ITEMS_BEFORE;
    u->at.base = u->at.n;
}

static cn_status read_before(cn_unique_items *u, uint8_t byte, bool opens)
{
    if (byte == '"') return begin_item(u, CN_ITEMS_STRING, '"');
    if (is_word_byte(byte)) return begin_item(u, CN_ITEMS_WORD, (char)byte);
    if (byte == ']' || byte == '[' || byte == '{') u->at.place = CN_ITEMS_NONE;
    if (byte == '[' && opens) begin_array(u);
    return CN_OK;
}

cn_status cn_unique_items_read(cn_unique_items *u, uint8_t byte, bool opens, bool *same)
{
    *same = false;
    switch (u->at.place) {
    case CN_ITEMS_NONE:
        if (byte == '[' && opens) begin_array(u);
        return CN_OK;
    case CN_ITEMS_BEFORE: return read_before(u, byte, opens);
    case CN_ITEMS_STRING: return read_unique_string(u, (char)byte, same);
    case CN_ITEMS_WORD:
        if (is_word_byte(byte)) return add_item_bytes(u, (const char *)&byte, 1);
        CN_TRY(end_unique_word(u, same));
        break;
    case CN_ITEMS_AFTER: break;
    }
    if (byte == ',') u->at.place = CN_ITEMS_BEFORE;
    if (byte == ']') u->at.place = CN_ITEMS_NONE;
    return CN_OK;
}
