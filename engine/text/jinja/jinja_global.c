/* jinja_global.c - functions that every template sees, and the entry points. See jinja.h. */
#include <time.h>

#include "engine/base/json.h"
#include "engine/text/jinja/jinja_run.h"

enum { MAX_RANGE = 100000 }; /* that of jinja2's sandbox */

static cn_status range(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    int64_t start = 0, stop = 0, step = 1;
    bool one = c->slot[1].kind == CN_J_MISSING;
    CN_TRY(cn_jwant_int(c, c->slot[0], "a bound", one ? &stop : &start));
    CN_TRY(cn_jwant_int(c, c->slot[1], "a bound", &stop));
    CN_TRY(cn_jwant_int(c, c->slot[2], "the step", &step));
    if (c->slot[0].kind == CN_J_MISSING || step == 0)
        return cn_fail(CN_ERR_ARG, "range(): expected bounds and a step that is not 0");
    CN_TRY(cn_jlist_new(&run->arena, CN_J_LIST, 0, out));
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (out->list->n == MAX_RANGE)
            return cn_fail(CN_ERR_ARG, "range(): more than %d numbers", MAX_RANGE);
        CN_TRY(cn_jwork(run, 1));
        CN_TRY(cn_jlist_add(&run->arena, out->list, cn_jint(i)));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return CN_OK;
}

/* dict(...) and namespace(...): a dict or pairs, then keywords. */
static cn_status make_dict(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    const cn_jargs *args = c->args;
    const cn_jdict *parts[2] = {NULL, args->named};
    CN_TRY(cn_jdict_new(&run->arena, c->name[0] == 'd' ? CN_J_DICT : CN_J_NAMESPACE, 0, out));
    if (args->n > 1) return cn_fail(CN_ERR_ARG, "%s() takes one argument", c->name);
    if (args->n && args->at[0].kind == CN_J_DICT) parts[0] = args->at[0].dict;
    if (args->n && args->at[0].kind != CN_J_DICT) {
        cn_jlist *pairs, *pair;
        CN_TRY(cn_jiterate(run, args->at[0], &pairs));
        for (size_t i = 0; i < pairs->n; i++) {
            CN_TRY(cn_jiterate(run, pairs->at[i], &pair));
            if (pair->n != 2) return cn_fail(CN_ERR_ARG, "%s(): expected pairs", c->name);
            CN_TRY(cn_jwork(run, 1 + out->dict->n / 8));
            CN_TRY(cn_jdict_put(&run->arena, out->dict, pair->at[0], pair->at[1]));
        }
    }
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; parts[k] && i < parts[k]->n; i++) {
            CN_TRY(cn_jwork(run, 1 + out->dict->n / 8));
            CN_TRY(
                cn_jdict_put(&run->arena, out->dict, parts[k]->at[i].key, parts[k]->at[i].value));
        }
    return CN_OK;
}

static cn_status raise_exception(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext text;
    (void)out;
    CN_TRY(cn_jstr(run, c->slot[0], &text));
    return cn_fail(CN_ERR_ARG, "%.*s", (int)(text.n < 400 ? text.n : 400), text.at);
}

static cn_status strftime_now(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext format;
    char pattern[128], text[512];
    struct tm local;
    time_t now = time(NULL);
    CN_TRY(cn_jwant_text(c, c->slot[0], "the format", &format));
    if (format.n >= sizeof pattern || !localtime_r(&now, &local))
        return cn_fail(CN_ERR_ARG, "strftime_now(): the format exceeds %zu bytes",
                       sizeof pattern - 1);
    snprintf(pattern, sizeof pattern, "%.*s", (int)format.n, format.at);
    size_t n = strftime(text, sizeof text, pattern, &local);
    return cn_jtext_copy(&run->arena, (cn_jtext){text, n}, out);
}

const cn_jbuiltin cn_jglobals[] = {
    {"range", "start stop step", range},
    {"dict", "*", make_dict},
    {"namespace", "*", make_dict},
    {"raise_exception", "message", raise_exception},
    {"strftime_now", "format", strftime_now},
    {0},
};

/* ---- limits of a rendering ---- */

cn_status cn_jwork(cn_jrun *run, size_t n)
{
    run->steps += n;
    if (run->steps <= CN_JINJA_MAX_STEPS && n <= CN_JINJA_MAX_STEPS) return CN_OK;
    run->arena.exceeded = true;
    return cn_fail(CN_ERR_ARG, "the template takes more than %d steps", CN_JINJA_MAX_STEPS);
}

cn_status cn_jdeeper(cn_jrun *run)
{
    if (++run->depth <= CN_JINJA_MAX_DEPTH) return CN_OK;
    run->arena.exceeded = true;
    return cn_fail(CN_ERR_ARG, "more than %d nested expressions, macros and loops",
                   CN_JINJA_MAX_DEPTH);
}

/* ---- entry points ---- */

/* An error may contain any bytes of the template or of a message. */
static cn_status make_printable(cn_status status)
{
    char text[512];
    return cn_fail(status, "%s", cn_json_printable(cn_last_error(), text, sizeof text));
}

struct cn_jinja {
    cn_jarena arena;
    cn_jnode *body;
};

cn_status cn_jinja_parse(cn_jinja **out, const char *source, size_t n)
{
    *out = NULL;
    if (n > CN_JINJA_MAX_SOURCE)
        return cn_fail(CN_ERR_MODEL, "the template has %zu bytes: expected at most %d", n,
                       CN_JINJA_MAX_SOURCE);
    cn_jinja *t = cn_calloc(1, sizeof *t);
    if (!t) return cn_fail(CN_ERR_MEMORY, "out of memory for a template");
    t->arena = (cn_jarena){.limit = CN_JINJA_MAX_MEMORY, .error = CN_ERR_MODEL};
    cn_jparser parser = {0};
    cn_status status = cn_jlex_open(&parser.lex, &t->arena, source, n);
    if (status == CN_OK) status = cn_jparse(&parser, &t->body);
    if (status != CN_OK) {
        cn_jinja_free(t);
        return make_printable(status);
    }
    *out = t;
    return CN_OK;
}

void cn_jinja_free(cn_jinja *t)
{
    if (!t) return;
    cn_jarena_free(&t->arena);
    cn_free(t);
}

static cn_status start(cn_jrun *run, const json_t *variables)
{
    cn_jvalue given;
    CN_TRY(cn_jfrom_json(run, variables, &given));
    CN_TRY(cn_jscope_new(run, NULL, &run->scope));
    run->scope->vars = *given.dict;
    return cn_jscope_new(run, run->scope, &run->scope);
}

cn_status cn_jinja_render(const cn_jinja *t, const json_t *variables, cn_buf *out, bool *exceeded)
{
    CN_ASSERT(json_is_object(variables));
    cn_jrun run = {.arena = {.limit = CN_JINJA_MAX_MEMORY, .error = CN_ERR_ARG},
                   .out = out,
                   .start = out->len};
    cn_status status = start(&run, variables);
    if (status == CN_OK) status = cn_jexec(&run, t->body);
    *exceeded = run.arena.exceeded;
    cn_jarena_free(&run.arena);
    if (status == CN_OK) return cn_buf_add(out, "", 0);
    if (out->data) {
        out->len = run.start;
        out->data[run.start] = '\0';
    }
    if (run.line) status = cn_fail_within(status, "chat template, line %u", run.line);
    return make_printable(status);
}

/* ---- loops over parts of a content ---- */

static bool reads_name(const cn_jnode *n, cn_jtext name)
{
    if (n->kind == CN_JN_NAME || n->kind == CN_JN_MEMBER) return cn_jtext_same(n->value.text, name);
    if (n->kind == CN_JN_FILTER) return n->a && reads_name(n->a, name);
    return n->kind == CN_JN_ITEM && n->b->kind == CN_JN_CONST && n->b->value.kind == CN_J_STRING &&
           cn_jtext_same(n->b->value.text, name);
}

/* The parser limits how deep nodes are nested. */
static bool loops_over(const cn_jnode *n, cn_jtext name)
{
    for (; n; n = n->next) {
        if (n->kind == CN_JN_FOR && reads_name(n->b, name)) return true;
        if (n->kind > CN_JN_SCOPE) continue;
        if (loops_over(n->b, name) || loops_over(n->c, name) || loops_over(n->d, name) ||
            loops_over(n->e, name) || (n->kind == CN_JN_SCOPE && loops_over(n->a, name)))
            return true;
    }
    return false;
}

bool cn_jinja_loops_over(const cn_jinja *t, const char *name)
{
    return loops_over(t->body, (cn_jtext){name, strlen(name)});
}

/* The parser limits how deep nodes are nested, but not chains of operators, filters and members,
 * which are linked by `a`. */
static bool has_variable(const cn_jnode *first, cn_jtext name)
{
    for (; first; first = first->next)
        for (const cn_jnode *n = first; n; n = n->a)
            if ((n->kind == CN_JN_NAME && cn_jtext_same(n->value.text, name)) ||
                has_variable(n->b, name) || has_variable(n->c, name) ||
                has_variable(n->d, name) || has_variable(n->e, name) ||
                (n != first && has_variable(n->next, name)))
                return true;
    return false;
}

bool cn_jinja_has_variable(const cn_jinja *t, const char *name)
{
    return has_variable(t->body, (cn_jtext){name, strlen(name)});
}
