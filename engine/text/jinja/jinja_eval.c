/* jinja_eval.c - expressions. See jinja_run.h. */
#include "engine/text/jinja/jinja_pystring.h"
#include "engine/text/jinja/jinja_run.h"

/* ---- names, members, items ---- */

cn_status cn_jfail_undefined(cn_jvalue v)
{
    return cn_fail(CN_ERR_ARG, "'%.*s' is undefined", (int)(v.text.n < 60 ? v.text.n : 60),
                   v.text.at);
}

static cn_status lookup(cn_jrun *run, cn_jtext name, cn_jvalue *out)
{
    for (const cn_jscope *s = run->scope; s; s = s->parent) {
        CN_TRY(cn_jwork(run, 1 + s->vars.n / 8));
        const cn_jvalue *found = cn_jdict_find_text(&s->vars, name);
        if (!found) continue;
        *out = *found;
        return CN_OK;
    }
    const cn_jbuiltin *global = cn_jfind_global(name);
    *out = cn_jundefined(name);
    if (!global) return CN_OK;
    cn_jbound *bound;
    CN_TRY(cn_jalloc(&run->arena, 1, sizeof *bound, &bound));
    bound->builtin = global;
    *out = (cn_jvalue){.kind = CN_J_BUILTIN, .bound = bound};
    return CN_OK;
}

/* A method of the object as a value; undefined if there is none. */
static cn_status find_eval_method(cn_jrun *run, cn_jvalue object, cn_jtext name, cn_jvalue *out)
{
    const cn_jbuiltin *method = cn_jfind_method(object, name);
    *out = cn_jundefined(name);
    if (!method) return CN_OK;
    cn_jbound *bound;
    CN_TRY(cn_jalloc(&run->arena, 1, sizeof *bound, &bound));
    *bound = (cn_jbound){method, object};
    *out = (cn_jvalue){.kind = CN_J_BUILTIN, .bound = bound};
    return CN_OK;
}

static cn_status find_eval_key(cn_jrun *run, const cn_jdict *dict, cn_jvalue key, cn_jvalue *out)
{
    CN_TRY(cn_jwork(run, 1 + dict->n / 8));
    const cn_jvalue *found = cn_jdict_find(dict, key);
    if (found) *out = *found;
    return CN_OK;
}

cn_status cn_jmember(cn_jrun *run, cn_jvalue object, cn_jtext name, cn_jvalue *out)
{
    if (object.kind == CN_J_UNDEFINED) return cn_jfail_undefined(object);
    const bool is_name = object.kind == CN_J_MACRO && cn_jtext_is(name, "name");
    if (object.kind == CN_J_LOOP) *out = cn_jloop_member(object, name);
    if (is_name) *out = cn_jstring(object.macro->name);
    if (object.kind == CN_J_LOOP || is_name) return CN_OK;
    CN_TRY(find_eval_method(run, object, name, out));
    bool keyed = object.kind == CN_J_DICT || object.kind == CN_J_NAMESPACE;
    if (!keyed || out->kind != CN_J_UNDEFINED) return CN_OK;
    return find_eval_key(run, object.dict, cn_jstring(name), out);
}

static cn_status char_at(cn_jrun *run, cn_jtext t, int64_t index, cn_jvalue *out)
{
    uint32_t cp;
    CN_TRY(cn_jscan(run, t));
    if (index < 0) index += (int64_t)cn_pylen(t);
    size_t at = index < 0 ? t.n : cn_pyoffset(t, (size_t)index);
    if (at == t.n) return CN_OK;
    *out = cn_jstring((cn_jtext){t.at + at, cn_pychar((cn_jtext){t.at + at, t.n - at}, &cp)});
    return CN_OK;
}

cn_status cn_jitem(cn_jrun *run, cn_jvalue object, cn_jvalue key, cn_jvalue *out)
{
    int64_t index;
    if (object.kind == CN_J_UNDEFINED) return cn_jfail_undefined(object);
    *out = cn_jundefined(key.kind == CN_J_STRING ? key.text : CN_JTEXT("the item"));
    bool indexed = object.kind == CN_J_LIST || object.kind == CN_J_TUPLE;
    if (indexed && cn_jas_int(key, &index)) {
        int64_t n = (int64_t)object.list->n;
        if (index < 0) index += n;
        if (index >= 0 && index < n) *out = object.list->at[index];
        return CN_OK;
    }
    if (object.kind == CN_J_STRING && cn_jas_int(key, &index))
        return char_at(run, object.text, index, out);
    if (object.kind == CN_J_DICT) CN_TRY(find_eval_key(run, object.dict, key, out));
    if (out->kind != CN_J_UNDEFINED || key.kind != CN_J_STRING) return CN_OK;
    if (object.kind != CN_J_LOOP) return find_eval_method(run, object, key.text, out);
    *out = cn_jloop_member(object, key.text);
    return CN_OK;
}

static cn_status eval_const(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    (void)run;
    *out = n->value;
    return CN_OK;
}

static cn_status eval_name(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    return lookup(run, n->value.text, out);
}

static cn_status eval_member(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    cn_jvalue object;
    CN_TRY(cn_jeval(run, n->a, &object));
    return cn_jmember(run, object, n->value.text, out);
}

static cn_status eval_item(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    cn_jvalue object, key;
    CN_TRY(cn_jeval(run, n->a, &object));
    CN_TRY(cn_jeval(run, n->b, &key));
    return cn_jitem(run, object, key, out);
}

static cn_status eval_slice(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    cn_jvalue object, part[3] = {cn_jnone(), cn_jnone(), cn_jnone()};
    CN_TRY(cn_jeval(run, n->a, &object));
    if (n->b) CN_TRY(cn_jeval(run, n->b, &part[0]));
    if (n->c) CN_TRY(cn_jeval(run, n->c, &part[1]));
    if (n->d) CN_TRY(cn_jeval(run, n->d, &part[2]));
    return cn_jslice(run, object, part, out);
}

/* ---- operators ---- */

static cn_status eval_not(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    CN_TRY(cn_jeval(run, n->a, out));
    *out = cn_jbool(!cn_jtruth(*out));
    return CN_OK;
}

static cn_status eval_sign(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    cn_jvalue v;
    CN_TRY(cn_jeval(run, n->a, &v));
    if (v.kind == CN_J_FLOAT) {
        *out = cn_jreal(n->kind == CN_JN_NEGATE ? -v.real : v.real);
        return CN_OK;
    }
    return cn_jbinary(run, n->kind == CN_JN_NEGATE ? CN_JOP_SUB : CN_JOP_ADD, cn_jint(0), v, out);
}

static cn_status eval_and_or(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    CN_TRY(cn_jeval(run, n->a, out));
    return cn_jtruth(*out) == (n->kind == CN_JN_AND) ? cn_jeval(run, n->b, out) : CN_OK;
}

static cn_status eval_binary(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    cn_jvalue a, b;
    CN_TRY(cn_jeval(run, n->a, &a));
    CN_TRY(cn_jeval(run, n->b, &b));
    return cn_jbinary(run, n->op, a, b, out);
}

static cn_status eval_compare(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    cn_jvalue a, b;
    bool holds = true;
    CN_TRY(cn_jeval(run, n->a, &a));
    for (; n && holds; n = n->c, a = b) {
        CN_TRY(cn_jeval(run, n->b, &b));
        CN_TRY(cn_jcompare(run, n->op, a, b, &holds));
    }
    *out = cn_jbool(holds);
    return CN_OK;
}

static cn_status eval_concat(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    size_t mark = cn_jmark(run);
    for (const cn_jnode *item = n->a; item; item = item->next) {
        cn_jvalue v;
        CN_TRY(cn_jeval(run, item, &v));
        CN_TRY(cn_jput_str(run, v));
    }
    return cn_jcut(run, mark, out);
}

static cn_status eval_cond(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    cn_jvalue condition;
    CN_TRY(cn_jeval(run, n->a, &condition));
    if (cn_jtruth(condition)) return cn_jeval(run, n->b, out);
    if (n->c) return cn_jeval(run, n->c, out);
    *out = cn_jundefined(CN_JTEXT("the missing else of an inline if"));
    return CN_OK;
}

/* ---- lists and dicts ---- */

static cn_status eval_list(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    cn_jvalue v;
    CN_TRY(cn_jlist_new(&run->arena, n->kind == CN_JN_LIST ? CN_J_LIST : CN_J_TUPLE, 0, out));
    for (const cn_jnode *item = n->a; item; item = item->next) {
        CN_TRY(cn_jeval(run, item, &v));
        CN_TRY(cn_jlist_add(&run->arena, out->list, v));
    }
    return CN_OK;
}

static cn_status eval_dict(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    CN_TRY(cn_jdict_new(&run->arena, CN_J_DICT, 0, out));
    for (const cn_jnode *item = n->a; item; item = item->next->next) {
        cn_jvalue key, v;
        CN_TRY(cn_jeval(run, item, &key));
        CN_TRY(cn_jeval(run, item->next, &v));
        if (key.kind == CN_J_LIST || key.kind == CN_J_DICT || key.kind == CN_J_UNDEFINED)
            return cn_fail(CN_ERR_ARG, "a %s cannot be a key of a dict", cn_jtype_name(key));
        CN_TRY(cn_jwork(run, 1 + out->dict->n / 8));
        CN_TRY(cn_jdict_put(&run->arena, out->dict, key, v));
    }
    return CN_OK;
}

/* ---- calls ---- */

static cn_status unpack_list(cn_jrun *run, cn_jvalue v, cn_jlist *into)
{
    cn_jlist *items;
    CN_TRY(cn_jiterate(run, v, &items));
    CN_TRY(cn_jwork(run, items->n));
    for (size_t i = 0; i < items->n; i++) CN_TRY(cn_jlist_add(&run->arena, into, items->at[i]));
    return CN_OK;
}

static cn_status unpack_dict(cn_jrun *run, cn_jvalue v, cn_jdict *into)
{
    if (v.kind != CN_J_DICT)
        return cn_fail(CN_ERR_ARG, "expected a dict after **, got a %s", cn_jtype_name(v));
    for (size_t i = 0; i < v.dict->n; i++) {
        CN_TRY(cn_jwork(run, 1 + into->n / 8));
        CN_TRY(cn_jdict_put(&run->arena, into, v.dict->at[i].key, v.dict->at[i].value));
    }
    return CN_OK;
}

typedef struct arg_room {
    cn_jvalue list, named;
    cn_jargs args;
} arg_room;

static cn_status eval_args(cn_jrun *run, const cn_jnode *n, arg_room *room)
{
    cn_jarena *a = &run->arena;
    room->args = (cn_jargs){0};
    if (!n) return CN_OK;
    CN_TRY(cn_jlist_new(a, CN_J_LIST, 0, &room->list));
    CN_TRY(cn_jdict_new(a, CN_J_DICT, 0, &room->named));
    for (; n; n = n->next) {
        cn_jvalue v;
        CN_TRY(cn_jeval(run, n->a, &v));
        if (n->op == CN_JOP_UNPACK_LIST)
            CN_TRY(unpack_list(run, v, room->list.list));
        else if (n->op == CN_JOP_UNPACK_DICT)
            CN_TRY(unpack_dict(run, v, room->named.dict));
        else if (n->value.kind == CN_J_STRING)
            CN_TRY(cn_jdict_put(a, room->named.dict, n->value, v));
        else
            CN_TRY(cn_jlist_add(a, room->list.list, v));
    }
    room->args = (cn_jargs){room->list.list->at, room->list.list->n, room->named.dict};
    return CN_OK;
}

static cn_status call_value(cn_jrun *run, cn_jvalue f, const cn_jargs *args, cn_jvalue *out)
{
    if (f.kind == CN_J_BUILTIN)
        return cn_jbuiltin_call(run, f.bound->builtin, f.bound->self, args, out);
    if (f.kind == CN_J_MACRO) return cn_jmacro_call(run, f.macro, args, out);
    if (f.kind == CN_J_LOOP) return cn_jloop_call(run, f.loop, args, out);
    if (f.kind == CN_J_UNDEFINED) return cn_jfail_undefined(f);
    return cn_fail(CN_ERR_ARG, "a %s cannot be called", cn_jtype_name(f));
}

static cn_status eval_call(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    cn_jvalue f;
    arg_room room;
    CN_TRY(cn_jeval(run, n->a, &f));
    CN_TRY(eval_args(run, n->b, &room));
    return call_value(run, f, &room.args, out);
}

cn_status cn_jeval_filter(cn_jrun *run, const cn_jnode *n, cn_jvalue operand, cn_jvalue *out)
{
    arg_room room;
    CN_TRY(cn_jdeeper(run));
    if (n->a && n->a->kind == CN_JN_FILTER)
        CN_TRY(cn_jeval_filter(run, n->a, operand, &operand));
    else if (n->a)
        CN_TRY(cn_jeval(run, n->a, &operand));
    if (!n->builtin)
        return cn_fail(CN_ERR_ARG, "there is no filter '%.*s'",
                       (int)(n->value.text.n < 60 ? n->value.text.n : 60), n->value.text.at);
    CN_TRY(eval_args(run, n->b, &room));
    CN_TRY(cn_jbuiltin_call(run, n->builtin, operand, &room.args, out));
    run->depth--;
    return CN_OK;
}

static cn_status eval_filter(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    return cn_jeval_filter(run, n, (cn_jvalue){.kind = CN_J_MISSING}, out);
}

static cn_status eval_test(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    cn_jvalue operand;
    arg_room room;
    CN_TRY(cn_jeval(run, n->a, &operand));
    if (!n->builtin)
        return cn_fail(CN_ERR_ARG, "there is no test '%.*s'",
                       (int)(n->value.text.n < 60 ? n->value.text.n : 60), n->value.text.at);
    CN_TRY(eval_args(run, n->b, &room));
    return cn_jbuiltin_call(run, n->builtin, operand, &room.args, out);
}

cn_status cn_jeval(cn_jrun *run, const cn_jnode *n, cn_jvalue *out)
{
    static cn_status (*const kinds[CN_JN_KINDS])(cn_jrun *, const cn_jnode *, cn_jvalue *) = {
        [CN_JN_CONST] = eval_const,   [CN_JN_NAME] = eval_name,     [CN_JN_MEMBER] = eval_member,
        [CN_JN_ITEM] = eval_item,     [CN_JN_SLICE] = eval_slice,   [CN_JN_CALL] = eval_call,
        [CN_JN_FILTER] = eval_filter, [CN_JN_TEST] = eval_test,     [CN_JN_NOT] = eval_not,
        [CN_JN_NEGATE] = eval_sign,   [CN_JN_PLUS] = eval_sign,     [CN_JN_AND] = eval_and_or,
        [CN_JN_OR] = eval_and_or,     [CN_JN_BINARY] = eval_binary, [CN_JN_COMPARE] = eval_compare,
        [CN_JN_CONCAT] = eval_concat, [CN_JN_COND] = eval_cond,     [CN_JN_LIST] = eval_list,
        [CN_JN_TUPLE] = eval_list,    [CN_JN_DICT] = eval_dict,
    };
    CN_ASSERT(kinds[n->kind]);
    CN_TRY(cn_jdeeper(run));
    CN_TRY(cn_jwork(run, 1));
    CN_TRY(kinds[n->kind](run, n, out));
    run->depth--;
    return CN_OK;
}
