/* cmd_calibrate.c - `cinch calibrate`: runs the model over text files and writes the channels that
 * labels are made of. */
#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/checkpoint/select_file.h"
#include "engine/cmd/command.h"
#include "engine/select/calibrate.h"
#include "engine/text/tokenizer.h"

enum { MAX_TEXT_BYTES = 64 << 20, FEW_TOKENS = 1024 };

typedef struct job {
    const cn_config *c;
    uint32_t len; /* tokens of a window */
    cn_tokenizer *tokenizer;
    cn_calibrator *calibrator;
} job;

static cn_status add_calibrate_tokens(job *j, const char *path, const cn_tokens *ids)
{
    const uint32_t vocab = cn_calibrator_config(j->calibrator)->vocab;
    const size_t most = j->len;
    for (size_t i = 0; i < ids->len; i++)
        if (ids->ids[i] >= vocab)
            return cn_fail(CN_ERR_MODEL, "%s: token %u: expected ids below vocab_size %u", path,
                           ids->ids[i], vocab);
    for (size_t at = 0; at < ids->len; at += most) {
        const size_t left = ids->len - at;
        const uint32_t n = (uint32_t)(left < most ? left : most);
        CN_TRY(cn_calibrator_add(j->calibrator, ids->ids + at, n));
    }
    cn_log(CN_LOG_INFO, "%s: %zu tokens", path, ids->len);
    return CN_OK;
}

static cn_status add_calibrate_file(job *j, const char *path)
{
    cn_buf text = {0};
    cn_tokens ids = {0};
    cn_status status = cn_json_read_file(&text, path, MAX_TEXT_BYTES);
    if (status == CN_OK) {
        status = cn_utf8_check(text.data, text.len);
        if (status != CN_OK) status = cn_fail_within(status, "--text %s", path);
    }
    if (status == CN_OK && text.len)
        status = cn_tokenizer_encode(j->tokenizer, text.data, text.len, true, &ids);
    if (status == CN_OK) status = add_calibrate_tokens(j, path, &ids);
    cn_tokens_free(&ids);
    cn_buf_free(&text);
    return status;
}

static cn_status write_calibrate_channels(const job *j)
{
    const cn_model_config *m = cn_calibrator_config(j->calibrator);
    cn_buf path = {0};
    uint16_t *channels = cn_calloc(cn_select_channels_n(m), sizeof *channels);
    float *offsets = cn_calloc(cn_select_channels_n(m), sizeof *offsets);
    cn_status status =
        channels && offsets ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for the channels");
    if (status == CN_OK) cn_calibrator_result(j->calibrator, channels, offsets);
    if (status == CN_OK)
        status = j->c->calibrate_output ? cn_buf_addf(&path, "%s", j->c->calibrate_output)
                                        : cn_buf_addf(&path, "%s/" CN_SELECT_FILE, j->c->model);
    if (status == CN_OK)
        status = cn_select_channels_write(path.data, m, channels, offsets,
                                          cn_calibrator_tokens(j->calibrator));
    if (status == CN_OK)
        cn_log(CN_LOG_INFO, "%s: %u of %u channels for each of %u kv heads in %u layers",
               path.data, cn_select_channels_each(m), m->head_dim, m->n_kv_heads, m->n_layers);
    cn_buf_free(&path);
    cn_free(channels);
    cn_free(offsets);
    return status;
}

/* The default of --calibrate-len is lowered to the context of the model. */
static cn_status choose_len(job *j)
{
    cn_model_config m;
    CN_TRY(cn_model_config_load(&m, j->c->model));
    j->len = j->c->calibrate_len;
    if (!cn_config_is_given(j->c, &j->c->calibrate_len))
        j->len = cn_min_u32(j->len, m.max_position);
    return CN_OK;
}

static cn_status run_calibrate(job *j, char **more, int n_more)
{
    const cn_config *c = j->c;
    CN_TRY(choose_len(j));
    CN_TRY(cn_tokenizer_load(&j->tokenizer, c->tokenizer ? c->tokenizer : c->model));
    CN_TRY(cn_calibrator_create(&j->calibrator, c->model, j->len));
    CN_TRY(add_calibrate_file(j, c->calibrate_text));
    for (int i = 0; i < n_more; i++) CN_TRY(add_calibrate_file(j, more[i]));
    if (cn_calibrator_tokens(j->calibrator) == 0)
        return cn_fail(CN_ERR_ARG, "--text %s: expected text, got an empty file",
                       c->calibrate_text);
    if (cn_calibrator_tokens(j->calibrator) < FEW_TOKENS)
        cn_log(CN_LOG_WARN, "--text %s: %llu tokens are few: the channels may not suit other text",
               c->calibrate_text, (unsigned long long)cn_calibrator_tokens(j->calibrator));
    return write_calibrate_channels(j);
}

int cn_cmd_calibrate(int argc, char **argv)
{
    int first, exit_code;
    cn_config *c = cn_command_begin(argc, argv, &first, &exit_code);
    if (!c) return exit_code;
    job j = {.c = c};
    cn_status status = run_calibrate(&j, argv + first, argc - first);
    exit_code = cn_command_end("calibrate", status);
    cn_calibrator_free(j.calibrator);
    cn_tokenizer_free(j.tokenizer);
    cn_config_free(c);
    return exit_code;
}
