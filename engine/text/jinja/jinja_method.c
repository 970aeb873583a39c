/* jinja_method.c - methods of strings, dicts, lists and loops. The methods that change a list or
 * dict do not exist: jinja2's immutable sandbox refuses them. See jinja_builtin.h. */

#include "engine/text/jinja/jinja_pystring.h"
#include "engine/text/jinja/jinja_run.h"

/* ---- strings ---- */

/* A string argument that may be absent or none; out->at is then NULL. */
static cn_status optional_text(const cn_jcall *c, cn_jvalue v, const char *want, cn_jtext *out)
{
    *out = (cn_jtext){0};
    if (v.kind == CN_J_MISSING || v.kind == CN_J_NONE) return CN_OK;
    return cn_jwant_text(c, v, want, out);
}

static cn_status strip(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext chars;
    CN_TRY(cn_jscan(run, c->self.text));
    CN_TRY(optional_text(c, c->slot[0], "the characters", &chars));
    CN_TRY(cn_jwork(run, chars.n * c->self.text.n / 256));
    cn_pyside side = c->name[0] == 'l' ? CN_PY_LEFT : c->name[0] == 'r' ? CN_PY_RIGHT : CN_PY_BOTH;
    *out = cn_jstring(cn_pystrip(c->self.text, chars, side));
    return CN_OK;
}

static cn_status add_method_text(cn_jrun *run, cn_jvalue list, const char *at, size_t n)
{
    return cn_jlist_add(&run->arena, list.list, cn_jstring((cn_jtext){at, n}));
}

/* split() without a separator: at runs of white space. */
static cn_status split_words(cn_jrun *run, cn_jtext t, int64_t most, cn_jvalue out)
{
    uint32_t cp;
    t = cn_pystrip(t, (cn_jtext){0}, CN_PY_LEFT);
    for (; t.n && most != 0; most--) {
        size_t end = 0;
        while (end < t.n) {
            size_t len = cn_pychar((cn_jtext){t.at + end, t.n - end}, &cp);
            if (cn_pyspace(cp)) break;
            end += len;
        }
        CN_TRY(add_method_text(run, out, t.at, end));
        t = cn_pystrip((cn_jtext){t.at + end, t.n - end}, (cn_jtext){0}, CN_PY_LEFT);
    }
    return t.n ? add_method_text(run, out, t.at, t.n) : CN_OK;
}

static cn_status split(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t = c->self.text, mark;
    int64_t most = -1;
    CN_TRY(cn_jscan(run, t));
    CN_TRY(optional_text(c, c->slot[0], "the separator", &mark));
    CN_TRY(cn_jwant_int(c, c->slot[1], "maxsplit", &most));
    CN_TRY(cn_jlist_new(&run->arena, CN_J_LIST, 0, out));
    if (!mark.at) return split_words(run, t, most, *out);
    if (mark.n == 0) return cn_fail(CN_ERR_ARG, "split(): the separator is empty");
    for (; most != 0; most--) {
        size_t at = cn_pyfind(t, mark);
        if (at == SIZE_MAX) break;
        CN_TRY(add_method_text(run, *out, t.at, at));
        t = (cn_jtext){t.at + at + mark.n, t.n - at - mark.n};
    }
    return add_method_text(run, *out, t.at, t.n);
}

static void reverse(cn_jlist *list)
{
    for (size_t i = 0, j = list->n; i + 1 < j; i++) {
        cn_jvalue swap = list->at[--j];
        list->at[j] = list->at[i];
        list->at[i] = swap;
    }
}

static cn_status rsplit(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t = c->self.text, mark;
    int64_t most = -1;
    CN_TRY(cn_jscan(run, t));
    CN_TRY(optional_text(c, c->slot[0], "the separator", &mark));
    CN_TRY(cn_jwant_int(c, c->slot[1], "maxsplit", &most));
    if (most < 0) return split(run, c, out);
    if (mark.n == 0) return cn_fail(CN_ERR_ARG, "rsplit(): maxsplit needs a separator");
    CN_TRY(cn_jlist_new(&run->arena, CN_J_LIST, 0, out));
    for (; most > 0; most--) {
        size_t at = cn_pyrfind(t, mark);
        if (at == SIZE_MAX) break;
        CN_TRY(add_method_text(run, *out, t.at + at + mark.n, t.n - at - mark.n));
        t.n = at;
    }
    CN_TRY(add_method_text(run, *out, t.at, t.n));
    reverse(out->list);
    return CN_OK;
}

static cn_status splitlines(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext rest = c->self.text, line;
    bool keep = cn_jflag(c->slot[0], false);
    CN_TRY(cn_jscan(run, rest));
    CN_TRY(cn_jlist_new(&run->arena, CN_J_LIST, 0, out));
    while (cn_pyline(&rest, &line))
        CN_TRY(add_method_text(run, *out, line.at, keep ? (size_t)(rest.at - line.at) : line.n));
    return CN_OK;
}

/* (before, mark, after) of the first mark, or of the last one for rpartition. */
static cn_status partition(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    bool last = c->name[0] == 'r';
    cn_jtext t = c->self.text, mark;
    CN_TRY(cn_jscan(run, t));
    CN_TRY(cn_jwant_text(c, c->slot[0], "the separator", &mark));
    if (mark.n == 0) return cn_fail(CN_ERR_ARG, "%s(): the separator is empty", c->name);
    size_t at = last ? cn_pyrfind(t, mark) : cn_pyfind(t, mark);
    size_t found = at == SIZE_MAX ? 0 : mark.n;
    if (at == SIZE_MAX) at = last ? 0 : t.n;
    CN_TRY(cn_jlist_new(&run->arena, CN_J_TUPLE, 3, out));
    CN_TRY(add_method_text(run, *out, t.at, at));
    CN_TRY(add_method_text(run, *out, mark.at, found));
    return add_method_text(run, *out, t.at + at + found, t.n - at - found);
}

/* startswith and endswith; a tuple has several candidates. */
static cn_status has_affix(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    bool start = c->name[0] == 's';
    cn_jvalue v = c->slot[0];
    size_t n = v.kind == CN_J_TUPLE ? v.list->n : 1;
    CN_TRY(cn_jwork(run, n));
    *out = cn_jbool(false);
    for (size_t i = 0; i < n; i++) {
        cn_jtext affix;
        CN_TRY(cn_jwant_text(c, v.kind == CN_J_TUPLE ? v.list->at[i] : v, "the text", &affix));
        CN_TRY(cn_jscan(run, affix));
        bool has = start ? cn_pystarts(c->self.text, affix) : cn_pyends(c->self.text, affix);
        if (has) out->truth = true;
    }
    return CN_OK;
}

static cn_status remove_affix(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext affix, t = c->self.text;
    CN_TRY(cn_jwant_text(c, c->slot[0], "the text", &affix));
    CN_TRY(cn_jscan(run, affix));
    bool prefix = strcmp(c->name, "removeprefix") == 0;
    if (prefix && cn_pystarts(t, affix)) t = (cn_jtext){t.at + affix.n, t.n - affix.n};
    if (!prefix && cn_pyends(t, affix)) t.n -= affix.n;
    *out = cn_jstring(t);
    return CN_OK;
}

static cn_status method_find(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t = c->self.text, part;
    int64_t from = 0;
    CN_TRY(cn_jscan(run, t));
    CN_TRY(cn_jwant_text(c, c->slot[0], "the text", &part));
    CN_TRY(cn_jwant_int(c, c->slot[1], "start", &from));
    if (from < 0) from += (int64_t)cn_pylen(t);
    size_t skip = cn_pyoffset(t, from > 0 ? (size_t)from : 0);
    cn_jtext rest = {t.at + skip, t.n - skip};
    size_t at = c->name[0] == 'r' ? cn_pyrfind(rest, part) : cn_pyfind(rest, part);
    bool found = at != SIZE_MAX && from <= (int64_t)cn_pylen(t);
    if (!found && strstr(c->name, "index")) return cn_fail(CN_ERR_ARG, "index(): not found");
    *out = cn_jint(found ? (int64_t)cn_pylen((cn_jtext){t.at, skip + at}) : -1);
    return CN_OK;
}

static cn_status count(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t = c->self.text, part;
    CN_TRY(cn_jscan(run, t));
    CN_TRY(cn_jwant_text(c, c->slot[0], "the text", &part));
    int64_t n = part.n ? 0 : (int64_t)cn_pylen(t) + 1;
    for (size_t at; part.n && (at = cn_pyfind(t, part)) != SIZE_MAX; n++)
        t = (cn_jtext){t.at + at + part.n, t.n - at - part.n};
    *out = cn_jint(n);
    return CN_OK;
}

static cn_status join(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jlist *items;
    size_t mark = cn_jmark(run);
    CN_TRY(cn_jiterate(run, c->slot[0], &items));
    for (size_t i = 0; i < items->n; i++) {
        cn_jtext item;
        CN_TRY(cn_jwork(run, 1));
        CN_TRY(cn_jwant_text(c, items->at[i], "each item", &item));
        if (i) CN_TRY(cn_jputs(run, c->self.text));
        CN_TRY(cn_jputs(run, item));
    }
    return cn_jcut(run, mark, out);
}

/* isdigit() and its kin: true if there are characters and each one is of the class. */
static cn_status is_class(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t = c->self.text;
    char kind = c->name[2] == 'a' ? c->name[4] : c->name[2]; /* isal[p]ha, isal[n]um */
    bool all = t.n > 0;
    CN_TRY(cn_jscan(run, t));
    while (all && t.n) {
        uint32_t cp;
        size_t len = cn_pychar(t, &cp);
        bool digit = cn_pydigit(cp), letter = cn_pyalpha(cp);
        all = kind == 's'                        ? cn_pyspace(cp)
              : kind == 'p'                      ? letter
              : kind == 'n' && c->name[2] == 'a' ? letter || digit
                                                 : digit;
        t = (cn_jtext){t.at + len, t.n - len};
    }
    *out = cn_jbool(all);
    return CN_OK;
}

/* str.format() with {}, {0} and {name}, without format specifications. */
static cn_status format(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext t = c->self.text;
    size_t mark = cn_jmark(run), used = 0;
    while (t.n) {
        bool open = *t.at == '{', twice = t.n > 1 && t.at[1] == *t.at;
        CN_TRY(cn_jwork(run, 1));
        if (!open || twice) {
            size_t skip = (open || *t.at == '}') && twice ? 2 : 1;
            CN_TRY(cn_jput(run, t.at, 1));
            t = (cn_jtext){t.at + skip, t.n - skip};
            continue;
        }
        size_t end = cn_pyfind(t, CN_JTEXT("}"));
        if (end == SIZE_MAX) return cn_fail(CN_ERR_ARG, "format(): '{' has no '}'");
        cn_jtext name = {t.at + 1, end - 1};
        size_t index = name.n == 0 ? used++ : SIZE_MAX;
        if (name.n == 1 && cn_pydigit((unsigned char)*name.at)) index = (size_t)(*name.at - '0');
        const cn_jvalue *v = index < c->args->n ? &c->args->at[index] : NULL;
        if (index == SIZE_MAX && c->args->named) v = cn_jdict_find_text(c->args->named, name);
        if (!v)
            return cn_fail(CN_ERR_ARG, "format(): {%.*s} has no argument",
                           (int)(name.n < 40 ? name.n : 40), name.at);
        CN_TRY(cn_jput_str(run, *v));
        t = (cn_jtext){t.at + end + 1, t.n - end - 1};
    }
    return cn_jcut(run, mark, out);
}

/* A method that is also a filter of the same name, with the same parameters. */
static cn_status as_filter(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    const cn_jbuiltin *filter = cn_jfind_filter((cn_jtext){c->name, strlen(c->name)});
    CN_ASSERT(filter);
    return filter->call(run, c, out);
}

/* The filter makes strings of its arguments, the method refuses others. */
static cn_status replace(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext old, new;
    CN_TRY(cn_jwant_text(c, c->slot[0], "the old text", &old));
    CN_TRY(cn_jwant_text(c, c->slot[1], "the new text", &new));
    return as_filter(run, c, out);
}

static const cn_jbuiltin str_methods[] = {
    {"strip", "chars", strip},
    {"lstrip", "chars", strip},
    {"rstrip", "chars", strip},
    {"split", "sep maxsplit", split},
    {"rsplit", "sep maxsplit", rsplit},
    {"splitlines", "keepends", splitlines},
    {"partition", "sep", partition},
    {"rpartition", "sep", partition},
    {"startswith", "prefix", has_affix},
    {"endswith", "suffix", has_affix},
    {"removeprefix", "prefix", remove_affix},
    {"removesuffix", "suffix", remove_affix},
    {"replace", "old new count", replace},
    {"upper", "", as_filter},
    {"lower", "", as_filter},
    {"title", "", as_filter},
    {"capitalize", "", as_filter},
    {"find", "sub start", method_find},
    {"rfind", "sub start", method_find},
    {"index", "sub start", method_find},
    {"rindex", "sub start", method_find},
    {"count", "sub", count},
    {"join", "iterable", join},
    {"isdigit", "", is_class},
    {"isnumeric", "", is_class},
    {"isdecimal", "", is_class},
    {"isalpha", "", is_class},
    {"isalnum", "", is_class},
    {"isspace", "", is_class},
    {"format", "*", format},
    {0},
};

/* ---- dicts and lists ---- */

static cn_status dict_list(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    const cn_jdict *dict = c->self.dict;
    CN_TRY(cn_jwork(run, dict->n));
    CN_TRY(cn_jlist_new(&run->arena, CN_J_LIST, dict->n, out));
    for (size_t i = 0; i < dict->n; i++) {
        cn_jvalue item = c->name[0] == 'k' ? dict->at[i].key : dict->at[i].value;
        if (c->name[0] == 'i')
            CN_TRY(cn_jpair_new(&run->arena, dict->at[i].key, dict->at[i].value, &item));
        CN_TRY(cn_jlist_add(&run->arena, out->list, item));
    }
    return CN_OK;
}

static cn_status dict_get(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    CN_TRY(cn_jwork(run, 1 + c->self.dict->n / 8));
    const cn_jvalue *found = cn_jdict_find(c->self.dict, c->slot[0]);
    *out = found ? *found : c->slot[1].kind == CN_J_MISSING ? cn_jnone() : c->slot[1];
    return CN_OK;
}

static cn_status itself(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    (void)run;
    *out = c->self; /* values do not change, so a copy is the same value */
    return CN_OK;
}

static cn_status list_find(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    int64_t n = 0;
    for (size_t i = 0; i < c->self.list->n; i++) {
        bool same;
        CN_TRY(cn_jcompare(run, CN_JOP_EQ, c->self.list->at[i], c->slot[0], &same));
        n += same;
        if (!same || c->name[0] != 'i') continue;
        *out = cn_jint((int64_t)i);
        return CN_OK;
    }
    *out = cn_jint(n);
    return c->name[0] == 'i' ? cn_fail(CN_ERR_ARG, "index(): the list has no such item") : CN_OK;
}

static const cn_jbuiltin dict_methods[] = {
    {"items", "", dict_list},         {"keys", "", dict_list}, {"values", "", dict_list},
    {"get", "key default", dict_get}, {"copy", "", itself},    {0},
};
static const cn_jbuiltin list_methods[] = {
    {"index", "value", list_find},
    {"count", "value", list_find},
    {"copy", "", itself},
    {0},
};

/* ---- lookup ---- */

const cn_jbuiltin *cn_jfind_method(cn_jvalue object, cn_jtext name)
{
    if (object.kind == CN_J_STRING) return cn_jfind(str_methods, name);
    if (object.kind == CN_J_DICT) return cn_jfind(dict_methods, name);
    if (object.kind == CN_J_LIST || object.kind == CN_J_TUPLE) return cn_jfind(list_methods, name);
    return NULL;
}

/* loop.index and its kin. */
cn_jvalue cn_jloop_member(cn_jvalue self, cn_jtext name)
{
    const cn_jloop *loop = self.loop;
    size_t i = loop->index, n = loop->items->n;
    const struct {
        const char *name;
        cn_jvalue value;
    } members[] = {
        {"index", cn_jint((int64_t)i + 1)},
        {"index0", cn_jint((int64_t)i)},
        {"revindex", cn_jint((int64_t)(n - i))},
        {"revindex0", cn_jint((int64_t)(n - i) - 1)},
        {"first", cn_jbool(i == 0)},
        {"last", cn_jbool(i + 1 == n)},
        {"length", cn_jint((int64_t)n)},
        {"depth", cn_jint((int64_t)loop->depth + 1)},
        {"depth0", cn_jint((int64_t)loop->depth)},
        {"previtem", i > 0 ? loop->items->at[i - 1] : cn_jundefined(name)},
        {"nextitem", i + 1 < n ? loop->items->at[i + 1] : cn_jundefined(name)},
    };
    for (size_t k = 0; k < sizeof members / sizeof *members; k++)
        if (cn_jtext_is(name, members[k].name)) return members[k].value;
    return cn_jundefined(name);
}
