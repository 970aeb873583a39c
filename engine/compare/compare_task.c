/* compare_task.c - see compare_task.h. */
#include "engine/compare/compare_task.h"

#include <string.h>

cn_status cn_compare_task_name(char **out, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    *out = cn_strndup(name, dot && dot > name ? (size_t)(dot - name) : strlen(name));
    return *out ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a task");
}

static cn_status read_task_line(cn_compare_task *t, const cn_config *c, const cn_line *line,
                                const cn_api_defaults *defaults)
{
    const cn_batch_format format = {c->prompt_field, c->id_field, c->answer_field};
    CN_TRY(CN_ROOM(&t->items, t->n, "the lines"));
    cn_batch_item *item = &t->items[t->n++];
    *item = (cn_batch_item){0};
    CN_TRY(cn_batch_item_identify(item, line, &format));
    CN_TRY(cn_batch_item_read(item, &format, defaults));
    if (c->answer_field && !item->reference)
        return cn_fail(CN_ERR_ARG, "%s: expected a reference answer, got nothing", c->answer_field);
    if (item->request.n_prompts != 1 || item->request.params.no_output)
        return cn_fail(CN_ERR_ARG, "a comparison takes one prompt per line, and max_tokens "
                       "above 0");
    if (item->request.params.sampling.n != 1)
        return cn_fail(CN_ERR_ARG, "n is %u: a comparison takes one sample per prompt",
                       item->request.params.sampling.n);
    return CN_OK;
}

static cn_status read_lines(cn_compare_task *t, const cn_engine *e, cn_line_reader *reader,
                            cn_api_unknown *unknown)
{
    const cn_config *c = cn_engine_config(e);
    cn_api_defaults defaults = {.tool_parser = c->tool_call_parser,
                                .cap_max_tokens = c->cap_max_tokens,
                                .json_whitespace = c->json_whitespace,
                                .unknown = unknown};
    cn_engine_default_sampling(e, &defaults.sampling);
    cn_engine_default_kv(e, &defaults.kv);
    while (c->limit == 0 || t->n < c->limit) {
        cn_line line;
        cn_line_state state;
        CN_TRY(cn_line_reader_next(reader, -1, &line, &state));
        if (state == CN_LINE_END) break;
        if (state != CN_LINE_READY) continue;
        cn_status status = read_task_line(t, c, &line, &defaults);
        if (status != CN_OK)
            return cn_fail_within(status, "line %llu", (unsigned long long)line.number);
    }
    return t->n ? CN_OK : cn_fail(CN_ERR_ARG, "the file has no requests");
}

cn_status cn_compare_task_load(cn_compare_task *out, const cn_engine *e, const char *path)
{
    *out = (cn_compare_task){.path = path};
    CN_TRY(cn_compare_task_name(&out->name, path));
    cn_line_reader *reader;
    CN_TRY(cn_line_reader_open(&reader, path, CN_BATCH_MAX_LINE_BYTES));
    cn_api_unknown unknown;
    cn_api_unknown_init(&unknown, cn_engine_config(e)->unknown_fields == CN_OPT_UNKNOWN_REFUSE);
    cn_status status = read_lines(out, e, reader, &unknown);
    cn_api_unknown_destroy(&unknown);
    cn_line_reader_close(reader);
    return status == CN_OK ? CN_OK : cn_fail_within(status, "%s", path);
}

void cn_compare_task_free(cn_compare_task *t)
{
    for (uint32_t i = 0; i < t->n; i++) cn_batch_item_free(&t->items[i]);
    cn_free(t->items);
    cn_free(t->name);
    *t = (cn_compare_task){0};
}
