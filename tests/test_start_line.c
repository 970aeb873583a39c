/* test_start_line.c - the line that commands print at start: device and reason, memory, policy,
 * concurrency. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/options/options.h"
#include "engine/start/start_line.h"

static void the_reason_for_the_cpu_is_named(void **state)
{
    (void)state;
    static const struct {
        cn_cpu_reason reason;
        const char *why;
        bool gpu_unused;
    } cases[] = {
        {{.missing = "build/cinch-cuda.so", .error = "e"}, "cpu: no GPU found", false},
        {{.has_gpu = true, .missing = "build/cinch-cuda.so"},
         "cpu: a GPU is here, but build/cinch-cuda.so is not: make cuda", true},
        {{.has_gpu = true, .missing = "/usr/lib/cinch/cinch-cuda.so", .installed = true},
         "cpu: a GPU is here, but /usr/lib/cinch/cinch-cuda.so is not: make cuda in the source "
         "tree builds it",
         true},
        {{.has_gpu = true, .error = "the driver is too old"},
         "cpu: a GPU is here, but not usable: the driver is too old", true},
        {{.has_gpu = true, .float32 = true}, "cpu: --dtype float32 does not run on a GPU", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_device_choice choice = {0};
        cn_device_explain_cpu(&choice, &cases[i].reason);
        assert_string_equal(choice.why, cases[i].why);
        assert_int_equal(choice.gpu_unused, cases[i].gpu_unused);
    }
}

static cn_quant quant;

static void format(char *text, size_t size, const cn_config *c, const cn_memory_plan *plan)
{
    const cn_model_config m = {.quant = quant,
                               .architecture = "LlamaForCausalLM", .hidden = 4096,
                               .intermediate = 14336, .n_layers = 32, .n_heads = 32,
                               .n_kv_heads = 8, .head_dim = 128, .vocab = 128256,
                               .max_position = 8192};
    const cn_backend be = {.act_dtype = CN_BF16};
    const cn_device_choice choice = {.why = "cuda:0: --device auto"};
    const cn_start_facts facts = {"/models/llama/", &m, &be, &choice, c, plan};
    cn_start_line_format(text, size, &facts);
}

static void the_line_has_every_figure(void **state)
{
    (void)state;
    char text[1024];
    cn_config *c = cn_config_create();
    cn_memory_plan plan = {.block_tokens = 256, .kv_bytes = 3ULL << 30, .n_blocks = 100,
                           .concurrency_full = 3, .concurrency_capped = 11,
                           .max_request_tokens = 25600};
    format(text, sizeof text, c, NULL);
    assert_string_equal(text, "llama (LlamaForCausalLM, 8.0B parameters) on cuda:0: --device auto; "
                              "bfloat16");
    format(text, sizeof text, c, &plan);
    assert_non_null(strstr(text, "; bfloat16; KV 3.0 GiB, 25600 tokens; policy full; 3 requests of "
                                 "8192 tokens at once"));
    quant = (cn_quant){.fp8 = true, .x = CN_X_ROWS};
    format(text, sizeof text, c, NULL);
    assert_non_null(strstr(text, "; bfloat16, weights of fp8, inputs rounded to it"));
    quant.x = CN_X_PLAIN;
    format(text, sizeof text, c, NULL);
    assert_non_null(strstr(text, "; bfloat16, weights of fp8"));
    assert_null(strstr(text, "rounded"));
    quant = (cn_quant){0};
    cn_config_set(c, "kv-policy", "zip");
    cn_config_set(c, "kv-budget", "2000");
    cn_config_set(c, "kv-selectors", "ds");
    plan.n_max_blocks = 9;
    format(text, sizeof text, c, &plan);
    assert_non_null(strstr(text, "; policy zip, requests may choose full, budget 2048 tokens; "
                                 "selector none, requests may choose ds; 11 requests of any length "
                                 "at once"));
    cn_config_set(c, "kv-policy", "full");
    cn_config_set(c, "max-model-len", "4096");
    plan.concurrency_full = 0;
    format(text, sizeof text, c, &plan);
    assert_non_null(strstr(text, "no request longer than 25600 tokens"));
    cn_config_free(c);
}

static void a_uuid_has_the_form_of_nvidia_smi(void **state)
{
    (void)state;
    char text[CN_GPU_UUID_BYTES];
    const uint8_t bytes[16] = {0xca, 0x95, 0xb1, 0x38, 0x48, 0xbf, 0x5f, 0xd5,
                               0x98, 0xa6, 0x0c, 0x7b, 0x3f, 0x3a, 0x6f, 0x2b};
    cn_gpu_uuid_text("GPU", bytes, text);
    assert_string_equal(text, "GPU-ca95b138-48bf-5fd5-98a6-0c7b3f3a6f2b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reason_for_the_cpu_is_named),
        cmocka_unit_test(the_line_has_every_figure),
        cmocka_unit_test(a_uuid_has_the_form_of_nvidia_smi),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
