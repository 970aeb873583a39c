/* test_rope.c - RoPE frequencies and tables compared with transformers (tests/golden/models). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model/rope.h"
#include "tests/lib/golden.h"

static void load(cn_model_config *c, const char *name)
{
    char dir[256];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    if (cn_model_config_load(c, dir) != CN_OK) fail_msg("%s", cn_last_error());
}

/* Frequencies agree to the last bit or two. Cosines differ by the effect of that on an angle. */
static void compare(const char *name)
{
    cn_model_config c;
    load(&c, name);
    golden *g = golden_open(name);
    size_t n_positions, rows, half;
    const uint32_t *positions = golden_u32(g, "rope.positions", &n_positions);
    const float *want_freq = golden_f32(g, "rope.inv_freq", &rows, &half);
    const float *want_cos = golden_f32(g, "rope.cos", &rows, &half);
    const float *want_sin = golden_f32(g, "rope.sin", &rows, &half);
    assert_int_equal(half, c.rotary / 2);
    assert_int_equal(rows, n_positions);

    float freq[128];
    cn_rope_inv_freq(&c, freq);
    for (size_t i = 0; i < half; i++) {
        double error = fabs((double)freq[i] / (double)want_freq[i] - 1);
        if (error > 2.5e-7) fail_msg("%s: inv_freq[%zu] differs by %g", name, i, error);
    }

    const size_t last = positions[n_positions - 1], stride = cn_rope_dim(&c) / 2;
    float *cos_table = malloc((last + 1) * stride * sizeof *cos_table);
    float *sin_table = malloc((last + 1) * stride * sizeof *sin_table);
    assert_non_null(cos_table);
    assert_non_null(sin_table);
    cn_rope_table(&c, 0, (uint32_t)last + 1, cos_table, sin_table);
    for (size_t p = 0; p < n_positions; p++) {
        double angle_error = 3e-7 * positions[p] + 3e-7;
        size_t at = positions[p] * stride;
        double cos_diff = golden_max_diff(cos_table + at, want_cos + p * half, half);
        double sin_diff = golden_max_diff(sin_table + at, want_sin + p * half, half);
        if (cos_diff > angle_error || sin_diff > angle_error)
            fail_msg("%s: position %u: cos differs by %g, sin by %g", name, positions[p], cos_diff,
                     sin_diff);
        for (size_t i = half; i < stride; i++) /* dimensions without a position */
            assert_true(cos_table[at + i] == 1 && sin_table[at + i] == 0);
    }
    free(cos_table);
    free(sin_table);
    golden_close(g);
}

static void test_models(void **state)
{
    (void)state;
    for (size_t i = 0; golden_models[i]; i++) compare(golden_models[i]);
}

static void test_scalings(void **state)
{
    (void)state;
    compare("rope-llama3-d128");
    compare("rope-llama3-d64-x32");
    compare("rope-yarn-d128");
    compare("rope-yarn-d64-mscale");
    compare("rope-yarn-d80-ramp");
}

/* Position 0 rotates nothing. A scaled table must differ from the plain one. */
static void test_properties(void **state)
{
    (void)state;
    cn_model_config c;
    load(&c, "rope-llama3-d128");
    float scaled[128], plain[128], cos0[64], sin0[64];
    cn_rope_inv_freq(&c, scaled);
    cn_rope_table(&c, 0, 1, cos0, sin0);
    c.rope.type = CN_ROPE_DEFAULT;
    cn_rope_inv_freq(&c, plain);
    for (size_t i = 0; i < 64; i++) assert_true(cos0[i] == 1 && sin0[i] == 0);
    assert_true(plain[0] == 1 && scaled[0] == 1);
    assert_true(scaled[63] == plain[63] / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_scalings),
        cmocka_unit_test(test_properties),
    };
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
