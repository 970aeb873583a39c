/* bench_dataset.c - see bench_dataset.h. */
#include "engine/bench/bench_dataset.h"

#include "engine/base/json.h"
#include "engine/base/line_reader.h"
#include "engine/text/prompt.h"

enum { MAX_DEPTH = 16, MAX_LINE_BYTES = 32 << 20 };
/* First stream numbers of prefixes, and of the rest of each prompt. The ranges are disjoint. */
static const uint64_t PREFIX_STREAMS = UINT64_C(1) << 40, OWN_STREAMS = UINT64_C(1) << 41;

typedef struct loader {
    cn_bench_dataset *out;
    const cn_config *c;
    const cn_bench_model *m;
    bool output_len_given;
    uint64_t n_dropped; /* too long for the engine */
} loader;

/* All of a workload is used unless --num-prompts is given. */
static bool is_full(const loader *l)
{
    const bool whole = l->c->workload && !cn_config_is_given(l->c, &l->c->num_prompts);
    return !whole && l->out->n >= l->c->num_prompts;
}

/* Adds a prompt and takes ownership of its tokens. Drops a prompt that does not fit. */
static cn_status add_bench_prompt(loader *l, cn_tokens *tokens, uint32_t output_len)
{
    cn_bench_dataset *d = l->out;
    if (tokens->len == 0 || tokens->len + output_len > l->m->max_model_len) {
        l->n_dropped++;
        cn_tokens_free(tokens);
        return CN_OK;
    }
    CN_TRY(CN_ROOM(&d->prompts, d->n, "the prompts"));
    d->prompts[d->n++] = (cn_bench_prompt){.tokens = *tokens, .output_len = output_len};
    *tokens = (cn_tokens){0};
    return CN_OK;
}

static cn_status encode(loader *l, const char *text, cn_tokens *out)
{
    const cn_request_params p = {.text = text, .enable_thinking = -1};
    const cn_prompt_maker maker = {.tokenizer = l->m->tokenizer, .vocab = l->m->vocab};
    return cn_prompt_tokens(&maker, &p, out);
}

/* ---- random ---- */

/* The n-th number of a seed's sequence, the same on every machine. */
static uint64_t draw(uint64_t seed, uint64_t n)
{
    const uint64_t key[] = {seed, n};
    return cn_hash64(0, key, sizeof key);
}

static uint32_t vary(uint32_t len, float ratio, uint64_t random)
{
    const double low = len * (1.0 - ratio), high = len * (1.0 + ratio);
    const double x = low + (high - low) * ((double)(random >> 11) / 9007199254740992.0);
    return x < 1 ? 1 : (uint32_t)(x + 0.5);
}

/* Appends the first n tokens of a stream. Seed and stream number determine them. */
static cn_status add_random(const loader *l, uint64_t stream, uint32_t n, cn_tokens *out)
{
    const uint32_t vocab = l->m->vocab;
    const uint64_t seed = draw(l->c->seed, stream);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t token = (uint32_t)(draw(seed, i) % vocab);
        CN_TRY(cn_tokens_add(out, &token, 1));
    }
    return CN_OK;
}

static cn_status load_random(loader *l)
{
    const cn_config *c = l->c;
    const uint32_t vocab = l->m->vocab;
    uint64_t at = 0;
    for (uint32_t i = 0; i < c->num_prompts; i++) {
        cn_tokens tokens = {0};
        const uint32_t n = vary(c->input_len, c->random_range_ratio, draw(c->seed, at++));
        const uint32_t out = vary(c->output_len, c->random_range_ratio, draw(c->seed, at++));
        cn_status status = CN_OK;
        for (uint32_t k = 0; k < n && status == CN_OK; k++) {
            const uint32_t token = (uint32_t)(draw(c->seed, at++) % vocab);
            status = cn_tokens_add(&tokens, &token, 1);
        }
        if (status == CN_OK) status = add_bench_prompt(l, &tokens, out);
        cn_tokens_free(&tokens);
        CN_TRY(status);
    }
    return CN_OK;
}

/* ---- lines of JSON ---- */

static cn_status load_lines(loader *l, const char *path,
                            cn_status (*add_line)(loader *l, const cn_json_at *at))
{
    cn_line_reader *reader;
    CN_TRY(cn_line_reader_open(&reader, path, MAX_LINE_BYTES));
    cn_status status = CN_OK;
    while (status == CN_OK && !is_full(l)) {
        cn_line line;
        cn_line_state state;
        status = cn_line_reader_next(reader, -1, &line, &state);
        if (status != CN_OK || state == CN_LINE_END) break;
        if (state != CN_LINE_READY) continue;
        char where[32];
        snprintf(where, sizeof where, "line %llu", (unsigned long long)line.number);
        json_t *object = NULL;
        status = cn_json_parse(&object, line.text, line.n, where, MAX_LINE_BYTES, MAX_DEPTH,
                               CN_ERR_ARG);
        if (status == CN_OK && !json_is_object(object))
            status = cn_fail(CN_ERR_ARG, "%s: expected an object", where);
        const cn_json_at at = {.object = object, .where = where, .error = CN_ERR_ARG};
        if (status == CN_OK) status = add_line(l, &at);
        json_decref(object);
    }
    cn_line_reader_close(reader);
    return status == CN_OK ? CN_OK : cn_fail_within(status, "%s", path);
}

static cn_status add_custom(loader *l, const cn_json_at *at)
{
    const char *prompt = NULL;
    uint32_t output_len = l->c->output_len;
    CN_TRY(cn_json_str(at, "prompt", CN_JSON_REQUIRED, &prompt));
    if (!l->output_len_given)
        CN_TRY(cn_json_u32(at, "output_tokens", CN_JSON_OPTIONAL, 1, INT32_MAX, &output_len));
    cn_tokens tokens = {0};
    cn_status status = encode(l, prompt, &tokens);
    if (status == CN_OK) status = add_bench_prompt(l, &tokens, output_len);
    cn_tokens_free(&tokens);
    return status;
}

/* Adds a prompt of random tokens with the lengths in the line. Lines with the same `prefix` share
 * their first prefix_tokens tokens. */
static cn_status add_lengths(loader *l, const cn_json_at *at)
{
    const uint32_t longest = l->m->max_model_len;
    uint32_t n = 0, output_len = 0, prefix = 0, n_prefix = 0;
    CN_TRY(cn_json_u32(at, "prompt_tokens", CN_JSON_REQUIRED, 1, INT32_MAX, &n));
    CN_TRY(cn_json_u32(at, "output_tokens", CN_JSON_REQUIRED, 1, INT32_MAX, &output_len));
    CN_TRY(cn_json_u32(at, "prefix", CN_JSON_OPTIONAL, 0, INT32_MAX, &prefix));
    CN_TRY(cn_json_u32(at, "prefix_tokens", CN_JSON_OPTIONAL, 0, n, &n_prefix));
    if (n > longest) n = n_prefix = 0; /* no work for a prompt that add_bench_prompt() will drop */
    cn_tokens tokens = {0};
    const uint64_t own = OWN_STREAMS + l->out->n;
    cn_status status = add_random(l, PREFIX_STREAMS + prefix, n_prefix, &tokens);
    if (status == CN_OK) status = add_random(l, own, n - n_prefix, &tokens);
    if (status == CN_OK) status = add_bench_prompt(l, &tokens, output_len);
    cn_tokens_free(&tokens);
    return status;
}

cn_status cn_bench_dataset_load(cn_bench_dataset *out, const cn_config *c, const cn_bench_model *m)
{
    *out = (cn_bench_dataset){0};
    loader l = {.out = out, .c = c, .m = m,
                .output_len_given = cn_config_is_given(c, &c->output_len)};
    cn_status status = CN_OK;
    if (c->workload)
        status = load_lines(&l, c->workload, add_lengths);
    else if (c->dataset_name == CN_OPT_DATASET_RANDOM)
        status = load_random(&l);
    else
        status = load_lines(&l, c->dataset_path, add_custom);
    if (status == CN_OK && l.n_dropped && out->n)
        cn_log(CN_LOG_WARN, "%llu prompts left out: prompt and output exceed %u tokens",
               (unsigned long long)l.n_dropped, m->max_model_len);
    if (status == CN_OK && out->n == 0)
        status = l.n_dropped
                     ? cn_fail(CN_ERR_ARG,
                               "no request fits: prompt and output of each exceed the context of "
                               "%u tokens; lower --input-len or --output-len",
                               m->max_model_len)
                     : cn_fail(CN_ERR_ARG, "%s: the dataset has no prompts",
                               c->workload ? c->workload : c->dataset_path);
    if (status != CN_OK) cn_bench_dataset_free(out);
    return status;
}

void cn_bench_dataset_free(cn_bench_dataset *d)
{
    for (uint32_t i = 0; i < d->n; i++) cn_tokens_free(&d->prompts[i].tokens);
    cn_free(d->prompts);
    *d = (cn_bench_dataset){0};
}
