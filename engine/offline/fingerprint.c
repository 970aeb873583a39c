/* fingerprint.c - see fingerprint.h. */
#include "engine/offline/fingerprint.h"

#include "engine/base/json.h"
#include "engine/checkpoint/file_sum.h"
#include "engine/checkpoint/retrieval_file.h"
#include "engine/checkpoint/select_file.h"
#include "engine/text/chat_template.h"

static bool is_channels(const char *name) { return strcmp(name, CN_SELECT_FILE) == 0; }
static bool is_head(const char *name)
{
    return strcmp(name, CN_RETRIEVAL_FILE) == 0 || strcmp(name, CN_RETRIEVAL_CONFIG) == 0;
}

static bool is_read_whole(const char *name)
{
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja",
                                        "model.safetensors.index.json", "hf_quant_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

bool cn_fingerprint_covers(const char *name)
{
    return cn_file_is_weights(name) || is_channels(name) || is_head(name) || is_read_whole(name);
}

static int keep_entry(const struct dirent *e)
{
    return cn_file_is_weights(e->d_name) || is_read_whole(e->d_name);
}

static int keep_channels(const struct dirent *e) { return is_channels(e->d_name); }
static int keep_head(const struct dirent *e) { return is_head(e->d_name); }

cn_status cn_fingerprint(uint64_t *out, const char *model_dir, const char *tokenizer_dir)
{
    *out = 0;
    CN_TRY(cn_file_sum_add(out, model_dir, keep_entry));
    return tokenizer_dir ? cn_file_sum_add(out, tokenizer_dir, keep_entry) : CN_OK;
}

cn_status cn_fingerprint_template(uint64_t *out, const char *chat_template)
{
    cn_buf text = {0};
    *out = 0;
    if (cn_chat_template_is_known(chat_template)) return CN_OK;
    CN_TRY(cn_chat_template_check_choice(chat_template));
    cn_status status = cn_json_read_file(&text, chat_template, CN_CHAT_TEMPLATE_MAX_BYTES);
    if (status == CN_OK) *out = cn_hash64(0, text.data ? text.data : "", text.len);
    cn_buf_free(&text);
    return status;
}

cn_status cn_fingerprint_channels(uint64_t *out, const char *model_dir)
{
    *out = 0;
    return cn_file_sum_add(out, model_dir, keep_channels);
}

cn_status cn_fingerprint_head(uint64_t *out, const char *model_dir)
{
    *out = 0;
    return cn_file_sum_add(out, model_dir, keep_head);
}
