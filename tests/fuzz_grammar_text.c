/* fuzz_grammar_text.c - feeds hostile grammars in GBNF and Lark. Must hold: no crash; the work is
 * bounded; a refusal has a text; a network that is made has an end. */
#include "engine/grammar/gbnf.h"
#include "engine/grammar/lark.h"
#include "tests/lib/fuzz.h"

static void run(const uint8_t *data, size_t size)
{
    for (int lark = 0; lark < 2; lark++) {
        cn_net net = {.status = CN_OK};
        cn_net_rule_new(&net);
        cn_status status = lark ? cn_lark_emit((const char *)data, size, &net)
                                : cn_gbnf_emit((const char *)data, size, &net);
        if (status == CN_OK) status = cn_net_finish(&net);
        FUZZ_CHECK(status == CN_OK || (status == CN_ERR_ARG && *cn_last_error()));
        FUZZ_CHECK(net.n_nodes <= CN_NET_MAX_NODES);
        cn_net_free(&net);
    }
}

static const fuzz_input corpus[] = {
    FUZZ_TEXT("root ::= (expr \"=\" ws term \"\\n\")+ # all\nexpr ::= term ([-+*/] term)*\n"
              "term ::= [a-z]{1,3} | \"(\" ws expr \")\" ws\nws ::= [ \\t\\n]* | [^\\x00-\\u00ff]"),
    FUZZ_TEXT("?start: sum\n?sum: product | sum \"+\" product -> add\n!product.2: NUMBER~1..2 "
              "[\"x\"i] | \"a\"..\"f\" /[b-d]\\w./is\n%import common.NUMBER\n%ignore / /\n"),
};

static const char *const words[] = {
    "::=",
    "root",
    "start",
    ":",
    "|",
    "(",
    ")",
    "[",
    "]",
    "{2,3}",
    "~2..3",
    "*",
    "+",
    "?",
    "\"a\"",
    "..",
    "->",
    "/",
    "\\u",
    "\\x4",
    "\n",
    "[^",
    "%import common.WS",
    "%ignore",
    "sum",
    "expr",
    "#",
    "//",
    "\xff",
    "{65535}",
    "%llguidance {}",
    "a[capture]: ",
    "\"i",
};

static const fuzz_target target = {
    .name = "grammar_text",
    .run = run,
    .corpus = corpus,
    .n_corpus = sizeof corpus / sizeof *corpus,
    .words = words,
    .n_words = sizeof words / sizeof *words,
};

int main(int argc, char **argv) { return fuzz_main(argc, argv, &target); }
