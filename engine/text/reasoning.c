/* reasoning.c - tracks <think> and </think>. See reasoning.h. */
#include "engine/text/reasoning.h"

enum {
    /* A </think> is the template's own only among this many last tokens of the prompt
     * ("</think>\n\n"). Before them it belongs to an earlier turn. */
    PROMPT_TAIL_TOKENS = 8,
    /* A <think> before them begins a turn if at most so many tokens are between it and an added
     * token ("<|im_start|>assistant\n<think>"). Otherwise the user wrote it. */
    TURN_HEAD_TOKENS = 3
};

static int64_t tag_id(const cn_tokenizer *t, const char *tag)
{
    uint32_t id;
    return cn_tokenizer_id(t, tag, &id) ? (int64_t)id : -1;
}

cn_status cn_output_reasoning_choose(const cn_tokenizer *t, cn_opt_reasoning_parser parser,
                                     cn_output_reasoning *out)
{
    cn_output_reasoning r = {.tokenizer = t, .open_id = tag_id(t, "<think>"),
                             .close_id = tag_id(t, "</think>")};
    bool both = r.open_id >= 0 && r.close_id >= 0;
    bool deepseek = parser == CN_OPT_REASONING_DEEPSEEK_R1;
    bool named = deepseek || parser == CN_OPT_REASONING_QWEN3;
    if (named && (r.close_id < 0 || (!deepseek && r.open_id < 0)))
        return cn_fail(CN_ERR_ARG,
                       "--reasoning-parser %s: the vocabulary has no token %s; use auto or none",
                       deepseek ? "deepseek_r1" : "qwen3", r.close_id < 0 ? "</think>" : "<think>");
    r.split = named || (parser == CN_OPT_REASONING_AUTO && both);
    r.from_start = deepseek;
    *out = r;
    return CN_OK;
}

/* Whether token `at` of the prompt is among the first of a turn. The first token of the prompt may
 * be added to every text, so it begins no turn. */
static bool is_in_turn_head(const cn_output_reasoning *rules, const uint32_t *prompt, uint32_t at)
{
    for (uint32_t i = at, n = 0; i > 1 && n <= TURN_HEAD_TOKENS; i--, n++)
        if (cn_tokenizer_is_added(rules->tokenizer, prompt[i - 1])) return true;
    return false;
}

/* Only tags after the last other added token count: that token begins the turn, or ends the one of
 * a user who wrote a tag. */
static cn_reasoning_phase first_phase(const cn_output_reasoning *rules, const uint32_t *prompt,
                                      uint32_t n_prompt)
{
    const cn_reasoning_phase other = rules->from_start ? CN_REASONING_INSIDE : CN_REASONING_BEFORE;
    for (uint32_t at = n_prompt; at-- > 0;) {
        const int64_t token = prompt[at];
        const bool in_tail = n_prompt - at <= PROMPT_TAIL_TOKENS;
        if (token == rules->open_id)
            return in_tail || is_in_turn_head(rules, prompt, at) ? CN_REASONING_INSIDE : other;
        if (token == rules->close_id) return in_tail ? CN_REASONING_AFTER : other;
        if (cn_tokenizer_is_added(rules->tokenizer, prompt[at])) return other;
    }
    return other;
}

void cn_reasoning_init(cn_reasoning *r, const cn_output_reasoning *rules, int32_t budget,
                       const uint32_t *prompt, uint32_t n_prompt)
{
    *r = (cn_reasoning){.rules = *rules, .budget = budget};
    bool endless = budget >= 0 && rules->close_id < 0;
    r->phase = endless ? CN_REASONING_INSIDE : first_phase(rules, prompt, n_prompt);
}

static bool spent_after(const cn_reasoning *r, uint32_t n_pending)
{
    return r->phase == CN_REASONING_INSIDE && r->budget >= 0 &&
           r->n_tokens + n_pending >= (uint32_t)r->budget;
}

static bool spent(const cn_reasoning *r) { return spent_after(r, 0); }

cn_reasoning_part cn_reasoning_push(cn_reasoning *r, uint32_t token)
{
    bool open = token == r->rules.open_id, close = token == r->rules.close_id;
    if (r->phase == CN_REASONING_BEFORE && open) {
        r->phase = CN_REASONING_INSIDE;
        return CN_REASONING_OPEN;
    }
    if (r->phase != CN_REASONING_INSIDE) return CN_REASONING_TEXT;
    if (close) {
        r->truncated = spent(r);
        r->phase = CN_REASONING_AFTER;
        return CN_REASONING_CLOSE;
    }
    /* A first <think> repeats the tag with which the prompt ended. It counts like any token, so
     * that the budget is known before the token is. */
    const bool first = r->n_tokens++ == 0;
    return open && first ? CN_REASONING_OPEN : CN_REASONING_TEXT;
}

int32_t cn_reasoning_force(const cn_reasoning *r, uint32_t n_pending, int64_t *after)
{
    const bool may_open = r->phase == CN_REASONING_BEFORE && r->budget == 0 && n_pending > 0;
    *after = may_open ? r->rules.open_id : -1;
    return spent_after(r, n_pending) || *after >= 0 ? (int32_t)r->rules.close_id : -1;
}

bool cn_reasoning_exhausted(const cn_reasoning *r) { return spent(r) && r->rules.close_id < 0; }
