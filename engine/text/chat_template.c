/* chat_template.c - messages to a prompt. See chat_template.h. */
#include "engine/text/chat_template.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/json.h"
#include "engine/text/chat_recognize.h"
#include "engine/utf8.h"

struct cn_chat_template {
    cn_chat_traits traits;
    cn_buf bos; /* empty: the checkpoint has none */
    cn_buf why; /* the reason for an unknown layout */
};

/* A piece of a message; not terminated. */
typedef struct span {
    const char *at;
    size_t n;
} span;

static span span_of(const char *s) { return (span){s, strlen(s)}; }

static cn_status add(cn_buf *out, const char *s) { return cn_buf_add(out, s, strlen(s)); }

static cn_status add_span(cn_buf *out, span s) { return cn_buf_add(out, s.at, s.n); }

/* ---- Python's string methods that templates use ---- */

static span strip_newlines(span s, bool left, bool right)
{
    while (left && s.n && s.at[0] == '\n') s.at++, s.n--;
    while (right && s.n && s.at[s.n - 1] == '\n') s.n--;
    return s;
}

/* The text before the first `mark`; all of it if there is none. */
static span before_first(span s, const char *mark)
{
    const char *found = memmem(s.at, s.n, mark, strlen(mark));
    return found ? (span){s.at, (size_t)(found - s.at)} : s;
}

/* The text after the last `mark`; all of it if there is none. */
static span after_last(span s, const char *mark)
{
    size_t len = strlen(mark);
    for (const char *found; (found = memmem(s.at, s.n, mark, len));) {
        s.n -= (size_t)(found - s.at) + len;
        s.at = found + len;
    }
    return s;
}

/* str.isspace() of one character. */
static bool is_python_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* str.strip(), which is Jinja's trim. */
static span trim(span s)
{
    uint32_t cp;
    size_t len;
    while (s.n && cn_utf8_read(s.at, s.n, &cp, &len) == CN_UTF8_CHAR && is_python_space(cp)) {
        s.at += len;
        s.n -= len;
    }
    while (s.n) {
        size_t last = s.n - 1;
        while (last > 0 && ((unsigned char)s.at[last] & 0xC0) == 0x80) last--;
        bool whole = cn_utf8_read(s.at + last, s.n - last, &cp, &len) == CN_UTF8_CHAR;
        if (!whole || last + len != s.n || !is_python_space(cp)) break;
        s.n = last;
    }
    return s;
}

static bool starts_with(span s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.n >= n && memcmp(s.at, prefix, n) == 0;
}

static bool ends_with(span s, const char *suffix)
{
    size_t n = strlen(suffix);
    return s.n >= n && memcmp(s.at + s.n - n, suffix, n) == 0;
}

static bool is_role(const cn_message *m, const char *role) { return strcmp(m->role, role) == 0; }

/* ---- ChatML ---- */

/* Index of the last user message that is not a tool result; n - 1 if there is none. Reasoning
 * before it is dropped. */
static size_t last_query(const cn_message *messages, size_t n)
{
    for (size_t i = n; i-- > 0;) {
        span content = span_of(messages[i].content);
        if (is_role(&messages[i], "user") &&
            !(starts_with(content, "<tool_response>") && ends_with(content, "</tool_response>")))
            return i;
    }
    return n - 1;
}

/* Appends an answer in Qwen3's format. Its reasoning is `apart`, or if that is NULL the part of the
 * content up to </think>. If the reasoning is kept, it comes first, in a new <think> block. */
static cn_status add_qwen3_answer(span content, const char *apart, bool kept, bool last,
                                  cn_buf *out)
{
    static const char end[] = "</think>";
    span reasoning = apart ? span_of(apart) : (span){content.at, 0};
    if (!apart && memmem(content.at, content.n, end, sizeof end - 1)) {
        reasoning = strip_newlines(before_first(content, end), false, true);
        reasoning = strip_newlines(after_last(reasoning, "<think>"), true, false);
        content = strip_newlines(after_last(content, end), true, false);
    }
    if (kept && (last || reasoning.n)) {
        CN_TRY(add(out, "<think>\n"));
        CN_TRY(add_span(out, strip_newlines(reasoning, true, true)));
        CN_TRY(add(out, "\n</think>\n\n"));
        content = strip_newlines(content, true, false);
    }
    return add_span(out, content);
}

/* Consecutive tool results share one user turn. */
static cn_status add_tool_turn(const cn_message *messages, size_t n, size_t i, cn_buf *out)
{
    if (i == 0 || !is_role(&messages[i - 1], "tool")) CN_TRY(add(out, "<|im_start|>user"));
    CN_TRY(add(out, "\n<tool_response>\n"));
    CN_TRY(add(out, messages[i].content));
    CN_TRY(add(out, "\n</tool_response>"));
    bool ends = i + 1 == n || !is_role(&messages[i + 1], "tool");
    return ends ? add(out, "<|im_end|>\n") : CN_OK;
}

static cn_status render_chatml(const cn_chat_template *t, const cn_message *messages, size_t n,
                               int enable_thinking, cn_buf *out)
{
    const cn_chat_traits *traits = &t->traits;
    size_t query = last_query(messages, n);
    if (traits->default_system.len && !is_role(&messages[0], "system"))
        CN_TRY(cn_buf_addf(out, "<|im_start|>system\n%s<|im_end|>\n", traits->default_system.data));
    for (size_t i = 0; i < n; i++) {
        if (traits->tool_turns && is_role(&messages[i], "tool")) {
            CN_TRY(add_tool_turn(messages, n, i, out));
            continue;
        }
        span content = span_of(messages[i].content);
        bool answer = is_role(&messages[i], "assistant"), last = i + 1 == n;
        CN_TRY(cn_buf_addf(out, "<|im_start|>%s\n", messages[i].role));
        if (answer && traits->history == CN_HISTORY_SINCE_QUERY) {
            const char *apart = traits->reads_reasoning ? messages[i].reasoning : NULL;
            CN_TRY(add_qwen3_answer(content, apart, i > query, last, out));
        } else {
            if (answer && traits->history == CN_HISTORY_LAST && !last)
                content = strip_newlines(after_last(content, "</think>"), true, false);
            CN_TRY(add_span(out, content));
        }
        CN_TRY(add(out, "<|im_end|>\n"));
    }
    CN_TRY(add(out, "<|im_start|>assistant\n"));
    if (traits->opens_thinking) CN_TRY(add(out, "<think>\n"));
    if (traits->thinking_switch && enable_thinking == 0)
        CN_TRY(add(out, "<think>\n\n</think>\n\n"));
    return CN_OK;
}

/* ---- Llama 3 ---- */

static cn_status add_llama3_message(const cn_chat_template *t, const char *role, span content,
                                    cn_buf *out)
{
    CN_TRY(cn_buf_addf(out, "<|start_header_id|>%s<|end_header_id|>\n\n", role));
    CN_TRY(add_span(out, t->traits.trims_content ? trim(content) : content));
    return add(out, "<|eot_id|>");
}

/* Appends the system message of Llama 3.1 and later. It is written even if the chat has none. */
static cn_status add_dated_system(const cn_chat_template *t, const char *system, cn_buf *out)
{
    char today[64];
    const char *date = t->traits.date.data;
    if (t->traits.date_is_today) {
        time_t now = time(NULL);
        struct tm local;
        if (localtime_r(&now, &local) && strftime(today, sizeof today, "%d %b %Y", &local))
            date = today;
    }
    CN_TRY(add(out, "<|start_header_id|>system<|end_header_id|>\n\n"));
    CN_TRY(cn_buf_addf(out, "Cutting Knowledge Date: December 2023\nToday Date: %s\n\n", date));
    CN_TRY(add_span(out, trim(span_of(system))));
    return add(out, "<|eot_id|>");
}

static cn_status render_llama3(const cn_chat_template *t, const cn_message *messages, size_t n,
                               cn_buf *out)
{
    size_t first = 0;
    if (t->traits.has_dates) {
        first = is_role(&messages[0], "system");
        CN_TRY(add_dated_system(t, first ? messages[0].content : "", out));
    }
    for (size_t i = first; i < n; i++)
        CN_TRY(add_llama3_message(t, messages[i].role, span_of(messages[i].content), out));
    return add(out, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

/* ---- DeepSeek-R1 ---- */

static cn_status add_deepseek_systems(const cn_chat_template *t, const cn_message *messages,
                                      size_t n, cn_buf *out)
{
    const char *last = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!is_role(&messages[i], "system")) continue;
        if (t->traits.joins_systems && last) CN_TRY(cn_buf_addf(out, "%s\n\n", last));
        last = messages[i].content;
    }
    return last ? add(out, last) : CN_OK;
}

static cn_status render_deepseek(const cn_chat_template *t, const cn_message *messages, size_t n,
                                 cn_buf *out)
{
    CN_TRY(add_deepseek_systems(t, messages, n, out));
    for (size_t i = 0; i < n; i++) {
        if (is_role(&messages[i], "user")) {
            CN_TRY(cn_buf_addf(out, "<｜User｜>%s", messages[i].content));
        } else if (is_role(&messages[i], "assistant")) {
            CN_TRY(add(out, "<｜Assistant｜>"));
            CN_TRY(add_span(out, after_last(span_of(messages[i].content), "</think>")));
            CN_TRY(add(out, "<｜end▁of▁sentence｜>"));
        }
    }
    return add(out, t->traits.opens_thinking ? "<｜Assistant｜><think>\n" : "<｜Assistant｜>");
}

static cn_status render_bare(const cn_message *messages, size_t n, cn_buf *out)
{
    for (size_t i = 0; i < n; i++)
        CN_TRY(cn_buf_addf(out, "%s%s", i ? "\n" : "", messages[i].content));
    return CN_OK;
}

/* ---- any family ---- */

static bool has_role(const cn_chat_traits *traits, const char *role)
{
    if (traits->any_role || strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0)
        return true;
    return strcmp(role, "system") == 0 || (traits->tool_turns && strcmp(role, "tool") == 0);
}

static cn_status render(const cn_chat_template *t, const cn_message *messages, size_t n,
                        int enable_thinking, cn_buf *out)
{
    if (t->traits.writes_bos) CN_TRY(cn_buf_add(out, t->bos.data, t->bos.len));
    switch (t->traits.layout) {
    case CN_CHAT_BARE: return render_bare(messages, n, out);
    case CN_CHAT_CHATML: return render_chatml(t, messages, n, enable_thinking, out);
    case CN_CHAT_LLAMA3: return render_llama3(t, messages, n, out);
    case CN_CHAT_DEEPSEEK: return render_deepseek(t, messages, n, out);
    case CN_CHAT_UNKNOWN: break;
    }
    return cn_chat_template_check(t);
}

cn_status cn_chat_template_render(const cn_chat_template *t, const cn_message *messages, size_t n,
                                  int enable_thinking, cn_buf *out)
{
    CN_TRY(cn_chat_template_check(t));
    if (n == 0) return cn_fail(CN_ERR_ARG, "a chat needs at least one message");
    for (size_t i = 0; i < n; i++)
        if (!has_role(&t->traits, messages[i].role))
            return cn_fail(CN_ERR_ARG, "message %zu: the chat template %s has no role \"%.40s\"", i,
                           cn_chat_template_name(t), messages[i].role);
    size_t before = out->len;
    cn_status status = render(t, messages, n, enable_thinking, out);
    if (status != CN_OK && out->data) {
        out->len = before;
        out->data[before] = '\0';
    }
    return status;
}

cn_status cn_chat_template_check(const cn_chat_template *t)
{
    if (t->traits.layout != CN_CHAT_UNKNOWN) return CN_OK;
#define LISTED(id, name) ", " name
    return cn_fail(CN_ERR_MODEL,
                   "cannot render the checkpoint's chat template: %s; choose one with "
                   "--chat-template (auto" CN_CHAT_FAMILIES(LISTED) ")",
                   t->why.data);
#undef LISTED
}

bool cn_chat_template_add_special(const cn_chat_template *t)
{
    return t->traits.layout == CN_CHAT_BARE;
}

const char *cn_chat_template_name(const cn_chat_template *t)
{
#define FAMILY_NAME(id, name) [CN_OPT_CHAT_##id] = (name),
    static const char *const names[] = {"unknown", CN_CHAT_FAMILIES(FAMILY_NAME)};
#undef FAMILY_NAME
    return names[cn_chat_traits_family(&t->traits)];
}

/* ---- loading ---- */

/* The traits of a family's newest members. */
static const struct {
    cn_chat_traits traits;
    const char *default_system;
} families[CN_OPT_N_CHAT] = {
    [CN_OPT_CHAT_CHATML] = {.traits = {.layout = CN_CHAT_CHATML, .any_role = true}},
    [CN_OPT_CHAT_QWEN2] = {.traits = {.layout = CN_CHAT_CHATML, .tool_turns = true},
                           .default_system = "You are Qwen, created by Alibaba Cloud. You are a "
                                             "helpful assistant."},
    [CN_OPT_CHAT_QWEN3] = {.traits = {.layout = CN_CHAT_CHATML,
                                      .history = CN_HISTORY_SINCE_QUERY,
                                      .tool_turns = true,
                                      .thinking_switch = true}},
    [CN_OPT_CHAT_LLAMA3] = {.traits = {.layout = CN_CHAT_LLAMA3,
                                       .writes_bos = true,
                                       .any_role = true,
                                       .trims_content = true}},
    [CN_OPT_CHAT_DEEPSEEK_R1] = {.traits = {.layout = CN_CHAT_DEEPSEEK,
                                            .history = CN_HISTORY_DROP,
                                            .writes_bos = true,
                                            .opens_thinking = true}},
    [CN_OPT_CHAT_NONE] = {.traits = {.layout = CN_CHAT_BARE, .any_role = true}},
};

static cn_status set_family(cn_chat_traits *t, cn_opt_chat_template family)
{
    cn_chat_traits_free(t);
    *t = families[family].traits;
    const char *system = families[family].default_system;
    return system ? add(&t->default_system, system) : CN_OK;
}

/* Returns the program in tokenizer_config.json: a string, or the entry named "default" of a
 * list. */
static const json_t *config_program(const json_t *config)
{
    const json_t *program = json_object_get(config, "chat_template");
    for (size_t i = 0; json_is_array(program) && i < json_array_size(program); i++) {
        const json_t *one = json_array_get(program, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0) return json_object_get(one, "template");
    }
    return program;
}

static cn_status read_config(cn_chat_template *t, const char *path, cn_buf *program)
{
    enum { MAX_FILE_BYTES = 1 << 24, MAX_FILE_DEPTH = 32 };
    if (access(path, F_OK) != 0) return CN_OK;
    json_t *config;
    CN_TRY(cn_json_load_file(&config, path, MAX_FILE_BYTES, MAX_FILE_DEPTH));
    const json_t *bos = json_object_get(config, "bos_token");
    if (json_is_object(bos)) bos = json_object_get(bos, "content");
    cn_status status = CN_OK;
    if (json_is_string(bos))
        status = cn_buf_add(&t->bos, json_string_value(bos), json_string_length(bos));
    const json_t *source = config_program(config);
    if (status == CN_OK && json_is_string(source))
        status = cn_buf_add(program, json_string_value(source), json_string_length(source));
    json_decref(config);
    return status;
}

/* Reads a program from its own file. A missing file is not an error. */
static cn_status read_program(const char *path, cn_buf *program)
{
    FILE *in = fopen(path, "rb");
    if (!in) return errno == ENOENT ? CN_OK : cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
    cn_buf_clear(program);
    char chunk[4096];
    cn_status status = CN_OK;
    for (size_t n; status == CN_OK && (n = fread(chunk, 1, sizeof chunk, in)) > 0;)
        status = cn_buf_add(program, chunk, n);
    if (status == CN_OK && ferror(in)) status = cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
    fclose(in);
    return status;
}

/* Reads the checkpoint's BOS and its program, which stays empty if there is none. */
static cn_status read_checkpoint(cn_chat_template *t, const char *model_dir, cn_buf *program)
{
    cn_buf path = {0};
    cn_status status = cn_buf_addf(&path, "%s/tokenizer_config.json", model_dir);
    if (status == CN_OK) status = read_config(t, path.data, program);
    cn_buf_clear(&path);
    if (status == CN_OK) status = cn_buf_addf(&path, "%s/chat_template.jinja", model_dir);
    if (status == CN_OK) status = read_program(path.data, program);
    cn_buf_free(&path);
    return status;
}

static cn_status load_into(cn_chat_template *t, const char *model_dir, cn_opt_chat_template family)
{
    cn_buf program = {0};
    cn_status status = read_checkpoint(t, model_dir, &program);
    if (status == CN_OK && program.len)
        status = cn_chat_recognize(program.data, program.len, &t->traits, &t->why);
    else if (status == CN_OK)
        status = cn_buf_addf(&t->why, "the checkpoint has none");
    cn_buf_free(&program);
    CN_TRY(status);
    const bool own = family == CN_OPT_CHAT_AUTO || family == cn_chat_traits_family(&t->traits);
    return own ? CN_OK : set_family(&t->traits, family);
}

cn_status cn_chat_template_load(cn_chat_template **out, const char *model_dir,
                                cn_opt_chat_template family)
{
    *out = NULL;
    cn_chat_template *t = cn_calloc(1, sizeof *t);
    if (!t) return cn_fail(CN_ERR_MEMORY, "out of memory for the chat template");
    cn_status status = load_into(t, model_dir, family);
    if (status != CN_OK) {
        cn_chat_template_free(t);
        return status;
    }
    *out = t;
    return CN_OK;
}

void cn_chat_template_free(cn_chat_template *t)
{
    if (!t) return;
    cn_chat_traits_free(&t->traits);
    cn_buf_free(&t->bos);
    cn_buf_free(&t->why);
    cn_free(t);
}
