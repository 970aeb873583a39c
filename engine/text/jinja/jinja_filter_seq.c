/* jinja_filter_seq.c - filters of lists, dicts and other things that can be iterated. See
 * jinja_builtin.h. */
#include <stdlib.h>

#include "engine/text/jinja/jinja_pystring.h"
#include "engine/text/jinja/jinja_run.h"

/* ---- parts ---- */

static cn_status length(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jvalue v = c->self;
    if (v.kind == CN_J_STRING) CN_TRY(cn_jscan(run, v.text));
    if (v.kind == CN_J_STRING)
        *out = cn_jint((int64_t)cn_pylen(v.text));
    else if (v.kind == CN_J_LIST || v.kind == CN_J_TUPLE)
        *out = cn_jint((int64_t)v.list->n);
    else if (v.kind == CN_J_DICT)
        *out = cn_jint((int64_t)v.dict->n);
    else if (v.kind == CN_J_LOOP)
        *out = cn_jint((int64_t)v.loop->items->n);
    else if (v.kind == CN_J_UNDEFINED)
        *out = cn_jint(0);
    else
        return cn_fail(CN_ERR_ARG, "a %s has no length", cn_jtype_name(v));
    return CN_OK;
}

static cn_status first_or_last(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jlist *items;
    CN_TRY(cn_jiterate(run, c->self, &items));
    *out = cn_jundefined(CN_JTEXT("an item of an empty sequence"));
    if (items->n) *out = items->at[c->name[0] == 'f' ? 0 : items->n - 1];
    return CN_OK;
}

static cn_status to_list(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    *out = (cn_jvalue){.kind = CN_J_LIST};
    return cn_jiterate(run, c->self, &out->list);
}

static cn_status reversed(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jlist *items;
    CN_TRY(cn_jiterate(run, c->self, &items));
    CN_TRY(cn_jwork(run, items->n));
    if (c->self.kind == CN_J_STRING) {
        size_t mark = cn_jmark(run);
        for (size_t i = items->n; i-- > 0;) CN_TRY(cn_jputs(run, items->at[i].text));
        return cn_jcut(run, mark, out);
    }
    CN_TRY(cn_jlist_new(&run->arena, CN_J_STREAM, items->n, out));
    for (size_t i = items->n; i-- > 0;) CN_TRY(cn_jlist_add(&run->arena, out->list, items->at[i]));
    return CN_OK;
}

static cn_status pairs(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    const cn_jdict *dict = c->self.dict;
    CN_TRY(cn_jlist_new(&run->arena, CN_J_STREAM, 0, out));
    if (c->self.kind == CN_J_UNDEFINED) return CN_OK;
    if (c->self.kind != CN_J_DICT)
        return cn_fail(CN_ERR_ARG, "items(): expected a dict, got a %s", cn_jtype_name(c->self));
    CN_TRY(cn_jwork(run, dict->n));
    for (size_t i = 0; i < dict->n; i++) {
        cn_jvalue pair;
        CN_TRY(cn_jpair_new(&run->arena, dict->at[i].key, dict->at[i].value, &pair));
        CN_TRY(cn_jlist_add(&run->arena, out->list, pair));
    }
    return CN_OK;
}

/* ---- attributes ---- */

/* The member of v at a path such as "function.name" or "0"; v itself without a path. */
static cn_status follow_seq(cn_jrun *run, cn_jvalue v, cn_jvalue path, cn_jvalue *out)
{
    *out = v;
    if (path.kind == CN_J_MISSING || path.kind == CN_J_NONE) return CN_OK;
    if (path.kind != CN_J_STRING) return cn_jitem(run, v, path, out);
    for (cn_jtext rest = path.text;;) {
        size_t dot = cn_pyfind(rest, CN_JTEXT("."));
        cn_jtext part = {rest.at, dot == SIZE_MAX ? rest.n : dot};
        cn_jvalue key = cn_jstring(part);
        if (part.n && part.n < 9 && cn_pydigit((unsigned char)*part.at)) {
            int64_t index = 0;
            for (size_t i = 0; i < part.n && cn_pydigit((unsigned char)part.at[i]); i++)
                index = index * 10 + part.at[i] - '0';
            key = cn_jint(index);
        }
        CN_TRY(cn_jitem(run, *out, key, out));
        if (dot == SIZE_MAX) return CN_OK;
        rest = (cn_jtext){rest.at + dot + 1, rest.n - dot - 1};
    }
}

/* What a comparison without regard to case compares. */
static cn_status fold(cn_jrun *run, cn_jvalue v, bool cased, cn_jvalue *out)
{
    *out = v;
    if (cased || v.kind != CN_J_STRING) return CN_OK;
    const cn_jbuiltin *lower = cn_jfind_filter(CN_JTEXT("lower"));
    return cn_jbuiltin_call(run, lower, v, &(cn_jargs){0}, out);
}

static cn_status join_items(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jlist *items;
    cn_jtext between = {0};
    CN_TRY(cn_jiterate(run, c->self, &items));
    if (c->slot[0].kind != CN_J_MISSING) CN_TRY(cn_jstr(run, c->slot[0], &between));
    size_t mark = cn_jmark(run);
    for (size_t i = 0; i < items->n; i++) {
        cn_jvalue v;
        CN_TRY(cn_jwork(run, 1));
        CN_TRY(follow_seq(run, items->at[i], c->slot[1], &v));
        if (i) CN_TRY(cn_jputs(run, between));
        CN_TRY(cn_jput_str(run, v));
    }
    return cn_jcut(run, mark, out);
}

static cn_status sum(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jlist *items;
    cn_jvalue v;
    CN_TRY(cn_jiterate(run, c->self, &items));
    *out = c->slot[1].kind == CN_J_MISSING ? cn_jint(0) : c->slot[1];
    for (size_t i = 0; i < items->n; i++) {
        CN_TRY(cn_jwork(run, 1));
        CN_TRY(follow_seq(run, items->at[i], c->slot[0], &v));
        CN_TRY(cn_jbinary(run, CN_JOP_ADD, *out, v, out));
    }
    return CN_OK;
}

/* ---- map, select, reject ---- */

/* Calls the filter or test that is the first argument from `at` on, with the others. */
static cn_status call_named(cn_jrun *run, const cn_jcall *c, size_t at, bool test, cn_jvalue v,
                            cn_jvalue *out)
{
    const cn_jargs *args = c->args;
    cn_jtext name;
    CN_TRY(cn_jwant_text(c, args->at[at], test ? "the test" : "the filter", &name));
    const cn_jbuiltin *b = test ? cn_jfind_test(name) : cn_jfind_filter(name);
    if (!b)
        return cn_fail(CN_ERR_ARG, "%s(): there is no %s '%.*s'", c->name, test ? "test" : "filter",
                       (int)(name.n < 60 ? name.n : 60), name.at);
    const cn_jargs rest = {args->at + at + 1, args->n - at - 1, args->named};
    return cn_jbuiltin_call(run, b, v, &rest, out);
}

static cn_status map(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    const cn_jdict *named = c->args->named;
    const cn_jvalue *path = named ? cn_jdict_find_text(named, CN_JTEXT("attribute")) : NULL;
    const cn_jvalue *missing = named ? cn_jdict_find_text(named, CN_JTEXT("default")) : NULL;
    cn_jlist *items;
    cn_jvalue v;
    CN_TRY(cn_jiterate(run, c->self, &items));
    if (!path && c->args->n == 0) return cn_fail(CN_ERR_ARG, "map() needs a filter or attribute=");
    CN_TRY(cn_jlist_new(&run->arena, CN_J_STREAM, 0, out));
    for (size_t i = 0; i < items->n; i++) {
        CN_TRY(cn_jwork(run, 1));
        if (c->args->n)
            CN_TRY(call_named(run, c, 0, false, items->at[i], &v));
        else
            CN_TRY(follow_seq(run, items->at[i], *path, &v));
        if (missing && v.kind == CN_J_UNDEFINED) v = *missing;
        CN_TRY(cn_jlist_add(&run->arena, out->list, v));
    }
    return CN_OK;
}

/* select, reject, selectattr and rejectattr. */
static cn_status choose_items(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    bool keeps = c->name[0] == 's', by_attribute = strstr(c->name, "attr") != NULL;
    cn_jlist *items;
    CN_TRY(cn_jiterate(run, c->self, &items));
    if (by_attribute && c->args->n == 0)
        return cn_fail(CN_ERR_ARG, "%s() needs an attribute", c->name);
    CN_TRY(cn_jlist_new(&run->arena, CN_J_STREAM, 0, out));
    for (size_t i = 0; i < items->n; i++) {
        cn_jvalue v = items->at[i];
        CN_TRY(cn_jwork(run, 1));
        if (by_attribute) CN_TRY(follow_seq(run, v, c->args->at[0], &v));
        if (c->args->n > by_attribute) CN_TRY(call_named(run, c, by_attribute, true, v, &v));
        if (cn_jtruth(v) == keeps) CN_TRY(cn_jlist_add(&run->arena, out->list, items->at[i]));
    }
    return CN_OK;
}

/* ---- order ---- */

typedef struct sorted_item {
    cn_jvalue key, value;
    size_t place;
} sorted_item;

static int by_sort_key(const void *a, const void *b)
{
    const sorted_item *x = a, *y = b;
    int order = 0;
    cn_jorder(x->key, y->key, &order);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

/* Sorts items by the keys; the order of equal ones stays. */
static cn_status sort_items(cn_jrun *run, sorted_item *items, size_t n, bool descending)
{
    size_t work = 1;
    for (size_t i = 0; i < n; i++) {
        int order;
        size_t size = cn_jsize(items[i].key, CN_JINJA_MAX_STEPS);
        if (i && !cn_jorder(items[i - 1].key, items[i].key, &order))
            return cn_fail(CN_ERR_ARG, "a %s and a %s cannot be sorted",
                           cn_jtype_name(items[i - 1].key), cn_jtype_name(items[i].key));
        items[i].place = descending ? n - i : i;
        work += size > 16 ? size * 16 : 16;
        CN_TRY(cn_jwork(run, size));
    }
    CN_TRY(cn_jwork(run, work));
    qsort(items, n, sizeof *items, by_sort_key);
    for (size_t i = 0, j = n; descending && i + 1 < j; i++) {
        sorted_item swap = items[--j];
        items[j] = items[i];
        items[i] = swap;
    }
    return CN_OK;
}

/* The items of `list` with their keys at `path`. */
static cn_status keyed(cn_jrun *run, const cn_jlist *list, cn_jvalue path, bool cased,
                       sorted_item **out)
{
    CN_TRY(cn_jwork(run, list->n));
    CN_TRY(cn_jalloc(&run->arena, list->n, sizeof **out, out));
    for (size_t i = 0; i < list->n; i++) {
        (*out)[i].value = list->at[i];
        CN_TRY(follow_seq(run, list->at[i], path, &(*out)[i].key));
        CN_TRY(fold(run, (*out)[i].key, cased, &(*out)[i].key));
    }
    return CN_OK;
}

static cn_status to_sorted(cn_jrun *run, const cn_jcall *c, const cn_jlist *list, cn_jvalue path,
                           bool cased, bool descending, cn_jvalue *out)
{
    sorted_item *items;
    (void)c;
    CN_TRY(keyed(run, list, path, cased, &items));
    CN_TRY(sort_items(run, items, list->n, descending));
    CN_TRY(cn_jlist_new(&run->arena, CN_J_LIST, list->n, out));
    for (size_t i = 0; i < list->n; i++)
        CN_TRY(cn_jlist_add(&run->arena, out->list, items[i].value));
    return CN_OK;
}

static cn_status sort(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jlist *list;
    CN_TRY(cn_jiterate(run, c->self, &list));
    return to_sorted(run, c, list, c->slot[2], cn_jflag(c->slot[1], false),
                     cn_jflag(c->slot[0], false), out);
}

static cn_status dictsort(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jvalue items;
    cn_jtext by = CN_JTEXT("key");
    if (c->slot[1].kind != CN_J_MISSING) CN_TRY(cn_jwant_text(c, c->slot[1], "by", &by));
    if (c->self.kind != CN_J_DICT)
        return cn_fail(CN_ERR_ARG, "dictsort(): expected a dict, got a %s", cn_jtype_name(c->self));
    CN_TRY(pairs(run, c, &items));
    return to_sorted(run, c, items.list, cn_jint(cn_jtext_is(by, "value")),
                     cn_jflag(c->slot[0], false), cn_jflag(c->slot[2], false), out);
}

static cn_status smallest_or_largest(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jlist *list;
    sorted_item *items;
    size_t best = 0;
    CN_TRY(cn_jiterate(run, c->self, &list));
    CN_TRY(keyed(run, list, c->slot[1], cn_jflag(c->slot[0], false), &items));
    *out = cn_jundefined(CN_JTEXT("an item of an empty sequence"));
    for (size_t i = 1; i < list->n; i++) {
        bool better;
        cn_jop op = c->name[1] == 'i' ? CN_JOP_LT : CN_JOP_GT;
        CN_TRY(cn_jcompare(run, op, items[i].key, items[best].key, &better));
        if (better) best = i;
    }
    if (list->n) *out = items[best].value;
    return CN_OK;
}

static cn_status unique(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jlist *list;
    sorted_item *items;
    CN_TRY(cn_jiterate(run, c->self, &list));
    CN_TRY(keyed(run, list, c->slot[1], cn_jflag(c->slot[0], false), &items));
    CN_TRY(cn_jlist_new(&run->arena, CN_J_STREAM, 0, out));
    for (size_t i = 0; i < list->n; i++) {
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++)
            CN_TRY(cn_jcompare(run, CN_JOP_EQ, items[i].key, items[k].key, &seen));
        if (!seen) CN_TRY(cn_jlist_add(&run->arena, out->list, items[i].value));
    }
    return CN_OK;
}

const cn_jbuiltin cn_jseq_filters[] = {
    {"length", "", length},
    {"count", "", length},
    {"first", "", first_or_last},
    {"last", "", first_or_last},
    {"list", "", to_list},
    {"reverse", "", reversed},
    {"items", "", pairs},
    {"join", "d attribute", join_items},
    {"sum", "attribute start", sum},
    {"map", "*", map},
    {"select", "*", choose_items},
    {"reject", "*", choose_items},
    {"selectattr", "*", choose_items},
    {"rejectattr", "*", choose_items},
    {"sort", "reverse case_sensitive attribute", sort},
    {"dictsort", "case_sensitive by reverse", dictsort},
    {"min", "case_sensitive attribute", smallest_or_largest},
    {"max", "case_sensitive attribute", smallest_or_largest},
    {"unique", "case_sensitive attribute", unique},
    {0},
};
