/* compare_task.c - see compare_task.h. */
#include "engine/compare/compare_task.h"

static cn_status read_each(cn_line_reader *reader, uint32_t limit, const char *what,
                           cn_status (*read)(void *task, const cn_line *line), void *task)
{
    for (uint32_t n = 0; limit == 0 || n < limit;) {
        cn_line line;
        cn_line_state state;
        CN_TRY(cn_line_reader_next(reader, -1, &line, &state));
        if (state == CN_LINE_END)
            return n ? CN_OK : cn_fail(CN_ERR_ARG, "the file has no %s", what);
        if (state != CN_LINE_READY) continue;
        cn_status status = read(task, &line);
        if (status != CN_OK)
            return cn_fail_within(status, "line %llu", (unsigned long long)line.number);
        n++;
    }
    return CN_OK;
}

cn_status cn_compare_read_lines(char **name, const char *path, uint32_t limit, const char *what,
                                cn_status (*read)(void *task, const cn_line *line), void *task)
{
    const char *slash = strrchr(path, '/');
    const char *file = slash ? slash + 1 : path, *dot = strrchr(file, '.');
    cn_line_reader *reader;
    *name = cn_strndup(file, dot && dot > file ? (size_t)(dot - file) : strlen(file));
    if (!*name) return cn_fail(CN_ERR_MEMORY, "out of memory for a task");
    CN_TRY(cn_line_reader_open(&reader, path, CN_BATCH_MAX_LINE_BYTES));
    cn_status status = read_each(reader, limit, what, read, task);
    cn_line_reader_close(reader);
    return status == CN_OK ? CN_OK : cn_fail_within(status, "%s", path);
}

typedef struct loading_task {
    cn_compare_task *task;
    const cn_config *config;
    cn_api_defaults defaults;
} loading_task;

static cn_status read_task_line(void *loading, const cn_line *line)
{
    const loading_task *l = loading;
    const cn_config *c = l->config;
    cn_compare_task *t = l->task;
    const cn_batch_format format = {c->prompt_field, c->id_field, c->answer_field};
    CN_TRY(CN_ROOM(&t->items, t->n, "the lines"));
    cn_batch_item *item = &t->items[t->n++];
    *item = (cn_batch_item){0};
    CN_TRY(cn_batch_item_identify(item, line, &format));
    CN_TRY(cn_batch_item_read(item, &format, &l->defaults));
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

cn_status cn_compare_task_load(cn_compare_task *out, const cn_engine *e, const char *path)
{
    const cn_config *c = cn_engine_config(e);
    cn_api_unknown unknown;
    *out = (cn_compare_task){.path = path};
    loading_task l = {out, c, {.tool_parser = c->tool_call_parser,
                               .cap_max_tokens = c->cap_max_tokens,
                               .json_whitespace = c->json_whitespace,
                               .unknown = &unknown}};
    cn_engine_default_sampling(e, &l.defaults.sampling);
    cn_engine_default_kv(e, &l.defaults.kv);
    cn_api_unknown_init(&unknown, c->unknown_fields == CN_OPT_UNKNOWN_REFUSE);
    const cn_status status =
        cn_compare_read_lines(&out->name, path, c->limit, "requests", read_task_line, &l);
    cn_api_unknown_destroy(&unknown);
    return status;
}

void cn_compare_task_free(cn_compare_task *t)
{
    for (uint32_t i = 0; i < t->n; i++) cn_batch_item_free(&t->items[i]);
    cn_free(t->items);
    cn_free(t->name);
    *t = (cn_compare_task){0};
}
