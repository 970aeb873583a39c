/* offline.c - answers several prompts at once: submits all, steps until idle, prints each answer.
 *
 *   offline MODEL_DIR PROMPT...
 *   offline examples/tiny-reasoner "Compute 12 * 34 by hand." "Sort: 5 3 9 1"
 *
 * Build outside the tree: cc offline.c $(pkg-config --cflags --libs cinch) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cinch.h"

typedef struct answer {
    const char *prompt;
    char *text;
    size_t len;
    uint32_t n_tokens;
    bool failed;
} answer;

static void on_event(void *user, const cn_event *ev)
{
    answer *a = user;
    size_t n = ev->text_len;
    char *text = realloc(a->text, a->len + n + 1);
    if (!text) abort();
    memcpy(text + a->len, ev->text, n + 1);
    a->text = text;
    a->len += n;
    a->n_tokens += ev->n_tokens;
    if (ev->finish == CN_FINISH_ERROR) {
        fprintf(stderr, "%s: %s\n", a->prompt, ev->error);
        a->failed = true;
    }
}

static cn_status submit(cn_engine *engine, answer *a)
{
    const cn_message message = {.role = "user", .content = a->prompt};
    cn_request_params p = {.messages = &message, .n_messages = 1, .enable_thinking = -1};
    cn_engine_default_sampling(engine, &p.sampling);
    cn_engine_default_kv(engine, &p.kv);
    p.sampling.temperature = 0;
    p.klass = CN_CLASS_BATCH;
    return cn_engine_submit(engine, &p, on_event, a, NULL);
}

static cn_status answer_all(cn_engine *engine, answer *answers, int n)
{
    for (int i = 0; i < n; i++) {
        cn_status status = submit(engine, &answers[i]);
        if (status != CN_OK) return status;
    }
    for (bool idle = false; !idle;) {
        cn_status status = cn_engine_step(engine, &idle);
        if (status != CN_OK) return status;
    }
    return CN_OK;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL_DIR PROMPT...\n", argv[0]);
        return 1;
    }
    const int n = argc - 2;
    answer *answers = calloc((size_t)n, sizeof *answers);
    cn_config *config = cn_config_create();
    cn_engine *engine = NULL;
    if (!answers || !config) return 1;
    for (int i = 0; i < n; i++) answers[i].prompt = argv[i + 2];

    cn_status status = cn_config_set(config, "model", argv[1]);
    if (status == CN_OK) status = cn_engine_create(&engine, config);
    if (status == CN_OK) status = answer_all(engine, answers, n);
    if (status != CN_OK) fprintf(stderr, "%s\n", cn_last_error());

    bool failed = status != CN_OK;
    for (int i = 0; i < n; i++) {
        if (status == CN_OK) {
            printf("> %s\n", answers[i].prompt);
            fwrite(answers[i].text, 1, answers[i].len, stdout); /* may contain a NUL */
            printf("\n(%u tokens)\n\n", answers[i].n_tokens);
        }
        failed |= answers[i].failed;
        free(answers[i].text);
    }
    free(answers);
    cn_engine_free(engine);
    cn_config_free(config);
    return failed;
}
