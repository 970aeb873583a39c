/* jinja_exec.c - statements, loops and macros. See jinja_run.h. */
#include "engine/text/jinja/jinja_run.h"

/* ---- scopes and targets ---- */

cn_status cn_jscope_new(cn_jrun *run, cn_jscope *parent, cn_jscope **out)
{
    CN_TRY(cn_jalloc(&run->arena, 1, sizeof **out, out));
    (*out)->parent = parent;
    return CN_OK;
}

static cn_status set_variable(cn_jrun *run, cn_jscope *scope, cn_jtext name, cn_jvalue v)
{
    CN_TRY(cn_jwork(run, 1 + scope->vars.n / 8));
    return cn_jdict_put(&run->arena, &scope->vars, cn_jstring(name), v);
}

static cn_status assign_member(cn_jrun *run, const cn_jnode *target, cn_jvalue v)
{
    cn_jvalue object;
    CN_TRY(cn_jeval(run, target->a, &object));
    if (object.kind != CN_J_NAMESPACE)
        return cn_fail(CN_ERR_ARG, "only members of a namespace can be set, not of a %s",
                       cn_jtype_name(object));
    CN_TRY(cn_jwork(run, 1 + object.dict->n / 8));
    return cn_jdict_put(&run->arena, object.dict, target->value, v);
}

static cn_status assign_loop(cn_jrun *run, const cn_jnode *target, cn_jvalue v)
{
    if (target->kind == CN_JN_NAME) return set_variable(run, run->scope, target->value.text, v);
    if (target->kind == CN_JN_MEMBER) return assign_member(run, target, v);
    cn_jlist *items;
    CN_TRY(cn_jdeeper(run));
    CN_TRY(cn_jiterate(run, v, &items));
    size_t i = 0;
    for (const cn_jnode *t = target->a; t; t = t->next, i++) {
        if (i == items->n) break;
        CN_TRY(assign_loop(run, t, items->at[i]));
        if (!t->next && i + 1 == items->n) {
            run->depth--;
            return CN_OK;
        }
    }
    return cn_fail(CN_ERR_ARG, "cannot unpack %zu values: another number is expected", items->n);
}

/* Runs a list of statements in a scope of its own. */
static cn_status exec_inside(cn_jrun *run, cn_jscope *scope, const cn_jnode *list)
{
    cn_jscope *outer = run->scope;
    run->scope = scope;
    CN_TRY(cn_jexec(run, list));
    run->scope = outer;
    return CN_OK;
}

/* The text of a list of statements in a new scope inside `parent`. */
static cn_status capture(cn_jrun *run, cn_jscope *parent, const cn_jnode *list, cn_jvalue *out)
{
    cn_jscope *scope;
    size_t mark = cn_jmark(run);
    CN_TRY(cn_jscope_new(run, parent, &scope));
    CN_TRY(exec_inside(run, scope, list));
    return cn_jcut(run, mark, out);
}

/* ---- loops ---- */

/* The items for which the condition of the loop holds. */
static cn_status filter_items(cn_jrun *run, const cn_jnode *n, cn_jlist **items)
{
    cn_jvalue kept, holds;
    cn_jscope *outer = run->scope;
    CN_TRY(cn_jlist_new(&run->arena, CN_J_LIST, 0, &kept));
    for (size_t i = 0; i < (*items)->n; i++) {
        CN_TRY(cn_jscope_new(run, outer, &run->scope));
        CN_TRY(assign_loop(run, n->a, (*items)->at[i]));
        CN_TRY(cn_jeval(run, n->c, &holds));
        if (cn_jtruth(holds)) CN_TRY(cn_jlist_add(&run->arena, kept.list, (*items)->at[i]));
    }
    run->scope = outer;
    *items = kept.list;
    return CN_OK;
}

static cn_status run_loop(cn_jrun *run, const cn_jnode *n, cn_jvalue over, size_t depth)
{
    cn_jloop *loop;
    cn_jscope *outer = run->scope;
    CN_TRY(cn_jalloc(&run->arena, 1, sizeof *loop, &loop));
    *loop = (cn_jloop){.node = n, .depth = depth, .scope = outer};
    CN_TRY(cn_jiterate(run, over, &loop->items));
    if (n->c) CN_TRY(filter_items(run, n, &loop->items));
    for (; loop->index < loop->items->n && run->jump != CN_J_BREAK; loop->index++) {
        CN_TRY(cn_jscope_new(run, outer, &run->scope));
        cn_jvalue self = {.kind = CN_J_LOOP, .loop = loop};
        CN_TRY(set_variable(run, run->scope, CN_JTEXT("loop"), self));
        CN_TRY(assign_loop(run, n->a, loop->items->at[loop->index]));
        CN_TRY(cn_jexec(run, n->d));
        if (run->jump == CN_J_CONTINUE) run->jump = CN_J_GO_ON;
    }
    run->scope = outer;
    run->jump = CN_J_GO_ON;
    if (loop->items->n || !n->e) return CN_OK;
    cn_jscope *scope;
    CN_TRY(cn_jscope_new(run, outer, &scope));
    return exec_inside(run, scope, n->e);
}

cn_status cn_jloop_call(cn_jrun *run, const cn_jloop *loop, const cn_jargs *args, cn_jvalue *out)
{
    if (!loop->node->recursive || args->n != 1)
        return cn_fail(CN_ERR_ARG, "loop(...) needs a loop that is 'recursive' and one argument");
    size_t mark = cn_jmark(run);
    cn_jscope *inner = run->scope;
    CN_TRY(cn_jdeeper(run));
    run->scope = loop->scope;
    CN_TRY(run_loop(run, loop->node, args->at[0], loop->depth + 1));
    run->scope = inner;
    run->depth--;
    return cn_jcut(run, mark, out);
}

static cn_status exec_for(cn_jrun *run, const cn_jnode *n)
{
    cn_jvalue over;
    CN_TRY(cn_jeval(run, n->b, &over));
    return run_loop(run, n, over, 0);
}

/* ---- macros ---- */

/* Sets the parameters in `scope` from the arguments; the rest is in varargs and kwargs. */
static cn_status bind_loop(cn_jrun *run, const cn_jmacro *m, const cn_jargs *args, cn_jscope *scope)
{
    size_t used = 0, named = 0;
    cn_jvalue rest, more;
    for (const cn_jnode *p = m->params; p; p = p->next) {
        const cn_jvalue *by_name =
            args->named ? cn_jdict_find_text(args->named, p->value.text) : NULL;
        cn_jvalue v = cn_jundefined(p->value.text);
        if (used < args->n && by_name)
            return cn_fail(CN_ERR_ARG, "macro %.*s: an argument is given twice", (int)m->name.n,
                           m->name.at);
        named += by_name != NULL;
        if (used < args->n)
            v = args->at[used++];
        else if (by_name)
            v = *by_name;
        else if (p->a)
            CN_TRY(cn_jeval(run, p->a, &v));
        CN_TRY(set_variable(run, scope, p->value.text, v));
    }
    CN_TRY(cn_jlist_new(&run->arena, CN_J_TUPLE, 0, &rest));
    CN_TRY(cn_jdict_new(&run->arena, CN_J_DICT, 0, &more));
    while (used < args->n) CN_TRY(cn_jlist_add(&run->arena, rest.list, args->at[used++]));
    for (size_t i = 0; args->named && i < args->named->n && named < args->named->n; i++) {
        const cn_jpair *p = &args->named->at[i];
        if (cn_jdict_find_text(&scope->vars, p->key.text)) continue;
        CN_TRY(cn_jdict_put(&run->arena, more.dict, p->key, p->value));
    }
    cn_jvalue *caller = cn_jdict_find_text(more.dict, CN_JTEXT("caller"));
    CN_TRY(set_variable(run, scope, CN_JTEXT("varargs"), rest));
    CN_TRY(set_variable(run, scope, CN_JTEXT("kwargs"), more));
    return caller ? set_variable(run, scope, CN_JTEXT("caller"), *caller) : CN_OK;
}

cn_status cn_jmacro_call(cn_jrun *run, const cn_jmacro *m, const cn_jargs *args, cn_jvalue *out)
{
    cn_jscope *scope, *outer = run->scope;
    uint32_t line = run->line;
    size_t mark = cn_jmark(run);
    CN_TRY(cn_jdeeper(run));
    CN_TRY(cn_jscope_new(run, m->scope, &scope));
    run->scope = scope;
    CN_TRY(bind_loop(run, m, args, scope));
    CN_TRY(cn_jexec(run, m->body));
    run->scope = outer;
    run->jump = CN_J_GO_ON;
    run->line = line;
    run->depth--;
    return cn_jcut(run, mark, out);
}

static cn_status new_macro(cn_jrun *run, const cn_jnode *params, const cn_jnode *body,
                           cn_jtext name, cn_jvalue *out)
{
    cn_jmacro *m;
    CN_TRY(cn_jalloc(&run->arena, 1, sizeof *m, &m));
    *m = (cn_jmacro){.params = params, .body = body, .name = name, .scope = run->scope};
    *out = (cn_jvalue){.kind = CN_J_MACRO, .macro = m};
    return CN_OK;
}

static cn_status exec_macro(cn_jrun *run, const cn_jnode *n)
{
    cn_jvalue macro;
    CN_TRY(new_macro(run, n->a, n->b, n->value.text, &macro));
    return set_variable(run, run->scope, n->value.text, macro);
}

/* {% call(x) f(y) %}: the parser adds the argument caller=caller to the call. */
static cn_status exec_call_block(cn_jrun *run, const cn_jnode *n)
{
    cn_jvalue caller, out;
    cn_jscope *scope, *outer = run->scope;
    CN_TRY(new_macro(run, n->b, n->c, CN_JTEXT("caller"), &caller));
    CN_TRY(cn_jscope_new(run, outer, &scope));
    CN_TRY(set_variable(run, scope, CN_JTEXT("caller"), caller));
    run->scope = scope;
    CN_TRY(cn_jeval(run, n->a, &out));
    run->scope = outer;
    return cn_jput_str(run, out);
}

/* ---- other statements ---- */

static cn_status exec_text(cn_jrun *run, const cn_jnode *n) { return cn_jputs(run, n->value.text); }

static cn_status exec_print(cn_jrun *run, const cn_jnode *n)
{
    cn_jvalue v;
    CN_TRY(cn_jeval(run, n->a, &v));
    return cn_jput_str(run, v);
}

static cn_status exec_if(cn_jrun *run, const cn_jnode *n)
{
    for (;;) {
        cn_jvalue condition;
        run->line = n->line;
        CN_TRY(cn_jeval(run, n->a, &condition));
        if (cn_jtruth(condition)) return cn_jexec(run, n->b);
        n = n->c;
        /* An else that begins with an if is not an elif: more may follow. */
        if (!n || n->kind != CN_JN_IF || n->next) return cn_jexec(run, n);
    }
}

static cn_status exec_set(cn_jrun *run, const cn_jnode *n)
{
    cn_jvalue v;
    CN_TRY(cn_jeval(run, n->b, &v));
    return assign_loop(run, n->a, v);
}

static cn_status exec_set_block(cn_jrun *run, const cn_jnode *n)
{
    cn_jvalue v;
    CN_TRY(capture(run, run->scope, n->c, &v));
    if (n->b) CN_TRY(cn_jeval_filter(run, n->b, v, &v));
    return assign_loop(run, n->a, v);
}

static cn_status exec_filter_block(cn_jrun *run, const cn_jnode *n)
{
    cn_jvalue v;
    CN_TRY(capture(run, run->scope, n->b, &v));
    CN_TRY(cn_jeval_filter(run, n->a, v, &v));
    return cn_jput_str(run, v);
}

static cn_status exec_with(cn_jrun *run, const cn_jnode *n)
{
    cn_jscope *scope;
    CN_TRY(cn_jscope_new(run, run->scope, &scope));
    for (const cn_jnode *p = n->a; p; p = p->next) {
        cn_jvalue v;
        CN_TRY(cn_jeval(run, p->a, &v));
        CN_TRY(set_variable(run, scope, p->value.text, v));
    }
    return exec_inside(run, scope, n->b);
}

static cn_status exec_scope(cn_jrun *run, const cn_jnode *n)
{
    cn_jscope *scope;
    CN_TRY(cn_jscope_new(run, run->scope, &scope));
    return exec_inside(run, scope, n->a);
}

static cn_status exec_jump(cn_jrun *run, const cn_jnode *n)
{
    run->jump = n->kind == CN_JN_BREAK ? CN_J_BREAK : CN_J_CONTINUE;
    return CN_OK;
}

cn_status cn_jexec(cn_jrun *run, const cn_jnode *list)
{
    static cn_status (*const kinds[CN_JN_KINDS])(cn_jrun *, const cn_jnode *) = {
        [CN_JN_TEXT] = exec_text,
        [CN_JN_PRINT] = exec_print,
        [CN_JN_IF] = exec_if,
        [CN_JN_FOR] = exec_for,
        [CN_JN_SET] = exec_set,
        [CN_JN_SET_BLOCK] = exec_set_block,
        [CN_JN_MACRO] = exec_macro,
        [CN_JN_CALL_BLOCK] = exec_call_block,
        [CN_JN_FILTER_BLOCK] = exec_filter_block,
        [CN_JN_WITH] = exec_with,
        [CN_JN_SCOPE] = exec_scope,
        [CN_JN_BREAK] = exec_jump,
        [CN_JN_CONTINUE] = exec_jump,
    };
    CN_TRY(cn_jdeeper(run));
    for (; list && run->jump == CN_J_GO_ON; list = list->next) {
        CN_ASSERT(kinds[list->kind]);
        run->line = list->line;
        CN_TRY(cn_jwork(run, 1));
        CN_TRY(kinds[list->kind](run, list));
    }
    run->depth--;
    return CN_OK;
}
