/* jinja_value.c - arena, values, comparison. See jinja_value.h. */
#include "engine/text/jinja/jinja_value.h"

#include <stdalign.h>

enum { CHUNK_BYTES = 32 << 10, COMPARE_DEPTH = 64 };

struct cn_jchunk {
    cn_jchunk *next;
    size_t used, cap;
    max_align_t data[];
};

/* ---- arena ---- */

static cn_status add_chunk(cn_jarena *a, size_t bytes)
{
    size_t cap = bytes > CHUNK_BYTES / 4 ? bytes : CHUNK_BYTES;
    if (a->used > a->limit || cap > a->limit - a->used) {
        a->exceeded = true;
        return cn_fail(a->error, "the values of the template exceed %zu bytes", a->limit);
    }
    cn_jchunk *c = cn_calloc(1, sizeof *c + cap);
    if (!c) return cn_fail(CN_ERR_MEMORY, "out of memory for a template");
    c->cap = cap;
    c->next = a->chunks;
    a->chunks = c;
    a->used += cap;
    return CN_OK;
}

cn_status cn_jalloc(cn_jarena *a, size_t n, size_t size, void *out)
{
    size_t bytes;
    if (!cn_mul_size(n, size, &bytes) || bytes > a->limit) bytes = a->limit;
    bytes = (size_t)cn_round_up(bytes, sizeof(max_align_t));
    if (!a->chunks || a->chunks->cap - a->chunks->used < bytes) CN_TRY(add_chunk(a, bytes));
    cn_jchunk *c = a->chunks;
    void *at = (char *)c->data + c->used;
    c->used += bytes;
    /* A large block keeps the chunk before it in use. */
    if (c->used == c->cap && c->next && c->next->cap - c->next->used > c->cap - c->used) {
        a->chunks = c->next;
        c->next = a->chunks->next;
        a->chunks->next = c;
    }
    memcpy(out, &at, sizeof at);
    return CN_OK;
}

void cn_jarena_free(cn_jarena *a)
{
    for (cn_jchunk *next, *c = a->chunks; c; c = next) {
        next = c->next;
        cn_free(c);
    }
    a->chunks = NULL;
}

/* ---- lists, dicts, strings ---- */

/* Room for one more item of `size` bytes in *items. */
static cn_status grow_value(cn_jarena *a, void *items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) return CN_OK;
    size_t more = *cap ? 2 * *cap : 4;
    void *old, *grown;
    memcpy(&old, items, sizeof old);
    CN_TRY(cn_jalloc(a, more, size, &grown));
    if (n) memcpy(grown, old, n * size);
    memcpy(items, &grown, sizeof grown);
    *cap = more;
    return CN_OK;
}

cn_status cn_jlist_new(cn_jarena *a, cn_jkind kind, size_t cap, cn_jvalue *out)
{
    cn_jlist *list;
    CN_TRY(cn_jalloc(a, 1, sizeof *list, &list));
    if (cap) CN_TRY(cn_jalloc(a, cap, sizeof *list->at, &list->at));
    list->cap = cap;
    *out = (cn_jvalue){.kind = kind, .list = list};
    return CN_OK;
}

cn_status cn_jlist_add(cn_jarena *a, cn_jlist *list, cn_jvalue v)
{
    CN_TRY(grow_value(a, &list->at, list->n, &list->cap, sizeof *list->at));
    list->at[list->n++] = v;
    return CN_OK;
}

cn_status cn_jpair_new(cn_jarena *a, cn_jvalue first, cn_jvalue second, cn_jvalue *out)
{
    CN_TRY(cn_jlist_new(a, CN_J_TUPLE, 2, out));
    CN_TRY(cn_jlist_add(a, out->list, first));
    return cn_jlist_add(a, out->list, second);
}

cn_status cn_jdict_new(cn_jarena *a, cn_jkind kind, size_t cap, cn_jvalue *out)
{
    cn_jdict *dict;
    CN_TRY(cn_jalloc(a, 1, sizeof *dict, &dict));
    if (cap) CN_TRY(cn_jalloc(a, cap, sizeof *dict->at, &dict->at));
    dict->cap = cap;
    *out = (cn_jvalue){.kind = kind, .dict = dict};
    return CN_OK;
}

cn_jvalue *cn_jdict_find(const cn_jdict *dict, cn_jvalue key)
{
    if (key.kind == CN_J_STRING) return cn_jdict_find_text(dict, key.text);
    for (size_t i = 0; i < dict->n; i++)
        if (cn_jsame(dict->at[i].key, key)) return &dict->at[i].value;
    return NULL;
}

cn_jvalue *cn_jdict_find_text(const cn_jdict *dict, cn_jtext key)
{
    for (size_t i = 0; i < dict->n; i++) {
        const cn_jvalue *k = &dict->at[i].key;
        if (k->kind == CN_J_STRING && cn_jtext_same(k->text, key)) return &dict->at[i].value;
    }
    return NULL;
}

cn_status cn_jdict_put(cn_jarena *a, cn_jdict *dict, cn_jvalue key, cn_jvalue v)
{
    cn_jvalue *found = cn_jdict_find(dict, key);
    if (found) {
        *found = v;
        return CN_OK;
    }
    CN_TRY(grow_value(a, &dict->at, dict->n, &dict->cap, sizeof *dict->at));
    dict->at[dict->n++] = (cn_jpair){key, v};
    return CN_OK;
}

cn_status cn_jtext_copy(cn_jarena *a, cn_jtext text, cn_jvalue *out)
{
    char *at;
    CN_TRY(cn_jalloc(a, text.n + 1, 1, &at));
    if (text.n) memcpy(at, text.at, text.n);
    *out = cn_jstring((cn_jtext){at, text.n});
    return CN_OK;
}

bool cn_jtext_same(cn_jtext a, cn_jtext b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.at, b.at, a.n) == 0);
}

/* By code points. */
static int text_order(cn_jtext a, cn_jtext b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int order = n ? memcmp(a.at, b.at, n) : 0;
    return order ? order : (a.n > b.n) - (a.n < b.n);
}

/* ---- truth and comparison ---- */

bool cn_jtruth(cn_jvalue v)
{
    switch (v.kind) {
    case CN_J_MISSING:
    case CN_J_UNDEFINED:
    case CN_J_NONE: return false;
    case CN_J_BOOL: return v.truth;
    case CN_J_INT: return v.integer != 0;
    case CN_J_FLOAT: return v.real < 0 || v.real > 0 || v.real != v.real;
    case CN_J_STRING: return v.text.n > 0;
    case CN_J_LIST:
    case CN_J_TUPLE: return v.list->n > 0;
    case CN_J_DICT: return v.dict->n > 0;
    case CN_J_STREAM:
    case CN_J_NAMESPACE:
    case CN_J_LOOP:
    case CN_J_MACRO:
    case CN_J_BUILTIN: break;
    }
    return true;
}

bool cn_jas_int(cn_jvalue v, int64_t *out)
{
    if (v.kind != CN_J_INT && v.kind != CN_J_BOOL) return false;
    *out = v.kind == CN_J_INT ? v.integer : v.truth;
    return true;
}

bool cn_jas_real(cn_jvalue v, double *out)
{
    int64_t i = 0;
    if (v.kind != CN_J_FLOAT && !cn_jas_int(v, &i)) return false;
    *out = v.kind == CN_J_FLOAT ? v.real : (double)i;
    return true;
}

static bool are_same(cn_jvalue a, cn_jvalue b, int depth);

static bool same_lists(const cn_jlist *a, const cn_jlist *b, int depth)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!are_same(a->at[i], b->at[i], depth)) return false;
    return true;
}

static bool same_dicts(const cn_jdict *a, const cn_jdict *b, int depth)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const cn_jvalue *other = cn_jdict_find(b, a->at[i].key);
        if (!other || !are_same(a->at[i].value, *other, depth)) return false;
    }
    return true;
}

static bool are_same(cn_jvalue a, cn_jvalue b, int depth)
{
    int64_t i, j;
    double x, y;
    if (cn_jas_int(a, &i) && cn_jas_int(b, &j)) return i == j;
    if (cn_jas_real(a, &x) && cn_jas_real(b, &y)) return !(x < y) && !(x > y) && x == x && y == y;
    if (a.kind != b.kind || depth == COMPARE_DEPTH) return false;
    switch (a.kind) {
    case CN_J_STRING: return cn_jtext_same(a.text, b.text);
    case CN_J_LIST:
    case CN_J_TUPLE: return same_lists(a.list, b.list, depth + 1);
    case CN_J_DICT: return same_dicts(a.dict, b.dict, depth + 1);
    case CN_J_STREAM: return a.list == b.list;
    case CN_J_NAMESPACE: return a.dict == b.dict;
    case CN_J_LOOP: return a.loop == b.loop;
    case CN_J_MACRO: return a.macro == b.macro;
    case CN_J_BUILTIN: return a.bound == b.bound;
    case CN_J_MISSING:
    case CN_J_UNDEFINED:
    case CN_J_NONE:
    case CN_J_BOOL:
    case CN_J_INT:
    case CN_J_FLOAT: break;
    }
    return true;
}

bool cn_jsame(cn_jvalue a, cn_jvalue b) { return are_same(a, b, 0); }

static bool order(cn_jvalue a, cn_jvalue b, int *out, int depth)
{
    int64_t i, j;
    double x, y;
    if (cn_jas_int(a, &i) && cn_jas_int(b, &j)) {
        *out = (i > j) - (i < j);
        return true;
    }
    if (cn_jas_real(a, &x) && cn_jas_real(b, &y)) {
        *out = (x > y) - (x < y);
        return true;
    }
    if (a.kind != b.kind || depth == COMPARE_DEPTH) return false;
    if (a.kind == CN_J_STRING) {
        *out = text_order(a.text, b.text);
        return true;
    }
    if (a.kind != CN_J_LIST && a.kind != CN_J_TUPLE) return false;
    for (size_t k = 0; k < a.list->n && k < b.list->n; k++) {
        if (are_same(a.list->at[k], b.list->at[k], depth + 1)) continue;
        return order(a.list->at[k], b.list->at[k], out, depth + 1);
    }
    *out = (a.list->n > b.list->n) - (a.list->n < b.list->n);
    return true;
}

bool cn_jorder(cn_jvalue a, cn_jvalue b, int *out) { return order(a, b, out, 0); }

const char *cn_jtype_name(cn_jvalue v)
{
    static const char *const names[] = {
        [CN_J_MISSING] = "nothing",
        [CN_J_UNDEFINED] = "Undefined",
        [CN_J_NONE] = "NoneType",
        [CN_J_BOOL] = "bool",
        [CN_J_INT] = "int",
        [CN_J_FLOAT] = "float",
        [CN_J_STRING] = "str",
        [CN_J_LIST] = "list",
        [CN_J_TUPLE] = "tuple",
        [CN_J_STREAM] = "iterator",
        [CN_J_DICT] = "dict",
        [CN_J_LOOP] = "loop",
        [CN_J_MACRO] = "macro",
        [CN_J_BUILTIN] = "function",
        [CN_J_NAMESPACE] = "Namespace",
    };
    return names[v.kind];
}

/* Counts until the sum exceeds `most`: a value that contains another one many times can have more
 * parts than memory. */
static void count_value(cn_jvalue v, int depth, size_t most, size_t *sum)
{
    *sum += 1;
    if (v.kind == CN_J_STRING) *sum += v.text.n / 16;
    if (depth == COMPARE_DEPTH || *sum > most) return;
    if (cn_jis_sequence(v))
        for (size_t i = 0; i < v.list->n && *sum <= most; i++)
            count_value(v.list->at[i], depth + 1, most, sum);
    if (v.kind != CN_J_DICT) return;
    *sum += v.dict->n * v.dict->n / 8; /* a comparison looks up each key */
    for (size_t i = 0; i < v.dict->n && *sum <= most; i++)
        count_value(v.dict->at[i].value, depth + 1, most, sum);
}

size_t cn_jsize(cn_jvalue v, size_t most)
{
    size_t sum = 0;
    count_value(v, 0, most, &sum);
    return sum;
}
