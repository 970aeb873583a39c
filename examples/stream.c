/* stream.c - answers one prompt, printing the reasoning and then the answer as they are generated.
 *
 *   stream MODEL_DIR PROMPT
 *   stream examples/tiny-reasoner "Compute 12 * 34 by hand."
 *
 * Build outside the tree: cc stream.c $(pkg-config --cflags --libs cinch) */
#include <stdio.h>

#include "cinch.h"

typedef struct stream {
    bool answering; /* the reasoning has ended */
    bool failed;
} stream;

static void on_event(void *user, const cn_event *ev)
{
    stream *s = user;
    fwrite(ev->reasoning, 1, ev->reasoning_len, stdout);
    if (ev->text_len > 0 && !s->answering) {
        fputs("\n--- answer ---\n", stdout);
        s->answering = true;
    }
    fwrite(ev->text, 1, ev->text_len, stdout);
    fflush(stdout);
    if (ev->finish == CN_FINISH_NONE) return;
    printf("\n(%s", cn_finish_name(ev->finish));
    if (ev->usage)
        printf(", %u prompt and %u output tokens, %u of them reasoning", ev->usage->prompt_tokens,
               ev->usage->completion_tokens, ev->usage->reasoning_tokens);
    printf(")\n");
    s->failed = ev->finish == CN_FINISH_ERROR;
    if (ev->error) fprintf(stderr, "%s\n", ev->error);
}

static cn_status run(cn_engine *engine, const char *prompt, stream *s)
{
    const cn_message message = {.role = "user", .content = prompt};
    cn_request_params p = {.messages = &message, .n_messages = 1, .enable_thinking = -1};
    cn_engine_default_sampling(engine, &p.sampling);
    cn_engine_default_kv(engine, &p.kv);
    p.sampling.temperature = 0;
    cn_status status = cn_engine_submit(engine, &p, on_event, s, NULL);
    for (bool idle = false; status == CN_OK && !idle;) status = cn_engine_step(engine, &idle);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL_DIR PROMPT\n", argv[0]);
        return 1;
    }
    cn_config *config = cn_config_create();
    if (!config) return 1;
    cn_engine *engine = NULL;
    stream s = {0};
    cn_status status = cn_config_set(config, "model", argv[1]);
    if (status == CN_OK) status = cn_config_set(config, "reasoning-parser", "qwen3");
    if (status == CN_OK) status = cn_engine_create(&engine, config);
    if (status == CN_OK) status = run(engine, argv[2], &s);
    if (status != CN_OK) fprintf(stderr, "%s\n", cn_last_error());
    cn_engine_free(engine);
    cn_config_free(config);
    return status != CN_OK || s.failed;
}
