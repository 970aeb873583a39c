/* test_grammar_text.c - grammars in GBNF and Lark on texts, refusals with line and column, and
 * texts that are drawn from the masks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/grammar_open.h"

enum { BYTES = 256, EOS = BYTES, VOCAB = EOS + 1, LONGEST = 200 };

static cn_grammars *make(void) { return grammar_words(NULL, 0, 0); }

static cn_status open_text(cn_grammars *g, const char *text, cn_grammar **out)
{
    const cn_structure s = {.kind = CN_STRUCTURE_GRAMMAR, .text = text};
    return grammar_open(g, &s, out);
}

/* Draws a text from the masks; it must not get stuck, and must match if it ends. */
static void draw(cn_grammars *g, cn_grammar *grammar, uint64_t seed)
{
    char text[LONGEST + 1] = "";
    const uint32_t *mask;
    cn_matcher m;
    cn_grammar_match(grammar, &m);
    for (uint32_t n = 0; n < LONGEST; n++) {
        uint32_t allowed[VOCAB], n_allowed = 0;
        assert_int_equal(grammar_mask(g, &m, &mask), CN_OK);
        for (uint32_t i = 0; i < VOCAB; i++)
            if (i > 0 && mask[i / 32] >> i % 32 & 1) allowed[n_allowed++] = i;
        if (n_allowed == 0 && cn_matcher_is_complete(&m) && cn_matcher_accepts(&m)) break;
        assert_true(n_allowed > 0);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const uint32_t token = allowed[(seed >> 33) % n_allowed];
        if (token == EOS) {
            assert_true(grammar_matches(grammar, text));
            break;
        }
        text[n] = grammar_bytes[token];
        assert_int_equal(cn_matcher_push(&m, &grammar_bytes[token], 1), CN_OK);
    }
    cn_matcher_end(&m);
}

/* Lists end with NULL. */
static void check(const char *text, const char *const *good, const char *const *bad)
{
    cn_grammars *g = make();
    cn_grammar *grammar = NULL;
    if (open_text(g, text, &grammar) != CN_OK) fail_msg("%s: %s", text, cn_last_error());
    grammar_check_texts(grammar, text, good, bad);
    for (uint64_t seed = 0; seed < 20; seed++) draw(g, grammar, seed);
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

static void refuse(const char *text, const char *error)
{
    cn_grammars *g = make();
    cn_grammar *grammar = NULL;
    if (open_text(g, text, &grammar) != CN_ERR_ARG) fail_msg("%s is accepted", text);
    if (!strstr(cn_last_error(), error)) fail_msg("%s: %s", text, cn_last_error());
    assert_int_equal(open_text(g, text, &grammar), CN_ERR_ARG); /* it is remembered */
    if (!strstr(cn_last_error(), error)) fail_msg("%s: %s", text, cn_last_error());
    cn_grammars_free(g);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

/* grammars/json.gbnf and grammars/arithmetic.gbnf of llama.cpp */
static const char json_gbnf[] =
    "root   ::= object\n"
    "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n\n"
    "object ::=\n  \"{\" ws (\n            string \":\" ws value\n"
    "    (\",\" ws string \":\" ws value)*\n  )? \"}\" ws\n\n"
    "array  ::=\n  \"[\" ws (\n            value\n    (\",\" ws value)*\n  )? \"]\" ws\n\n"
    "string ::=\n  \"\\\"\" (\n    [^\"\\\\\\x7F\\x00-\\x1F] |\n"
    "    \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) # escapes\n  )* \"\\\"\" ws\n\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "
    "[1-9]{0,15})? ws\n\n"
    "# Optional space: by convention, applied in this grammar after literal chars when allowed\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

static const char arithmetic_gbnf[] = "root  ::= (expr \"=\" ws term \"\\n\")+\n"
                                      "expr  ::= term ([-+*/] term)*\n"
                                      "term  ::= ident | num | \"(\" ws expr \")\" ws\n"
                                      "ident ::= [a-z] [a-z0-9_]* ws\n"
                                      "num   ::= [0-9]+ ws\n"
                                      "ws    ::= [ \\t\\n]*\n";

static void gbnf(void **state)
{
    (void)state;
    check(json_gbnf,
          LIST("{}", "{\"a\":1}", "{ \"a\": [1, 2.5e1, {\"é\\u00e9\":null}], \"b\": true }",
               "{\"a\":[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]}"),
          LIST("", "[1]", "{\"a\"}", "{\"a\":01}", "{\"a\":\"\n\"}", "{\"a\":1,}"));
    check(arithmetic_gbnf, LIST("1+2=3\n", "(a *(b_1 -2)) /c = x\n1=1\n"),
          LIST("1+2", "1+=2\n", "(1=2\n"));
    check("root ::= \"a\" b? # x\n | c\nb ::= [^a-y\\n]\nc ::= . \"\\u00e9\\x41\\\"\"",
          LIST("a", "az", "a1", "aé", "xéA\"", "\néA\""), LIST("", "ab", "éA\"", "a\n"));
    check("root ::= x{2} x{0,1} y{1,} z{,2}\nx::=\"x\"\ny::=\"y\"|\"\"\nz::=\"zz\"",
          LIST("xx", "xxx", "xxxyyyzzzz", "xxzz"), LIST("x", "xxxx", "xxz", "xxzzzzzz"));
    check("root ::= root \"+\" n | n\nn ::= [0-9-]+", LIST("1", "1+2", "1+2+3", "-"),
          LIST("", "+1", "1+"));
    check("root ::= \"(\" root \")\" root | \"\"", LIST("", "()", "(()())()"),
          LIST("(", ")(", "(]"));
    check("root ::= (((\"a\"*)*)+)? \"b\"", LIST("b", "ab", "aaaab"), LIST("a", "ba"));
}

static const char sql_lark[] =
    "start: select_statement\n"
    "select_statement: \"SELECT\"i columns \"FROM\"i NAME [where] \";\"?\n"
    "columns: \"*\" -> all\n       | NAME (\",\" NAME)*\n"
    "where.2: \"WHERE\"i condition\n"
    "?condition: condition \"AND\"i comparison | comparison\n"
    "!comparison: NAME OP (SIGNED_NUMBER | ESCAPED_STRING)\n"
    "OP.3: \"=\" | \"<\" | /[<>]=/  // comparisons\n"
    "%import common.CNAME -> NAME\n"
    "%import common (SIGNED_NUMBER, ESCAPED_STRING)\n"
    "%import common.WS\n"
    "%ignore WS\n%ignore /#[^\\n]*/\n";

static const char calc_lark[] = "?start: sum\n\n"
                                "?sum: product\n    | sum \"+\" product   -> add\n"
                                "    | sum \"-\" product   -> sub\n\n"
                                "?product: atom\n    | product \"*\" atom  -> mul\n\n"
                                "?atom: NUMBER           -> number\n     | \"-\" atom\n"
                                "     | \"(\" sum \")\"\n\n"
                                "%import common.NUMBER\n%import common.WS_INLINE\n"
                                "%ignore WS_INLINE\n";

static void lark(void **state)
{
    (void)state;
    check(sql_lark,
          LIST("SELECT * FROM t;", "select a , b from t where a = 1 and b>=\"x\\\"\"",
               "Select a,b From t # end"),
          LIST("SELECT", "SELECT * FROM t WHERE", "SELECT a b FROM t",
               "SELECT * FROM t WHERE a ! 1"));
    check(calc_lark, LIST("1", "1+2*3", "-(1 - 2.5e3) * 4 + .5", "((((((((1))))))))"),
          LIST("", "1+", "(1", "1 2", "1\n"));
    check("start: \"a\"..\"c\" (B|\"é\")~2 \"x\"~0..1\nB: /[d-f]./is | /\\/q/i",
          LIST("aéé", "bE\néx", "c/QD1", "c/qd1x"), LIST("déé", "aé", "aéééx", "aééxx"));
    check("start: item+\nitem: \"- \" /[^\\n]+/ NEWLINE\n%import common.NEWLINE\n",
          LIST("- a\n", "- a\n- b\r\n"), LIST("", "-a\n", "- \n"));
    check("start: [INT] WORD\n%import common.INT\n%import common.WORD", LIST("1a", "abc"),
          LIST("", "1", "a1"));
}

/* What guidance's ll_grammar() writes. */
static void guidance(void **state)
{
    (void)state;
    check("%llguidance {}\n\nstart: expr\n\nexpr: NUMBER\n     | \"(\" expr \"+\" expr \")\"\n\n"
          "NUMBER: OPTIONAL ONE_OR_MORE\nOPTIONAL: \"-\"?\nONE_OR_MORE: REGEX+\nREGEX: /[0-9]/\n",
          LIST("1", "-12", "(1+(2+-3))"), LIST("", "--1", "(1)", "1+2"));
    check("%llguidance {}\n\nstart: \"a\" c n\nc[capture]: C\n\nC: \"x\"\n     | \"y\"\n\n"
          "n[capture=\"a,b\", temperature=0.5]: N\nN: /\\d+/\n",
          LIST("ax1", "ay22"), LIST("a1", "axy"));
    check("%llguidance {}\n\nstart: S T\nS: E A\nE: \"ab\"{3,3}\nA: \"c\"{0,2}\nT: /(?s:.*)/\n",
          LIST("ababab", "abababcc", "abababx\ny"), LIST("abab", ""));
    refuse("%llguidance {}\nstart: t\nt[capture, stop=\"\\n\"]: T\nT: /(?s:.*)/",
           "line 3, column 12: attribute stop is not supported");
    refuse("%llguidance {\"a\": 1}\nstart: \"a\"", "line 1, column 13: %llguidance: expected {}");
    refuse("start: json\njson: %json {}", "line 2, column 7: %json is not supported");
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"root ::= \"a\"\n  | b", "line 2, column 5: rule b is not defined"},
        {"a ::= \"a\"", "expected a rule root, got none"},
        {"a: \"a\"", "expected a rule start, got none"},
        {"", "expected a rule start, got none"},
        {"root ::= \"a", "line 1, column 10: the literal has no closing \""},
        {"root ::= [a", "line 1, column 10: the class has no closing ]"},
        {"root ::= [b-a]", "expected a range from low to high"},
        {"root ::= []", "expected a class with a character"},
        {"root ::= (\"a\"", "line 1, column 10: the group has no closing )"},
        {"root ::= \"a\")", "line 1, column 13: expected ( before )"},
        {"root ::= \"\\q\"", "the escape \\q is not supported"},
        {"root ::= \"\\ud800\"", "expected a character, got U+D800"},
        {"root ::= \"a\"{2,1}", "bounds are swapped"},
        {"root ::= \"a\"{99999}", "expected at most 65535 repetitions"},
        {"root ::= \"a\"{x}", "expected a number"},
        {"root ::= * \"a\"", "line 1, column 10: expected a literal"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule root: expected one definition"},
        {"root ::= \"a\" x\nx ::= \"b\" x", "line 2, column 1: rule x never ends"},
        {"root ::= x\nx ::= y \"a\" | \"b\"\ny ::= x | \"c\"", "begins with itself"},
        {"root ::= x\nx ::= y? x \"a\" | \"b\"\ny ::= \"c\"", "rule x begins with itself"},
        {"root ::= (root \"a\")* \"b\"", "rule root begins with itself"},
        {"start: \"a\" x", "line 1, column 12: rule x is not defined"},
        {"start: /a", "line 1, column 8: the expression has no closing /"},
        {"start: /a(?=b)/", "line 1, column 8: regular expression, byte"},
        {"start: /a/x", "the flag x is not supported"},
        {"start: \"ab\"..\"c\"", "expected a range of single characters"},
        {"start: \"c\"..\"a\"", "expected a range from low to high"},
        {"start: a{\"b\"}\na{x}: x", "templates are not supported"},
        {"start: A\n%import common.NOPE", "line 2, column 16: common has no terminal NOPE"},
        {"start: A\n%import python.A", "only common is supported"},
        {"start: A\n%declare A", "line 2, column 1: %declare is not supported"},
        {"start: <|tool|>", "line 1, column 8: expected a literal"},
        {"start: a\na: b \"x\" | \"y\"\nb: a | \"z\"", "begins with itself"},
        {"start \"a\"", "line 1, column 1: expected a rule"},
        {"start: ((\"a\"~65535)~65535)~65535 \"b\"~9999 (\"c\"~4000)~4000 /((d{9999}){9999})/",
         "needs more than"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) refuse(cases[i].text, cases[i].error);
}

/* Names and groups that would take long are refused for their size. */
static void work_is_bounded(void **state)
{
    (void)state;
    enum { SIZE = 65536 };
    char *text = cn_calloc(SIZE + 2, 1);
    memset(text, '(', SIZE);
    memcpy(text, "root::=", 7);
    refuse(text, "expected at most 64 groups inside one another");
    memset(text, '?', SIZE);
    memcpy(text, "start:a", 7);
    refuse(text, "line 1, column 13: expected at most 4 repetitions of one item");
    memcpy(text, "root::=a", 8);
    refuse(text, "expected at most 4 repetitions of one item");
    memset(text, ' ', SIZE + 1);
    refuse(text, "expected at most 65536 bytes");
    int n = snprintf(text, SIZE, "start: a0\n");
    for (int i = 0; n < SIZE - 40; i++) n += snprintf(text + n, 40, "a%d: a%d \"x\"?\n", i, i + 7);
    refuse(text, "is not defined");
    n = snprintf(text, SIZE, "start: a1\n");
    for (uint32_t i = 1; i <= 2500; i++)
        n += snprintf(text + n, 40, "a%u: \"x\" a%u | \"y\"\n", i * 7 % 2501, (i * 7 + 7) % 2501);
    snprintf(text + n, 40, "a0: \"z\"\n");
    cn_grammars *g = make();
    cn_grammar *grammar = NULL;
    if (open_text(g, text, &grammar) != CN_OK) fail_msg("%s", cn_last_error());
    assert_true(grammar_matches(grammar, "xxxy"));
    cn_grammars_close(grammar);
    cn_grammars_free(g);
    cn_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gbnf),
        cmocka_unit_test(lark),
        cmocka_unit_test(guidance),
        cmocka_unit_test(refusals),
        cmocka_unit_test(work_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
