/* options_mode.c - options that a command accepts, because it takes their whole section, but that
 * have no effect on it or on one of its modes. They are errors: who sets an option expects an
 * effect. See options.h. */

#include "engine/options/option_value.h"

/* The arms choose these. */
#define ARM_OPTIONS "kv-policy kv-policies kv-select kv-selectors kv-home"
#define ARM_REASON "--arms names policies, selectors and homes, as in spade:64:home=host"
/* A run without chats and responses. */
#define CHAT_OPTIONS "chat-template reasoning-parser tool-call-parser"

static const struct {
    const char *name;     /* of the mode, in messages */
    uint32_t sections;    /* whose options all have no effect */
    const char *options;  /* further ones, separated by blanks */
    const char *reason;   /* or what to do */
} modes[CN_N_MODES] = {
    [CN_MODE_COMPARE] = {"cinch compare", 0, ARM_OPTIONS, ARM_REASON},
    [CN_MODE_BENCH_ARMS] = {"bench throughput --arms", 0, ARM_OPTIONS, ARM_REASON},
    [CN_MODE_FORCED] = {"a forced continuation", CN_SECTION_SAMPLING | CN_SECTION_BODIES,
                        "answer-field grade audit " CHAT_OPTIONS,
                        "leave out one of this option and --continue-field"},
    [CN_MODE_BENCH_THROUGHPUT] = {"bench throughput", 0,
                                  "max-tokens ignore-eos served-model-name " CHAT_OPTIONS,
                                  "requests are prompts of tokens with --output-len tokens of "
                                  "output"},
    [CN_MODE_BENCH_SERVE] = {"bench serve", 0,
                             "max-tokens load-format dtype quantization fp8-activations "
                             "kv-cache-dtype max-model-len "
                             "served-model-name "
                             "generation-config kv-policies kv-selectors select-dense-layers "
                             "kv-homes home-space host-space cache-device packs "
                             "hybrid-scheduling sync-compression " CHAT_OPTIONS,
                             "the server has the model and its options, and --output-len sets the "
                             "output"},
    [CN_MODE_PLAN] = {"cinch plan", 0,
                      "served-model-name generation-config scheduling-policy max-queue "
                      "max-n batch-floor share-prefix-cache " CHAT_OPTIONS,
                      "only the tokenizer, and what changes memory or the time of a step, count"},
    [CN_MODE_TOKENIZE_TEXT] = {"cinch tokenize", 0, "chat-template", "it needs --chat"},
};

bool cn_option_is_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = words; *p; p += strspn(p, " ")) {
        const size_t len = strcspn(p, " ");
        if (len == n && memcmp(p, word, n) == 0) return true;
        p += len;
    }
    return false;
}

cn_status cn_config_check_mode(const cn_config *c, cn_config_mode mode)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++)
        if (c->given[i] && (o[i].section & modes[mode].sections ||
                            cn_option_is_word(modes[mode].options, o[i].name)))
            return cn_fail(CN_ERR_ARG, "--%s has no effect on %s: %s", o[i].name, modes[mode].name,
                           modes[mode].reason);
    return CN_OK;
}
