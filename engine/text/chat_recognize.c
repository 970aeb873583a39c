/* chat_recognize.c - which chat template family a Jinja program belongs to. See
 * chat_recognize.h. */
#include "engine/text/chat_recognize.h"

#include <string.h>

#include "engine/text/jinja_lex.h"

/* The vocabulary of a family's programs. Lists end with NULL. */
typedef struct family {
    cn_chat_layout layout;
    const char *mark;            /* a program with this text is compared with the family */
    const char *const *names;    /* identifiers, in addition to common_names */
    const char *const *strings;  /* literals, in addition to common_strings */
    const char *const *required; /* literals that every program of the family has */
} family;

/* Jinja keywords, and identifiers that programs of all families use. */
static const char *const common_names[] = {
    "for",
    "in",
    "if",
    "elif",
    "else",
    "endif",
    "endfor",
    "set",
    "not",
    "and",
    "or",
    "is",
    "defined",
    "none",
    "true",
    "false",
    "namespace",
    "ns",
    "loop",
    "first",
    "last",
    "index0",
    "length",
    "index",
    "role",
    "content",
    "messages",
    "message",
    "tools",
    "tool",
    "tojson",
    "name",
    "arguments",
    "tool_calls",
    "tool_call",
    "function",
    "string",
    "type",
    "bos_token",
    "loop_messages",
    "add_generation_prompt",
    NULL,
};
static const char *const common_strings[] = {
    "role", "content", "system", "user", "assistant", "type", "name", "", "\n", "\n\n", "}", NULL,
};
/* A literal that contains one of these words is only in branches for tool calls. cinch renders no
 * tool calls, so every family accepts such literals. */
static const char *const tool_words[] = {"tool",         "Tool",     "function", "arguments",
                                         "\"parameters", "\"name\"", "ipython",  NULL};

static const char *const chatml_names[] = {
    "multi_step_tool",
    "last_query_index",
    "startswith",
    "endswith",
    "split",
    "lstrip",
    "rstrip",
    "strip",
    "reasoning_content",
    "enable_thinking",
    NULL,
};
static const char *const chatml_strings[] = {
    "<|im_start|>",
    "<|im_end|>",
    "<|im_end|>\n",
    "<|im_start|>user",
    "<|im_start|>user\n",
    "<|im_start|>system",
    "<|im_start|>system\n",
    "<|im_start|>assistant",
    "<|im_start|>assistant\n",
    "<think>",
    "</think>",
    "\n<think>\n",
    "\n</think>\n\n",
    "<think>\n\n</think>\n\n",
    "<|im_start|>assistant\n<think>\n",
    NULL,
};
static const char *const chatml_required[] = {"<|im_start|>", NULL};

static const char *const llama3_names[] = {
    "trim",
    "custom_tools",
    "tools_in_user_message",
    "date_string",
    "strftime_now",
    "builtin_tools",
    "reject",
    "join",
    "t",
    "indent",
    "items",
    "arg_name",
    "arg_val",
    "mapping",
    "iterable",
    "raise_exception",
    "system_message",
    "first_user_message",
    NULL,
};
static const char *const llama3_strings[] = {
    "<|start_header_id|>",
    "<|end_header_id|>\n\n",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|start_header_id|>system<|end_header_id|>\n\n",
    "<|start_header_id|>user<|end_header_id|>\n\n",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "Cutting Knowledge Date: December 2023\n",
    "Today Date: ",
    "%d %b %Y",
    "26 Jul 2024",
    "equalto",
    "code_interpreter",
    ", ",
    "Do not use variables.\n\n",
    "<|python_tag|>",
    ".call(",
    "\", ",
    "=\"",
    "\"",
    ")",
    NULL,
};
static const char *const llama3_required[] = {
    "<|end_header_id|>\n\n",
    "<|eot_id|>",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    NULL,
};

static const char *const deepseek_names[] = {
    "is_first", "is_tool", "is_output_first", "system_prompt", "is_first_sp", "split", NULL,
};
static const char *const deepseek_strings[] = {
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "</think>",
    "<｜Assistant｜><think>\n",
    "```json",
    "```",
    NULL,
};
static const char *const deepseek_required[] = {
    "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "</think>", NULL,
};

static const family families[] = {
    {CN_CHAT_CHATML, "<|im_start|>", chatml_names, chatml_strings, chatml_required},
    {CN_CHAT_LLAMA3, "<|start_header_id|>", llama3_names, llama3_strings, llama3_required},
    {CN_CHAT_DEEPSEEK, "<｜User｜>", deepseek_names, deepseek_strings, deepseek_required},
};

static bool listed(const char *const *list, const char *word)
{
    for (; *list; list++)
        if (strcmp(*list, word) == 0) return true;
    return false;
}

/* If the literal is a complete default system message of ChatML, returns the text of the message (n
 * bytes, not terminated), else NULL. */
static const char *default_system(const char *literal, size_t *n)
{
    static const char head[] = "<|im_start|>system\n", tail[] = "<|im_end|>\n";
    size_t len = strlen(literal), outer = sizeof head - 1 + sizeof tail - 1;
    if (len <= outer || strncmp(literal, head, sizeof head - 1) != 0) return NULL;
    if (strcmp(literal + len - (sizeof tail - 1), tail) != 0) return NULL;
    *n = len - outer;
    return literal + sizeof head - 1;
}

/* What a program contains, where programs of a family differ. */
typedef struct findings {
    bool splits, strips, trims, queries, switches, joins, dated, today;
    bool writes_bos, starts_with_bos;
    bool reads_reasoning; /* as message.reasoning_content; alone it is a variable */
    bool opens_answer, opens_thinking, closes_thinking, empty_thinking, tool_turns;
    unsigned required;  /* bit i: required[i] was seen */
    unsigned defaults;  /* default system messages seen */
    unsigned open_ends; /* "<|im_end|>" literals of ChatML without a "\n" after them so far */
    unsigned words;
} findings;

static void note_name(findings *f, const char *name, bool is_member)
{
    f->reads_reasoning =
        f->reads_reasoning || (is_member && strcmp(name, "reasoning_content") == 0);
    f->splits = f->splits || strcmp(name, "split") == 0;
    f->strips = f->strips || strstr(name, "strip") != NULL;
    f->trims = f->trims || strcmp(name, "trim") == 0;
    f->queries = f->queries || strcmp(name, "last_query_index") == 0;
    f->switches = f->switches || strcmp(name, "enable_thinking") == 0;
    f->writes_bos = f->writes_bos || strcmp(name, "bos_token") == 0;
    f->starts_with_bos = f->starts_with_bos || (f->writes_bos && f->words == 0);
    f->joins = f->joins || strcmp(name, "is_first_sp") == 0;
    f->dated = f->dated || strcmp(name, "date_string") == 0;
    f->today = f->today || strcmp(name, "strftime_now") == 0;
}

static cn_status note_string(findings *f, const family *fam, const char *text,
                             cn_chat_traits *traits)
{
    for (unsigned i = 0; fam->required[i]; i++)
        if (strcmp(fam->required[i], text) == 0) f->required |= 1u << i;
    f->open_ends += strcmp(text, "<|im_end|>") == 0;
    if (f->open_ends && strcmp(text, "\n") == 0) f->open_ends--;
    f->opens_answer = f->opens_answer || strcmp(text, "<|im_start|>assistant\n") == 0;
    f->opens_thinking = f->opens_thinking ||
                        strcmp(text, "<|im_start|>assistant\n<think>\n") == 0 ||
                        strcmp(text, "<｜Assistant｜><think>\n") == 0;
    f->closes_thinking = f->closes_thinking || strcmp(text, "</think>") == 0;
    f->empty_thinking = f->empty_thinking || strcmp(text, "<think>\n\n</think>\n\n") == 0;
    f->tool_turns = f->tool_turns || strcmp(text, "\n<tool_response>\n") == 0;
    size_t n;
    const char *system = default_system(text, &n);
    if (!system) return CN_OK;
    f->defaults++;
    cn_buf_clear(&traits->default_system);
    return cn_buf_add(&traits->default_system, system, n);
}

static bool known_string(const family *fam, const cn_chat_traits *traits, const char *text)
{
    if (listed(common_strings, text) || listed(fam->strings, text)) return true;
    for (const char *const *w = tool_words; *w; w++)
        if (strstr(text, *w)) return true;
    size_t n;
    if (fam->layout == CN_CHAT_CHATML && default_system(text, &n)) return true;
    /* The branch for tools repeats the default system message. */
    return traits->default_system.len && strcmp(text, traits->default_system.data) == 0;
}

/* Reads the program once. The first pass (`check` false) collects findings. The second pass stops
 * at the first word that the family does not use and writes the reason to `why`. */
static cn_status scan(const char *program, size_t n, const family *fam, bool check, findings *f,
                      cn_chat_traits *traits, cn_buf *why)
{
    cn_jinja_lex lex = {.src = program, .n = n};
    cn_jinja_kind kind;
    cn_status status;
    bool after_dot = false;
    while ((status = cn_jinja_next(&lex, &kind)) == CN_OK && kind != CN_JINJA_END) {
        const char *text = lex.text.data;
        if (!check) {
            if (kind == CN_JINJA_NAME) note_name(f, text, after_dot);
            after_dot = kind == CN_JINJA_SIGN && strcmp(text, ".") == 0;
            if (kind == CN_JINJA_STRING) status = note_string(f, fam, text, traits);
            if (status != CN_OK) break;
            f->words += kind != CN_JINJA_SIGN;
            continue;
        }
        bool digits = kind == CN_JINJA_NAME && text[0] >= '0' && text[0] <= '9';
        bool known =
            kind == CN_JINJA_SIGN || digits ||
            (kind == CN_JINJA_NAME && (listed(common_names, text) || listed(fam->names, text))) ||
            (kind == CN_JINJA_STRING && known_string(fam, traits, text));
        if (known) continue;
        const char *what = kind == CN_JINJA_RAW    ? "text"
                           : kind == CN_JINJA_NAME ? "name"
                                                   : "string";
        status = cn_buf_addf(why, "the %s '%.60s' is unknown", what, text);
        break;
    }
    cn_jinja_lex_free(&lex);
    return status;
}

/* Turns the findings of a ChatML program into traits. If cinch cannot render the program, writes
 * the reason to `why`. */
static cn_status judge_chatml(const findings *f, cn_chat_traits *t, cn_buf *why)
{
    if (f->writes_bos && !f->starts_with_bos)
        return cn_buf_addf(why, "it writes BOS after other text");
    if (!f->opens_answer && !f->opens_thinking)
        return cn_buf_addf(why, "it does not begin an assistant message at the end");
    if (f->open_ends) return cn_buf_addf(why, "it has no newline after <|im_end|>");
    if (f->defaults > 1)
        return cn_buf_addf(why, "it has %u default system messages, expected at most 1",
                           f->defaults);
    if (f->switches && !f->empty_thinking)
        return cn_buf_addf(why, "its enable_thinking does not write an empty <think> block");
    if (f->queries && !(f->splits && f->closes_thinking && f->strips))
        return cn_buf_addf(why, "it handles earlier reasoning in an unknown way");
    if (!f->queries && f->reads_reasoning)
        return cn_buf_addf(why, "it renders reasoning_content in an unknown way");
    if (!f->queries && (f->strips || f->splits) && !(f->splits && f->opens_thinking))
        return cn_buf_addf(why, "it changes the text of messages");
    t->history = f->queries  ? CN_HISTORY_SINCE_QUERY
                 : f->splits ? CN_HISTORY_LAST
                             : CN_HISTORY_KEEP;
    t->reads_reasoning = f->reads_reasoning;
    t->writes_bos = f->writes_bos;
    t->tool_turns = f->tool_turns;
    t->any_role = !f->tool_turns;
    t->thinking_switch = f->switches;
    t->opens_thinking = f->opens_thinking;
    return CN_OK;
}

static cn_status judge_llama3(const findings *f, cn_chat_traits *t)
{
    t->writes_bos = f->writes_bos;
    t->trims_content = f->trims;
    t->any_role = !f->dated;
    t->has_dates = f->dated;
    t->date_is_today = f->today;
    return f->dated ? cn_buf_addf(&t->date, "26 Jul 2024") : CN_OK;
}

static cn_status judge(const family *fam, const findings *f, cn_chat_traits *t, cn_buf *why)
{
    for (unsigned i = 0; fam->required[i]; i++)
        if (!(f->required & 1u << i))
            return cn_buf_addf(why, "it lacks the string '%s'", fam->required[i]);
    if (fam->layout == CN_CHAT_CHATML) return judge_chatml(f, t, why);
    if (fam->layout == CN_CHAT_LLAMA3) return judge_llama3(f, t);
    t->writes_bos = f->writes_bos;
    t->history = CN_HISTORY_DROP;
    t->joins_systems = f->joins;
    t->opens_thinking = f->opens_thinking;
    return f->splits ? CN_OK : cn_buf_addf(why, "it keeps the reasoning of earlier messages");
}

/* Returns the first family whose mark the program contains, or NULL. */
static const family *candidate(const char *program, size_t n)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (memmem(program, n, families[i].mark, strlen(families[i].mark))) return &families[i];
    return NULL;
}

cn_status cn_chat_recognize(const char *program, size_t n, cn_chat_traits *traits, cn_buf *why)
{
    cn_buf_clear(why);
    if (n && program[n - 1] == '\n') n--; /* Jinja drops one final newline */
    const family *fam = candidate(program, n);
    if (!fam) return cn_buf_addf(why, "it belongs to no known family");
    findings f = {0};
    CN_TRY(scan(program, n, fam, false, &f, traits, why));
    CN_TRY(scan(program, n, fam, true, &f, traits, why));
    if (why->len == 0) CN_TRY(judge(fam, &f, traits, why));
    if (why->len == 0) traits->layout = fam->layout;
    return CN_OK;
}

void cn_chat_traits_free(cn_chat_traits *traits)
{
    cn_buf_free(&traits->date);
    cn_buf_free(&traits->default_system);
    *traits = (cn_chat_traits){0};
}

cn_opt_chat_template cn_chat_traits_family(const cn_chat_traits *traits)
{
    switch (traits->layout) {
    case CN_CHAT_BARE: return CN_OPT_CHAT_NONE;
    case CN_CHAT_LLAMA3: return CN_OPT_CHAT_LLAMA3;
    case CN_CHAT_DEEPSEEK: return CN_OPT_CHAT_DEEPSEEK_R1;
    case CN_CHAT_CHATML:
        if (traits->history != CN_HISTORY_KEEP) return CN_OPT_CHAT_QWEN3;
        return traits->tool_turns || traits->default_system.len ? CN_OPT_CHAT_QWEN2
                                                                : CN_OPT_CHAT_CHATML;
    case CN_CHAT_UNKNOWN: break;
    }
    return CN_OPT_CHAT_AUTO;
}
