/* chat_golden.c - see chat_golden.h. */
#include "tests/lib/chat_golden.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/base.h"

json_t *chat_golden_load(void)
{
    static const char path[] = "tests/golden/chat_template/cases.json";
    json_error_t error;
    json_t *golden = json_load_file(path, 0, &error);
    if (golden) return golden;
    fprintf(stderr, "%s: %s\n", path, error.text);
    abort();
}

void chat_golden_put_tokens(const json_t *golden, const scratch_dir *dir)
{
    char *text = json_dumps(json_object_get(golden, "tokens"), 0);
    scratch_dir_put(dir, "tokenizer_config.json", text, strlen(text));
    free(text);
}

char *chat_golden_dates(const char *text)
{
    cn_buf out = {0};
    time_t now = time(NULL);
    CN_ASSERT(cn_buf_add(&out, "", 0) == CN_OK);
    for (const char *open; (open = strstr(text, "<<%"));) {
        char format[64], date[128];
        const char *close = strstr(open, ">>");
        CN_ASSERT(close && (size_t)(close - open) < sizeof format);
        snprintf(format, sizeof format, "%.*s", (int)(close - open - 2), open + 2);
        strftime(date, sizeof date, format, localtime(&now));
        CN_ASSERT(cn_buf_addf(&out, "%.*s%s", (int)(open - text), text, date) == CN_OK);
        text = close + 2;
    }
    CN_ASSERT(cn_buf_add(&out, text, strlen(text)) == CN_OK);
    return out.data;
}
