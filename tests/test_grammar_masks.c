/* test_grammar_masks.c - token masks with a vocabulary of 150,000 tokens: the work of a call is
 * bounded, a mask made in pieces equals one made at once, its cost depends on the text alone; the
 * memory of networks is shared between owners. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/grammar/unique_masks.h"
#include "tests/lib/grammar_open.h"

enum { VOCAB = 150000, BYTES = 256, MAX_TOKEN = 12, PIECE = 3000000, MOST_OF_A_MOVE = 1 << 20 };

#define HOSTILE "(?:[a-m].{0,900}|[n-z].{0,1000}|[^a-z].{0,900}){40}"
#define ORDINARY                                                                                 \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":60},"      \
    "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\"," \
    "\"items\":{\"type\":\"string\"},\"maxItems\":5},\"kind\":{\"enum\":[\"alpha\",\"beta\"]}}," \
    "\"required\":[\"name\",\"age\",\"tags\",\"kind\"]}"

static char texts[VOCAB][MAX_TOKEN];
static cn_token_bytes by_id[VOCAB];
static const uint32_t eos[] = {VOCAB};

static uint32_t draw(uint32_t n)
{
    static uint64_t h = 5;
    h = cn_hash64(h, &h, sizeof h);
    return (uint32_t)(h >> 33) % n;
}

/* Words with and without a space before them, in the frequencies of letters; two-byte characters,
 * digits, marks. */
static uint32_t draw_token(char *out)
{
    static const char letters[] = "etaoinshrdlucmfwypvbgkjqxz", marks[] = "{}[]\",:; \n\t().-_/\\";
    const uint32_t n = 2 + draw(5) + draw(5), style = draw(20);
    uint32_t at = 0;
    if (style < 12) out[at++] = ' ';
    while (at < n) {
        if (style == 19) {
            out[at++] = (char)(0xc3 + draw(8));
            out[at++] = (char)(0x80 + draw(64));
        } else if (style == 18) {
            out[at++] = marks[draw(sizeof marks - 1)];
        } else if (style == 17) {
            out[at++] = (char)('0' + draw(10));
        } else {
            out[at++] = letters[cn_min_u32(draw(26), draw(26))];
        }
    }
    return at;
}

static cn_grammars *make(uint64_t net_bytes)
{
    cn_token_bytes *tokens = malloc(sizeof by_id);
    cn_grammars *g;
    assert_non_null(tokens);
    for (uint32_t i = 0; i < VOCAB && by_id[VOCAB - 1].n == 0; i++) {
        texts[i][0] = (char)i;
        by_id[i] = (cn_token_bytes){texts[i], i, i < BYTES ? 1 : draw_token(texts[i])};
    }
    memcpy(tokens, by_id, sizeof by_id);
    const cn_grammars_opts o = {.tokens = tokens,
                                .n_tokens = VOCAB,
                                .vocab = VOCAB + 1,
                                .eos = eos,
                                .n_eos = 1,
                                .net_bytes = net_bytes};
    assert_int_equal(cn_grammars_create(&g, &o), CN_OK);
    free(tokens);
    return g;
}

static cn_grammar *open_grammar(cn_grammars *g, cn_structure_kind kind, const char *text)
{
    cn_grammar *grammar;
    if (grammar_open(g, &(cn_structure){kind, text, NULL, false}, &grammar) != CN_OK)
        fail_msg("%s", cn_last_error());
    return grammar;
}

static void push(cn_matcher *m, const char *text)
{
    assert_int_equal(cn_matcher_push(m, text, strlen(text)), CN_OK);
}

/* Makes a mask in pieces; no piece does much more work than it may. Returns their number. */
static uint32_t make_in_pieces(cn_matcher *m, const uint32_t **mask)
{
    uint32_t n = 0;
    for (*mask = NULL; !*mask; n++) {
        uint64_t work = PIECE;
        const uint64_t before = cn_matcher_mask_cost(m);
        assert_int_equal(cn_matcher_mask(m, &work, mask), CN_OK);
        assert_true(*mask || work == 0);
        assert_true(n > 0 || cn_matcher_mask_cost(m) >= before);
    }
    return n;
}

static void a_mask_in_pieces_is_the_same(void **state)
{
    (void)state;
    static const char *const prefixes[] = {"b", "\xc3\xa9x"};
    cn_grammars *g = make(0), *pieces = make(0);
    cn_grammar *one = open_grammar(g, CN_STRUCTURE_REGEX, HOSTILE);
    cn_grammar *other = open_grammar(pieces, CN_STRUCTURE_REGEX, HOSTILE);
    uint32_t most = 0;
    for (size_t i = 0; i < 2; i++) {
        cn_matcher m, k;
        const uint32_t *a, *b;
        cn_grammar_match(one, &m);
        cn_grammar_match(other, &k);
        push(&m, prefixes[i]);
        push(&k, prefixes[i]);
        assert_int_equal(grammar_mask(g, &m, &a), CN_OK);
        const uint32_t n = make_in_pieces(&k, &b);
        most = n > most ? n : most;
        assert_memory_equal(a, b, (VOCAB + 32) / 32 * sizeof *a);
        assert_int_equal(cn_matcher_mask_cost(&m), cn_matcher_mask_cost(&k));
        cn_matcher_end(&m);
        cn_matcher_end(&k);
    }
    assert_true(most > 3);
    cn_grammars_close(one);
    cn_grammars_close(other);
    cn_grammars_free(g);
    cn_grammars_free(pieces);
}

/* Other texts, and walks that they interrupt, change neither the mask nor its cost. */
static void a_cost_depends_on_the_text_alone(void **state)
{
    (void)state;
    cn_grammars *g = make(0), *warm = make(0);
    cn_grammar *a = open_grammar(g, CN_STRUCTURE_SCHEMA, ORDINARY);
    cn_grammar *b = open_grammar(warm, CN_STRUCTURE_SCHEMA, ORDINARY);
    static const char *const prefixes[] = {"{\"name\":\"abc", "{\"name\":\"abcd",
                                           "{\"name\":\"a", "{\"name\":\"abc\",\"age\":1"};
    for (int i = 3; i >= 0; i--) {
        cn_matcher m, k, between;
        const uint32_t *x, *y;
        uint64_t little = 5000;
        cn_grammar_match(a, &m);
        cn_grammar_match(b, &k);
        cn_grammar_match(b, &between);
        push(&m, prefixes[i]);
        push(&k, prefixes[i]);
        push(&between, prefixes[(i + 2) % 4]);
        assert_int_equal(cn_matcher_mask(&between, &little, &y), CN_OK);
        assert_int_equal(grammar_mask(g, &m, &x), CN_OK);
        assert_int_equal(grammar_mask(warm, &k, &y), CN_OK);
        assert_memory_equal(x, y, (VOCAB + 32) / 32 * sizeof *x);
        assert_int_equal(cn_matcher_mask_cost(&m), cn_matcher_mask_cost(&k));
        assert_in_range(cn_matcher_mask_cost(&m), 1, 3 * MOST_OF_A_MOVE); /* an ordinary form */
        cn_matcher_end(&m);
        cn_matcher_end(&k);
        cn_matcher_end(&between);
    }
    cn_grammars_close(a);
    cn_grammars_close(b);
    cn_grammars_free(g);
    cn_grammars_free(warm);
}

/* A step makes one such mask for each row. */
static void different_items_cost_little(void **state)
{
    (void)state;
    static const char *const schemas[] = {
        "{\"items\":{\"type\":\"string\"},\"uniqueItems\":true}",
        "{\"items\":{\"type\":\"string\",\"maxLength\":12},\"uniqueItems\":true}",
        "{\"items\":{\"type\":\"string\",\"format\":\"date\"},\"uniqueItems\":true}",
        "{\"items\":{\"type\":\"integer\"},\"uniqueItems\":true}",
        "{\"items\":{\"type\":\"number\"},\"uniqueItems\":true}",
    };
    static const char *const items[] = {"\"item %u\"", "\"item %u\"", "\"1999-01-%02u\"", "%u",
                                        "%u.5"};
    static const char *const ends[] = {"\"it", "\"item 1", "\"1999-01-1", "1", "1"};
    static uint32_t mask[VOCAB / 32 + 1];
    cn_grammars *g = make(0);
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        cn_grammar *a = open_grammar(g, CN_STRUCTURE_SCHEMA, schemas[i]);
        cn_matcher m;
        const uint32_t *shared;
        uint64_t steps[2] = {0, 0};
        cn_grammar_match(a, &m);
        push(&m, "[");
        for (uint32_t k = 0; k < 28; k++) {
            char item[32];
            snprintf(item, sizeof item, items[i], k + 1);
            push(&m, item);
            push(&m, ",");
        }
        for (int end = 0; end < 2; end++) {
            if (end) push(&m, ends[i]);
            assert_int_equal(grammar_mask(g, &m, &shared), CN_OK);
            memcpy(mask, shared, sizeof mask);
            assert_int_equal(cn_matcher_exclude(&m, mask, &steps[end]), CN_OK);
            assert_in_range(steps[end], 1, i < 3 ? 300000 : PIECE);
        }
        cn_matcher_end(&m);
        cn_grammars_close(a);
    }
    cn_grammars_free(g);
}

/* A walk whose text is gone is given up, and one that a shrink interrupts begins again. */
static void a_walk_may_be_interrupted(void **state)
{
    (void)state;
    cn_grammars *g = make(0);
    cn_grammar *grammar = open_grammar(g, CN_STRUCTURE_REGEX, HOSTILE);
    cn_matcher gone, m;
    const uint32_t *mask;
    uint64_t work = PIECE;
    cn_grammar_match(grammar, &gone);
    push(&gone, "b");
    assert_int_equal(cn_matcher_mask(&gone, &work, &mask), CN_OK);
    assert_null(mask);
    cn_grammar_match(grammar, &m);
    push(&m, "c");
    cn_matcher_end(&gone);
    make_in_pieces(&m, &mask);
    assert_true(mask['d' / 32] >> 'd' % 32 & 1);
    const uint64_t cost = cn_matcher_mask_cost(&m);
    push(&m, "d");
    work = PIECE;
    assert_int_equal(cn_matcher_mask(&m, &work, &mask), CN_OK);
    assert_null(mask);
    assert_int_equal(cn_automaton_shrink(m.automaton), CN_OK);
    assert_int_equal(cn_matcher_mask_cost(&m), 0);
    make_in_pieces(&m, &mask);
    assert_true(cn_matcher_mask_cost(&m) > cost / 2);
    assert_int_equal(cn_automaton_shrink(m.automaton), CN_OK);
    work = 0;
    assert_int_equal(cn_matcher_mask(&m, &work, &mask), CN_OK);
    assert_non_null(mask); /* a live matcher keeps its mask */
    cn_matcher_end(&m);
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

static void first_masks_are_made_with_the_grammar(void **state)
{
    (void)state;
    cn_grammars *g = make(0);
    cn_grammar *grammar = open_grammar(g, CN_STRUCTURE_SCHEMA, ORDINARY);
    cn_matcher m;
    const uint32_t *mask;
    uint64_t work = 0;
    cn_grammar_match(grammar, &m);
    assert_int_equal(cn_automaton_shrink(m.automaton), CN_OK);
    assert_int_equal(cn_matcher_mask(&m, &work, &mask), CN_OK);
    assert_non_null(mask);
    cn_matcher_end(&m);
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

static void networks_leave_room_for_others(void **state)
{
    (void)state;
    cn_grammars *g = make(32 << 20);
    cn_grammar *used[8];
    uint64_t held = 0;
    uint32_t n = 0;
    while (cn_grammars_have_room(g, held)) {
        char text[64];
        assert_true(n < 8);
        snprintf(text, sizeof text, "[acegikmoqsuwy]{%u}", 20000 + n);
        used[n] = open_grammar(g, CN_STRUCTURE_REGEX, text);
        held += cn_grammar_bytes(used[n++]);
    }
    assert_in_range(held, 16 << 20, 26 << 20);
    assert_true(cn_grammars_have_room(g, 0));
    while (n > 0) cn_grammars_close(used[--n]);
    assert_true(cn_grammars_have_room(g, held - 1));
    cn_grammars_free(g);
}

static void refusals_are_remembered(void **state)
{
    (void)state;
    cn_grammars *g = make(0);
    cn_grammar *grammar;
    cn_form f;
    const cn_structure slow = {CN_STRUCTURE_REGEX, "(((){65535}){65535}){65535}", NULL, false};
    assert_int_equal(grammar_open(g, &slow, &grammar), CN_ERR_ARG);
    assert_int_equal(cn_form_copy(&f, &slow), CN_OK);
    assert_int_equal(cn_grammars_open(g, &f, &grammar), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "steps"));
    for (uint32_t i = 0; i < CN_GRAMMARS_REFUSED; i++) {
        char text[32];
        snprintf(text, sizeof text, "(%u", i);
        const cn_structure form = {CN_STRUCTURE_REGEX, text, NULL, false};
        assert_int_equal(grammar_open(g, &form, &grammar), CN_ERR_ARG);
    }
    assert_int_equal(cn_grammars_open(g, &f, &grammar), CN_OK); /* the oldest is forgotten */
    assert_null(grammar);
    cn_form_free(&f);
    cn_grammars_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_in_pieces_is_the_same),
        cmocka_unit_test(a_cost_depends_on_the_text_alone),
        cmocka_unit_test(different_items_cost_little),
        cmocka_unit_test(a_walk_may_be_interrupted),
        cmocka_unit_test(first_masks_are_made_with_the_grammar),
        cmocka_unit_test(networks_leave_room_for_others),
        cmocka_unit_test(refusals_are_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
