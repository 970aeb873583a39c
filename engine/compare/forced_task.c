/* forced_task.c - see forced_task.h. */
#include "engine/compare/forced_task.h"

#include "engine/base/json.h"
#include "engine/compare/compare_task.h"

static cn_status read_text(cn_tokens *out, cn_engine *e, const json_t *line, const char *field,
                           bool add_special)
{
    const json_t *text = json_object_get(line, field);
    char shown[96];
    if (!json_is_string(text))
        return cn_fail(CN_ERR_ARG, "%s: expected a string, got %s", field,
                       text ? cn_json_describe(text, shown, sizeof shown) : "nothing");
    return cn_tokenizer_encode(cn_engine_tokenizer(e), json_string_value(text),
                               json_string_length(text), add_special, out);
}

static cn_status read_document(cn_forced_document *d, cn_engine *e, const json_t *line)
{
    const cn_config *c = cn_engine_config(e);
    CN_TRY(read_text(&d->prompt, e, line, c->prompt_field, true));
    CN_TRY(read_text(&d->continuation, e, line, c->continue_field, false));
    if (!d->prompt.len)
        return cn_fail(CN_ERR_ARG, "%s: expected at least 1 token, got 0", c->prompt_field);
    if (d->continuation.len < 2)
        return cn_fail(CN_ERR_ARG, "%s: expected at least 2 tokens, got %zu", c->continue_field,
                       d->continuation.len);
    if (d->prompt.len + d->continuation.len > cn_engine_max_model_len(e))
        return cn_fail(CN_ERR_ARG,
                       "prompt of %zu and continuation of %zu tokens exceed the context length "
                       "of %u",
                       d->prompt.len, d->continuation.len, cn_engine_max_model_len(e));
    return CN_OK;
}

typedef struct loading_forced {
    cn_forced_task *task;
    cn_engine *engine;
} loading_forced;

static cn_status read_forced_line(void *loading, const cn_line *line)
{
    const loading_forced *l = loading;
    const cn_config *c = cn_engine_config(l->engine);
    cn_forced_task *t = l->task;
    const cn_batch_format format = {.prompt_field = c->prompt_field, .id_field = c->id_field};
    CN_TRY(CN_ROOM(&t->documents, t->n, "the documents"));
    cn_forced_document *d = &t->documents[t->n++];
    *d = (cn_forced_document){.line = line->number};
    cn_batch_item item = {0};
    cn_status status = cn_batch_item_identify(&item, line, &format);
    if (status == CN_OK) status = read_document(d, l->engine, item.object);
    d->id = item.custom_id;
    item.custom_id = NULL;
    cn_batch_item_free(&item);
    return status;
}

cn_status cn_forced_task_load(cn_forced_task *out, cn_engine *e, const char *path)
{
    *out = (cn_forced_task){.path = path};
    return cn_compare_read_lines(&out->name, path, cn_engine_config(e)->limit, "documents",
                                 read_forced_line, &(loading_forced){out, e});
}

void cn_forced_task_free(cn_forced_task *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        cn_free(t->documents[i].id);
        cn_tokens_free(&t->documents[i].prompt);
        cn_tokens_free(&t->documents[i].continuation);
    }
    cn_free(t->documents);
    cn_free(t->name);
    *t = (cn_forced_task){0};
}
