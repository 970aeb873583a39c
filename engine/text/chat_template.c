/* chat_template.c - finds the template and its variables. See chat_template.h. */
#include "engine/text/chat_template.h"

#include <errno.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "engine/options/options.h"
#include "engine/text/chat_family.h"
#include "engine/text/jinja/jinja.h"
#include "engine/text/jinja/jinja_pystring.h"

enum { MAX_CONFIG_BYTES = 1 << 24, MAX_CONFIG_DEPTH = 32 };

/* The members of tokenizer_config.json that transformers passes to a template. */
static const char *const special_tokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                             "pad_token", "cls_token", "mask_token"};
enum { N_SPECIAL_TOKENS = sizeof special_tokens / sizeof *special_tokens };

struct cn_chat_template {
    cn_jinja *program;               /* of the template without tools; NULL: `why` has the reason */
    cn_jinja *tools;                 /* of the template named tool_use; NULL: the same */
    char *special[N_SPECIAL_TOKENS]; /* NULL: the checkpoint has none */
    bool add_special;
    cn_buf why;
};

/* ---- rendering ---- */

static cn_status chat_out_of_memory(void)
{
    return cn_fail(CN_ERR_MEMORY, "out of memory for the variables of the chat template");
}

static bool is_text_part(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type && strcmp(type, "text") == 0 && json_is_string(json_object_get(part, "text"));
}

/* The texts of a content, one per line, as vLLM joins them. NULL: a part is not text. */
static json_t *join_chat_parts(const json_t *parts)
{
    cn_buf text = {0};
    bool ok = cn_buf_add(&text, "", 0) == CN_OK;
    for (size_t i = 0; ok && i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *t = json_object_get(part, "text");
        ok = is_text_part(part) && cn_buf_add(&text, "\n", i > 0) == CN_OK &&
             cn_buf_add(&text, json_string_value(t), json_string_length(t)) == CN_OK;
    }
    json_t *joined = ok ? json_stringn_nocheck(text.data, text.len) : NULL;
    cn_buf_free(&text);
    return joined;
}

/* The messages, with contents of several parts joined. A new reference. */
static json_t *plain_messages(json_t *messages)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        const json_t *content = json_object_get(message, "content");
        json_t *joined = json_is_array(content) ? join_chat_parts(content) : NULL;
        json_t *copy = joined ? json_copy(message) : json_incref(message);
        if (joined) json_object_set_new(copy, "content", joined);
        json_array_append_new(out, copy);
    }
    return out;
}

static cn_status set_default(json_t *all, const char *key, json_t *value)
{
    if (!value) return chat_out_of_memory();
    if (json_object_get(all, key)) {
        json_decref(value);
        return CN_OK;
    }
    return json_object_set_new(all, key, value) == 0 ? CN_OK : chat_out_of_memory();
}

static cn_status add_variables(const cn_chat_template *t, const cn_jinja *program, json_t *all)
{
    json_t *messages = json_object_get(all, "messages");
    if (json_array_size(messages) == 0)
        return cn_fail(CN_ERR_ARG, "a chat needs at least one message");
    if (!cn_jinja_loops_over(program, "content") &&
        json_object_set_new(all, "messages", plain_messages(messages)) != 0)
        return chat_out_of_memory();
    CN_TRY(set_default(all, "tools", json_null()));
    CN_TRY(set_default(all, "documents", json_null()));
    CN_TRY(set_default(all, "add_generation_prompt", json_true()));
    for (size_t i = 0; i < N_SPECIAL_TOKENS; i++)
        if (t->special[i])
            CN_TRY(set_default(all, special_tokens[i], json_string_nocheck(t->special[i])));
    return CN_OK;
}

/* The text of the last message: its content, or the last text part of it. */
static const json_t *final_text(const json_t *messages)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(last, "content");
    for (size_t i = json_array_size(content); i-- > 0;) {
        const json_t *text = json_object_get(json_array_get(content, i), "text");
        if (text) return text;
    }
    return content;
}

/* Cuts the prompt after the text of the last message. White space around it may be missing. */
static cn_status cut_after_final(const json_t *messages, cn_buf *out, size_t start)
{
    const json_t *final = final_text(messages);
    if (!json_is_string(final))
        return cn_fail_param("continue_final_message",
                             "continue_final_message: the last message has no text");
    cn_jtext text = {json_string_value(final), json_string_length(final)};
    cn_jtext whole = {out->data + start, out->len - start};
    cn_jtext left = cn_pystrip(text, (cn_jtext){0}, CN_PY_LEFT);
    cn_jtext core = cn_pystrip(left, (cn_jtext){0}, CN_PY_RIGHT);
    size_t at = cn_pyrfind(whole, core);
    if (at == SIZE_MAX)
        return cn_fail_param("continue_final_message",
                             "continue_final_message: the chat template does not write the last "
                             "message as it is");
    bool spaced = cn_pystarts((cn_jtext){whole.at + at, whole.n - at}, left);
    out->len = start + at + (spaced ? left.n : core.n);
    out->data[out->len] = '\0';
    return CN_OK;
}

static void cut_chat(cn_buf *out, size_t len)
{
    out->len = len;
    if (out->data) out->data[len] = '\0';
}

/* Templates expect one form of what clients send, and other forms are errors in them: None where
 * contents are added to text, objects where arguments are. */
enum { TEXT_ARGUMENTS = 1, TEXT_CONTENTS = 2, ALL_CHANGES = 3 };

static cn_status change_arguments(json_t *function)
{
    static const char source[] = "{{ arguments | tojson }}";
    cn_jinja *program;
    cn_buf text = {0};
    bool exceeded;
    CN_TRY(cn_jinja_parse(&program, source, strlen(source)));
    cn_status status = cn_jinja_render(program, function, &text, &exceeded);
    cn_jinja_free(program);
    if (status == CN_OK && json_object_set_new(function, "arguments",
                                               json_stringn_nocheck(text.data, text.len)) != 0)
        status = chat_out_of_memory();
    cn_buf_free(&text);
    return status;
}

/* Changes messages in place; *done: the changes that had an effect. */
static cn_status change(json_t *messages, unsigned changes, unsigned *done)
{
    json_t *message, *call;
    size_t i, k;
    *done = 0;
    json_array_foreach(messages, i, message)
    {
        if (changes & TEXT_CONTENTS && json_is_null(json_object_get(message, "content"))) {
            *done |= TEXT_CONTENTS;
            if (json_object_set_new(message, "content", json_string("")) != 0)
                return chat_out_of_memory();
        }
        json_array_foreach(json_object_get(message, "tool_calls"), k, call)
        {
            json_t *function = json_object_get(call, "function");
            const json_t *arguments = json_object_get(function, "arguments");
            if (!(changes & TEXT_ARGUMENTS) || !arguments || json_is_string(arguments)) continue;
            *done |= TEXT_ARGUMENTS;
            CN_TRY(change_arguments(function));
        }
    }
    return CN_OK;
}

/* Renders again with these changes. *same: there is nothing to change. */
static cn_status run_changed(const cn_jinja *program, const json_t *all, unsigned changes,
                             cn_buf *out, bool *exceeded, bool *same)
{
    unsigned done = 0;
    json_t *changed = json_copy((json_t *)(uintptr_t)all);
    json_t *messages = json_deep_copy(json_object_get(all, "messages"));
    const bool ok = json_object_set_new(changed, "messages", messages) == 0;
    cn_status status = ok ? change(messages, changes, &done) : chat_out_of_memory();
    *same = status == CN_OK && done != changes;
    if (status == CN_OK && !*same) status = cn_jinja_render(program, changed, out, exceeded);
    json_decref(changed);
    return status;
}

/* The error is that of the first rendering. */
static cn_status run_template(const cn_jinja *program, const json_t *all, cn_buf *out)
{
    char why[512];
    bool exceeded = false;
    cn_status status = cn_jinja_render(program, all, out, &exceeded);
    if (status != CN_ERR_ARG) return status;
    snprintf(why, sizeof why, "%s", cn_last_error());
    for (unsigned changes = 1; changes <= ALL_CHANGES && !exceeded; changes++) {
        bool same;
        status = run_changed(program, all, changes, out, &exceeded, &same);
        if (!same && status != CN_ERR_ARG) return status;
    }
    return cn_fail(CN_ERR_ARG, "%s", why);
}

cn_status cn_chat_template_render(const cn_chat_template *t, const json_t *variables, cn_buf *out)
{
    CN_TRY(cn_chat_template_check(t));
    const json_t *tools = json_object_get(variables, "tools");
    const cn_jinja *program = t->tools && json_array_size(tools) ? t->tools : t->program;
    const size_t start = out->len;
    json_t *all = json_copy((json_t *)(uintptr_t)variables); /* jansson takes no const */
    if (!all) return chat_out_of_memory();
    const bool continues = json_is_true(json_object_get(all, "continue_final_message"));
    json_object_del(all, "continue_final_message");
    cn_status status = add_variables(t, program, all);
    if (status == CN_OK) status = run_template(program, all, out);
    if (status == CN_OK && continues)
        status = cut_after_final(json_object_get(all, "messages"), out, start);
    if (status != CN_OK) cut_chat(out, start);
    json_decref(all);
    return status;
}

cn_status cn_chat_template_check(const cn_chat_template *t)
{
    if (t->program) return CN_OK;
    return cn_fail(
        CN_ERR_MODEL,
        "cannot render chats: %s; choose a template with --chat-template: a file, or one "
        "of " CN_CHAT_FAMILY_NAMES,
        t->why.data);
}

bool cn_chat_template_reads_tools(const cn_chat_template *t)
{
    const cn_jinja *program = t->tools ? t->tools : t->program;
    return program && cn_jinja_has_variable(program, "tools");
}

bool cn_chat_template_add_special(const cn_chat_template *t) { return t->add_special; }

/* ---- loading ---- */

/* Parses a program of the checkpoint. A syntax error is kept for cn_chat_template_check. */
static cn_status parse_chat(cn_chat_template *t, const char *source, size_t n, cn_jinja **out)
{
    cn_jinja_free(*out);
    cn_status status = cn_jinja_parse(out, source, n);
    if (status != CN_ERR_MODEL) return status;
    cn_buf_clear(&t->why);
    return cn_buf_addf(&t->why, "the checkpoint's chat template, %s", cn_last_error());
}

static cn_status parse_json(cn_chat_template *t, const json_t *source, cn_jinja **out)
{
    if (!json_is_string(source)) return CN_OK;
    return parse_chat(t, json_string_value(source), json_string_length(source), out);
}

/* A string, or a list of named templates: "default", and "tool_use" for chats with tools. */
static cn_status read_programs(cn_chat_template *t, const json_t *programs)
{
    if (!json_is_array(programs)) return parse_json(t, programs, &t->program);
    for (size_t i = 0; i < json_array_size(programs); i++) {
        const json_t *one = json_array_get(programs, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0)
            CN_TRY(parse_json(t, json_object_get(one, "template"), &t->program));
        if (name && strcmp(name, "tool_use") == 0)
            CN_TRY(parse_json(t, json_object_get(one, "template"), &t->tools));
    }
    return CN_OK;
}

static cn_status read_special(cn_chat_template *t, const json_t *config)
{
    for (size_t i = 0; i < N_SPECIAL_TOKENS; i++) {
        const json_t *token = json_object_get(config, special_tokens[i]);
        if (json_is_object(token)) token = json_object_get(token, "content");
        if (!json_is_string(token)) continue;
        t->special[i] = cn_strdup(json_string_value(token));
        if (!t->special[i])
            return cn_fail(CN_ERR_MEMORY, "out of memory for %s", special_tokens[i]);
    }
    return CN_OK;
}

static cn_status read_template_config(cn_chat_template *t, const char *path, bool programs)
{
    if (access(path, F_OK) != 0) return CN_OK;
    json_t *config;
    CN_TRY(cn_json_load_file(&config, path, MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH));
    cn_status status = read_special(t, config);
    if (status == CN_OK && programs)
        status = read_programs(t, json_object_get(config, "chat_template"));
    json_decref(config);
    return status;
}

/* Any file that can be read, also a pipe. */
static cn_status read_chat_all(FILE *in, const char *path, cn_buf *out)
{
    char chunk[4096];
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, in)) > 0;) {
        CN_TRY(cn_buf_add(out, chunk, n));
        if (out->len > CN_CHAT_TEMPLATE_MAX_BYTES)
            return cn_fail(CN_ERR_MODEL, "%s: more than %d bytes", path,
                           CN_CHAT_TEMPLATE_MAX_BYTES);
    }
    return ferror(in) ? cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno)) : CN_OK;
}

/* A missing file is not an error. */
static cn_status read_template_file(cn_chat_template *t, const char *path)
{
    FILE *in = fopen(path, "rb");
    if (!in) return errno == ENOENT ? CN_OK : cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
    cn_buf source = {0};
    cn_status status = read_chat_all(in, path, &source);
    fclose(in);
    if (status == CN_OK)
        status = parse_chat(t, source.data ? source.data : "", source.len, &t->program);
    cn_jinja_free(t->tools); /* a file replaces all templates of the config */
    t->tools = NULL;
    cn_buf_free(&source);
    return status;
}

/* Reads the special tokens, and unless another template is chosen, those of the checkpoint. */
static cn_status read_checkpoint(cn_chat_template *t, const char *model_dir, bool programs)
{
    cn_buf path = {0};
    cn_status status = cn_buf_addf(&path, "%s/tokenizer_config.json", model_dir);
    if (status == CN_OK) status = read_template_config(t, path.data, programs);
    cn_buf_clear(&path);
    if (status == CN_OK) status = cn_buf_addf(&path, "%s/chat_template.jinja", model_dir);
    if (status == CN_OK && programs) status = read_template_file(t, path.data);
    cn_buf_free(&path);
    return status;
}

/* Copies the most similar name of a family to out[size]; "" if none is similar. */
static void find_nearest(const char *choice, char *out, size_t size)
{
    char name[64];
    uint32_t best = (uint32_t)strlen(choice) / 2 + 1;
    out[0] = '\0';
    for (const char *p = CN_CHAT_FAMILY_NAMES; *p; p += strspn(p, ", ")) {
        const size_t n = strcspn(p, ",");
        snprintf(name, sizeof name, "%.*s", (int)n, p);
        const uint32_t distance = cn_edit_distance(choice, name);
        if (distance < best) {
            best = distance;
            snprintf(out, size, "%s", name);
        }
        p += n;
    }
}

cn_status cn_chat_template_check_choice(const char *choice)
{
    char nearest[64];
    if (cn_chat_template_is_known(choice) || access(choice, F_OK) == 0) return CN_OK;
    find_nearest(choice, nearest, sizeof nearest);
    return cn_fail(CN_ERR_ARG,
                   "--chat-template %s: expected a file, auto, or one of " CN_CHAT_FAMILY_NAMES
                   "%s%s%s",
                   choice, *nearest ? "; did you mean " : "", nearest, *nearest ? "?" : "");
}

/* The file of --chat-template must be usable. */
static cn_status read_chosen_file(cn_chat_template *t, const char *path)
{
    CN_TRY(cn_chat_template_check_choice(path));
    CN_TRY(read_template_file(t, path));
    if (t->program) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--chat-template %s: %s", path, t->why.data);
}

bool cn_chat_template_is_known(const char *choice)
{
    return strcmp(choice, "auto") == 0 || cn_chat_family_find(choice);
}

static cn_status load_into(cn_chat_template *t, const char *model_dir, const char *choice)
{
    const bool own = strcmp(choice, "auto") == 0;
    const cn_chat_family *family = cn_chat_family_find(choice);
    CN_TRY(cn_buf_addf(&t->why, "the checkpoint has no chat template"));
    CN_TRY(read_checkpoint(t, model_dir, own));
    if (own) return CN_OK;
    if (!family) return read_chosen_file(t, choice);
    t->add_special = family->add_special;
    return cn_jinja_parse(&t->program, family->source, strlen(family->source));
}

cn_status cn_chat_template_load(cn_chat_template **out, const char *model_dir, const char *choice)
{
    *out = NULL;
    cn_chat_template *t = cn_calloc(1, sizeof *t);
    if (!t) return cn_fail(CN_ERR_MEMORY, "out of memory for the chat template");
    cn_status status = load_into(t, model_dir, choice);
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
    cn_jinja_free(t->program);
    cn_jinja_free(t->tools);
    for (size_t i = 0; i < N_SPECIAL_TOKENS; i++) cn_free(t->special[i]);
    cn_buf_free(&t->why);
    cn_free(t);
}
