/* jinja_builtin.c - finds functions and assigns arguments to their parameters. See
 * jinja_builtin.h. */

#include "engine/text/jinja/jinja_pystring.h"
#include "engine/text/jinja/jinja_run.h"

const cn_jbuiltin *cn_jfind(const cn_jbuiltin *table, cn_jtext name)
{
    for (; table->name; table++)
        if (cn_jtext_is(name, table->name)) return table;
    return NULL;
}

const cn_jbuiltin *cn_jfind_filter(cn_jtext name)
{
    const cn_jbuiltin *found = cn_jfind(cn_jscalar_filters, name);
    return found ? found : cn_jfind(cn_jseq_filters, name);
}

const cn_jbuiltin *cn_jfind_test(cn_jtext name) { return cn_jfind(cn_jtests, name); }

const cn_jbuiltin *cn_jfind_global(cn_jtext name) { return cn_jfind(cn_jglobals, name); }

/* The word at *names, which moves on; n = 0 at the end. */
static cn_jtext next_word(const char **names)
{
    *names += strspn(*names, " ");
    cn_jtext word = {*names, strcspn(*names, " ")};
    *names += word.n;
    return word;
}

static cn_status bind_named(const cn_jbuiltin *b, const cn_jargs *args, cn_jcall *c)
{
    for (size_t i = 0; args->named && i < args->named->n; i++) {
        const char *names = b->params;
        const cn_jpair *p = &args->named->at[i];
        size_t slot = 0;
        for (cn_jtext word; (word = next_word(&names)).n; slot++) {
            if (!cn_jtext_same(word, p->key.text)) continue;
            if (c->slot[slot].kind != CN_J_MISSING)
                return cn_fail(CN_ERR_ARG, "%s(): an argument is given twice", b->name);
            c->slot[slot] = p->value;
            slot = CN_J_SLOTS;
            break;
        }
        if (slot < CN_J_SLOTS)
            return cn_fail(CN_ERR_ARG, "%s() has no parameter '%.*s'", b->name,
                           (int)(p->key.text.n < 60 ? p->key.text.n : 60), p->key.text.at);
    }
    return CN_OK;
}

cn_status cn_jbuiltin_call(cn_jrun *run, const cn_jbuiltin *b, cn_jvalue self, const cn_jargs *args,
                           cn_jvalue *out)
{
    cn_jcall c = {.name = b->name, .self = self, .args = args};
    CN_TRY(cn_jwork(run, 1));
    if (strcmp(b->params, "*") == 0) return b->call(run, &c, out);
    size_t n = 0;
    for (const char *names = b->params; next_word(&names).n; n++)
        if (n < args->n) c.slot[n] = args->at[n];
    CN_ASSERT(n <= CN_J_SLOTS - 1);
    if (args->n > n)
        return cn_fail(CN_ERR_ARG, "%s() takes at most %zu arguments, got %zu", b->name, n,
                       args->n);
    CN_TRY(bind_named(b, args, &c));
    return b->call(run, &c, out);
}

cn_status cn_jwant_text(const cn_jcall *c, cn_jvalue v, const char *want, cn_jtext *out)
{
    if (v.kind == CN_J_UNDEFINED) return cn_jfail_undefined(v);
    if (v.kind != CN_J_STRING)
        return cn_fail(CN_ERR_ARG, "%s(): expected %s as a string, got a %s", c->name, want,
                       cn_jtype_name(v));
    *out = v.text;
    return CN_OK;
}

cn_status cn_jwant_int(const cn_jcall *c, cn_jvalue v, const char *want, int64_t *out)
{
    if (v.kind == CN_J_MISSING) return CN_OK;
    if (v.kind == CN_J_UNDEFINED) return cn_jfail_undefined(v);
    if (!cn_jas_int(v, out))
        return cn_fail(CN_ERR_ARG, "%s(): expected %s as an integer, got a %s", c->name, want,
                       cn_jtype_name(v));
    return CN_OK;
}

static cn_status chars_of(cn_jrun *run, cn_jtext t, cn_jlist *into)
{
    uint32_t cp;
    for (size_t len; t.n; t.at += len, t.n -= len) {
        len = cn_pychar(t, &cp);
        CN_TRY(cn_jlist_add(&run->arena, into, cn_jstring((cn_jtext){t.at, len})));
    }
    return CN_OK;
}

cn_status cn_jiterate(cn_jrun *run, cn_jvalue v, cn_jlist **out)
{
    if (cn_jis_sequence(v)) {
        *out = v.list;
        return CN_OK;
    }
    cn_jvalue list;
    CN_TRY(cn_jlist_new(&run->arena, CN_J_LIST, 0, &list));
    *out = list.list;
    if (v.kind == CN_J_UNDEFINED) return CN_OK;
    if (v.kind == CN_J_STRING) {
        CN_TRY(cn_jwork(run, v.text.n));
        return chars_of(run, v.text, list.list);
    }
    if (v.kind != CN_J_DICT)
        return cn_fail(CN_ERR_ARG, "a %s cannot be iterated", cn_jtype_name(v));
    CN_TRY(cn_jwork(run, v.dict->n));
    for (size_t i = 0; i < v.dict->n; i++)
        CN_TRY(cn_jlist_add(&run->arena, list.list, v.dict->at[i].key));
    return CN_OK;
}
