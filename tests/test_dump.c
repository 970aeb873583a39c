/* test_dump.c - dumps of a real pass: which files a spec selects, what they contain, and that the
 * comparison of two directories names the first tensor that differs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/dump_diff.h"
#include "tests/lib/model_rig.h"

static char root[64];

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/cinch-dump-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static const char *under(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

/* Runs two passes of qwen3-bf16 (a prompt of 5, then a decode) and dumps `spec` to `dir`. */
static void run_with_dump(const char *spec, const char *dir)
{
    model_rig *r = model_rig_open(&(model_rig_opts){.dir = "tests/golden/models/qwen3-bf16",
                                                    .n_threads = 1,
                                                    .max_tokens = 8,
                                                    .max_seqs = 1,
                                                    .max_kv_tokens = 64,
                                                    .block_tokens = 16});
    cn_dump *d = NULL;
    assert_int_equal(cn_dump_open(&d, r->be, spec, dir), CN_OK);
    cn_model_set_dump(r->model, d);
    const uint32_t tokens[] = {5, 4, 3, 2, 1, 9};
    model_rig_chunk chunk = {0, 5, tokens};
    model_rig_pass(r, &chunk, 1, 0, true);
    chunk = (model_rig_chunk){0, 1, tokens + 5};
    const float *logits = model_rig_pass(r, &chunk, 1, 1, true);
    if (strcmp(spec, "logits:*:1") == 0) {
        static float file[128 / 4 + 4096];
        FILE *f = fopen(under("one/step-000001.outside.logits.npy"), "rb");
        assert_non_null(f);
        size_t want = 128 + r->cfg.vocab * sizeof(float);
        assert_int_equal(fread(file, 1, sizeof file, f), want);
        fclose(f);
        assert_memory_equal(file, "\x93NUMPY\x01\x00", 8);
        assert_memory_equal(file + 32, logits, want - 128);
    }
    cn_dump_close(d);
    model_rig_close(r);
}

static bool exists(const char *name) { return access(under(name), F_OK) == 0; }

static void a_spec_selects_by_name_layer_and_step(void **state)
{
    (void)state;
    run_with_dump("logits:*:1", under("one"));
    assert_false(exists("one/step-000000.outside.logits.npy"));
    run_with_dump("attn:2:*", under("two"));
    assert_true(exists("two/step-000000.layer-02.attn.npy"));
    assert_true(exists("two/step-000001.layer-02.attn.npy"));
    assert_false(exists("two/step-000000.layer-01.attn.npy"));
    assert_false(exists("two/step-000000.layer-02.o.npy"));
}

static void a_wrong_spec_is_refused_with_the_valid_names(void **state)
{
    (void)state;
    cn_dump *d = NULL;
    static const char *const wrong[] = {"",           "attn",      "attn:1",
                                        "attn:1:2:3", "attn:x:1",  "attn:1:-1",
                                        "attn:1:",    "attn:1:2x", "nose:1:1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(cn_dump_open(&d, NULL, wrong[i], under("never")), CN_ERR_ARG);
        assert_null(d);
    }
    assert_non_null(strstr(cn_last_error(), "silu_mul"));
    assert_false(exists("never"));
    assert_int_equal(cn_dump_open(&d, NULL, "*:*:*", under("no/such/parent")), CN_ERR_IO);
}

static void flip_a_byte(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 0x40, f);
    fclose(f);
}

static bool diff_says(const char *a, const char *b, const char *text)
{
    char *said = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&said, &n);
    bool same = dump_diff(a, b, 0, out);
    fclose(out);
    bool found = strstr(said, text) != NULL;
    if (!found) print_error("%s", said);
    free(said);
    assert_true(found);
    return same;
}

static void the_first_difference_is_named(void **state)
{
    (void)state;
    run_with_dump("*:*:*", under("a"));
    run_with_dump("*:*:*", under("b"));
    assert_true(diff_says(under("a"), under("b"), "step-000001.outside.logits.npy: same"));
    /* A late difference, then an earlier one: row 1 of gate_up, whose rows have 192 columns. */
    flip_a_byte(under("b/step-000001.outside.logits.npy"), 131);
    assert_false(diff_says(under("a"), under("b"), "step-000001.outside.logits.npy: row 0, col"));
    flip_a_byte(under("b/step-000000.layer-01.gate_up.npy"), 128 + 4 * (192 + 7) + 3);
    assert_false(diff_says(under("a"), under("b"), "layer-01.gate_up.npy: row 1, column 7"));
    assert_int_equal(unlink(under("b/step-000000.layer-00.q.npy")), 0);
    assert_false(diff_says(under("a"), under("b"), "layer-00.q.npy: cannot be read in"));
    assert_false(diff_says(under("empty"), under("b"), "no dumped tensors"));
}

static void ignore_event(void *user, const cn_event *ev)
{
    (void)user;
    (void)ev;
}

/* Tests the option in a temporary directory, because dumps go to the working directory. */
static void the_engine_dumps_with_the_option(void **state)
{
    (void)state;
    char here[4096], model[4200];
    assert_non_null(getcwd(here, sizeof here));
    snprintf(model, sizeof model, "%s/examples/tiny-reasoner", here);
    cn_config *c = cn_config_create();
    cn_engine *e = NULL;
    uint64_t request = 0;
    bool idle = false;
    assert_int_equal(cn_config_set(c, "model", model), CN_OK);
    assert_int_equal(cn_config_set(c, "dump", "nose:*:0"), CN_OK);
    assert_int_equal(chdir(root), 0);
    assert_int_equal(cn_engine_create(&e, c), CN_ERR_ARG);
    assert_int_equal(cn_config_set(c, "dump", "down:5:*"), CN_OK);
    assert_int_equal(cn_engine_create(&e, c), CN_OK);
    cn_request_params p = {.text = "one two", .enable_thinking = -1};
    cn_engine_default_sampling(e, &p.sampling);
    cn_engine_default_kv(e, &p.kv);
    p.sampling.max_tokens = 2;
    assert_int_equal(cn_engine_submit(e, &p, ignore_event, NULL, &request), CN_OK);
    while (!idle) assert_int_equal(cn_engine_step(e, &idle), CN_OK);
    cn_engine_free(e);
    cn_config_free(c);
    assert_int_equal(chdir(here), 0);
    assert_true(exists(CN_DUMP_DIR "/step-000000.layer-05.down.npy"));
    assert_true(exists(CN_DUMP_DIR "/step-000001.layer-05.down.npy"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_spec_selects_by_name_layer_and_step),
        cmocka_unit_test(a_wrong_spec_is_refused_with_the_valid_names),
        cmocka_unit_test(the_first_difference_is_named),
        cmocka_unit_test(the_engine_dumps_with_the_option),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
