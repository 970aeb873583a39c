/* jinja_test.c - what may follow "is". See jinja_builtin.h. */

#include "engine/text/jinja/jinja_pystring.h"
#include "engine/text/jinja/jinja_run.h"

/* Tests of the kind of a value: a set of kinds. */
#define KIND(k) (1u << CN_J_##k)
static const struct {
    const char *name;
    unsigned kinds;
} kind_tests[] = {
    {"undefined", KIND(UNDEFINED)},
    {"none", KIND(NONE)},
    {"boolean", KIND(BOOL)},
    {"integer", KIND(INT)},
    {"float", KIND(FLOAT)},
    {"number", KIND(INT) | KIND(FLOAT) | KIND(BOOL)},
    {"string", KIND(STRING)},
    {"mapping", KIND(DICT)},
    {"sequence", KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(DICT) | KIND(UNDEFINED)},
    {"iterable", KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(DICT) | KIND(UNDEFINED) |
                     KIND(STREAM) | KIND(LOOP)},
    {"callable", KIND(MACRO) | KIND(BUILTIN) | KIND(LOOP)},
};

static cn_status is_kind(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    (void)run;
    for (size_t i = 0; i < sizeof kind_tests / sizeof *kind_tests; i++)
        if (strcmp(c->name, kind_tests[i].name) == 0)
            *out = cn_jbool(kind_tests[i].kinds >> c->self.kind & 1);
    return CN_OK;
}

static cn_status is_defined(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    (void)run;
    *out = cn_jbool(c->self.kind != CN_J_UNDEFINED);
    return CN_OK;
}

static cn_status is_bool_value(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    (void)run;
    *out = cn_jbool(c->self.kind == CN_J_BOOL && c->self.truth == (c->name[0] == 't'));
    return CN_OK;
}

/* even, odd and divisibleby. */
static cn_status is_divisible(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    int64_t by = 2;
    cn_jvalue rest;
    CN_TRY(cn_jwant_int(c, c->slot[0], "the divisor", &by));
    CN_TRY(cn_jbinary(run, CN_JOP_MOD, c->self, cn_jint(by), &rest));
    *out = cn_jbool(cn_jtruth(rest) == (c->name[0] == 'o'));
    return CN_OK;
}

static cn_status is_compared(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    static const struct {
        const char *name;
        cn_jop op;
    } names[] = {
        {"eq", CN_JOP_EQ}, {"equalto", CN_JOP_EQ},     {"ne", CN_JOP_NE},
        {"lt", CN_JOP_LT}, {"lessthan", CN_JOP_LT},    {"le", CN_JOP_LE},
        {"gt", CN_JOP_GT}, {"greaterthan", CN_JOP_GT}, {"ge", CN_JOP_GE},
        {"in", CN_JOP_IN},
    };
    bool holds = false;
    if (c->slot[0].kind == CN_J_MISSING)
        return cn_fail(CN_ERR_ARG, "the test '%s' needs a value to compare with", c->name);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(c->name, names[i].name) == 0)
            CN_TRY(cn_jcompare(run, names[i].op, c->self, c->slot[0], &holds));
    *out = cn_jbool(holds);
    return CN_OK;
}

static bool same_object(cn_jvalue a, cn_jvalue b)
{
    if (a.kind != b.kind) return false;
    if (cn_jis_sequence(a)) return a.list == b.list;
    return a.kind == CN_J_DICT ? a.dict == b.dict : cn_jsame(a, b);
}

static cn_status is_same(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    (void)run;
    *out = cn_jbool(same_object(c->self, c->slot[0]));
    return CN_OK;
}

static cn_status is_test_known(cn_jrun *run, const cn_jcall *c, cn_jvalue *out)
{
    cn_jtext name;
    (void)run;
    CN_TRY(cn_jwant_text(c, c->self, "a name", &name));
    *out = cn_jbool((c->name[0] == 'f' ? cn_jfind_filter(name) : cn_jfind_test(name)) != NULL);
    return CN_OK;
}

const cn_jbuiltin cn_jtests[] = {
    {"undefined", "", is_kind},
    {"defined", "", is_defined},
    {"none", "", is_kind},
    {"boolean", "", is_kind},
    {"true", "", is_bool_value},
    {"false", "", is_bool_value},
    {"integer", "", is_kind},
    {"float", "", is_kind},
    {"number", "", is_kind},
    {"string", "", is_kind},
    {"mapping", "", is_kind},
    {"sequence", "", is_kind},
    {"iterable", "", is_kind},
    {"callable", "", is_kind},
    {"even", "", is_divisible},
    {"odd", "", is_divisible},
    {"divisibleby", "num", is_divisible},
    {"eq", "other", is_compared},
    {"equalto", "other", is_compared},
    {"ne", "other", is_compared},
    {"lt", "other", is_compared},
    {"lessthan", "other", is_compared},
    {"le", "other", is_compared},
    {"gt", "other", is_compared},
    {"greaterthan", "other", is_compared},
    {"ge", "other", is_compared},
    {"in", "seq", is_compared},
    {"sameas", "other", is_same},
    {"filter", "", is_test_known},
    {"test", "", is_test_known},
    {0},
};
