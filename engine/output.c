/* output.c - tokens to events. See output.h.
 *
 * There are two channels, content and reasoning; one of them is current. A channel's buffer has the
 * deliverable text, followed by text held back because it may begin a stop string. Only the current
 * channel holds text back. A take returns the deliverable part in place; the next push moves the
 * rest to the front. */
#include "engine/output.h"

#include "engine/text/detok.h"

enum { TEXT_RESERVE_BYTES = 512, TOKENS_RESERVE = 64 };

typedef struct channel {
    cn_buf buf;
    size_t ready; /* bytes of buf that may be delivered */
    char cut;     /* the byte that the NUL of a take replaced */
} channel;

struct cn_output {
    cn_detok detok;
    cn_stop *stop;
    cn_reasoning reasoning;
    channel content, thinking;
    bool taken; /* the ready bytes have been delivered */
    size_t dropped_bytes; /* content already delivered and removed from its buffer */
    size_t answer_at;     /* byte of all the content after the last </think> */
    bool include_stop;
    const char *stop_reason;

    uint32_t *tokens; /* [cap_tokens] */
    uint32_t n_tokens, cap_tokens;
    cn_token_logprobs *logprobs; /* [cap_tokens], or NULL */
    cn_logprob *top;             /* [cap_tokens, n_top] */
    uint32_t n_top;
};

const char *cn_finish_name(cn_finish f)
{
    static const char *const names[] = {
        [CN_FINISH_NONE] = "none",
        [CN_FINISH_STOP] = "stop",
        [CN_FINISH_LENGTH] = "length",
        [CN_FINISH_REPETITION] = "repetition",
        [CN_FINISH_THINKING_BUDGET] = "thinking_budget",
        [CN_FINISH_CANCELLED] = "cancelled",
        [CN_FINISH_ERROR] = "error",
    };
    CN_ASSERT((size_t)f < sizeof names / sizeof *names);
    return names[f];
}

/* ---- creation ---- */

static cn_status reserve_tokens(cn_output *o, uint32_t n, bool logprobs)
{
    uint32_t *tokens = cn_realloc(o->tokens, n, sizeof *tokens);
    if (!tokens) return cn_fail(CN_ERR_MEMORY, "out of memory for %u tokens", n);
    o->tokens = tokens;
    if (logprobs) {
        cn_token_logprobs *chosen = cn_realloc(o->logprobs, n, sizeof *chosen);
        if (!chosen) return cn_fail(CN_ERR_MEMORY, "out of memory for %u logprobs", n);
        o->logprobs = chosen;
        cn_logprob *top = cn_realloc(o->top, n, o->n_top * sizeof *top);
        if (!top) return cn_fail(CN_ERR_MEMORY, "out of memory for %u logprobs", n);
        o->top = top;
    }
    o->cap_tokens = n;
    return CN_OK;
}

static cn_status reserve_text(cn_buf *b)
{
    static const char zeros[TEXT_RESERVE_BYTES];
    CN_TRY(cn_buf_add(b, zeros, sizeof zeros));
    cn_buf_clear(b);
    return CN_OK;
}

static cn_status output_init(cn_output *o, const cn_output_opts *opts)
{
    const cn_sampling *p = opts->sampling;
    CN_TRY(cn_stop_create(&o->stop, opts->stop));
    CN_TRY(reserve_text(&o->content.buf));
    CN_TRY(reserve_text(&o->thinking.buf));
    o->n_top = p->logprobs > 0 ? (uint32_t)p->logprobs : 0;
    return reserve_tokens(o, TOKENS_RESERVE, p->logprobs >= 0);
}

cn_status cn_output_create(cn_output **out, const cn_output_opts *opts)
{
    const cn_sampling *p = opts->sampling;
    cn_output *o = cn_calloc(1, sizeof *o);
    if (!o) return cn_fail(CN_ERR_MEMORY, "out of memory for a sample");
    cn_status status = output_init(o, opts);
    if (status != CN_OK) {
        cn_output_free(o);
        return status;
    }
    o->include_stop = p->include_stop_str_in_output;
    cn_detok_init(&o->detok, opts->tokenizer, p->skip_special_tokens);
    o->detok.keeps_call_marks = opts->finds_calls;
    cn_reasoning_init(&o->reasoning, &opts->reasoning, p->thinking_token_budget, opts->prompt,
                      opts->n_prompt);
    *out = o;
    return CN_OK;
}

void cn_output_free(cn_output *o)
{
    if (!o) return;
    cn_stop_free(o->stop);
    cn_buf_free(&o->content.buf);
    cn_buf_free(&o->thinking.buf);
    cn_free(o->tokens);
    cn_free(o->logprobs);
    cn_free(o->top);
    cn_free(o);
}

/* ---- channels ---- */

static channel *current(cn_output *o)
{
    bool inside = o->reasoning.rules.split && o->reasoning.phase == CN_REASONING_INSIDE;
    return inside ? &o->thinking : &o->content;
}

static const char *channel_take(channel *c)
{
    c->cut = c->buf.data[c->ready];
    c->buf.data[c->ready] = '\0';
    return c->buf.data;
}

static void channel_drop_taken(channel *c)
{
    c->buf.data[c->ready] = c->cut;
    c->buf.len -= c->ready;
    memmove(c->buf.data, c->buf.data + c->ready, c->buf.len + 1);
    c->ready = 0;
}

static void channel_shorten(channel *c, size_t len)
{
    CN_ASSERT(len >= c->ready && len <= c->buf.len);
    c->buf.len = len;
    c->buf.data[len] = '\0';
}

static void drop_taken(cn_output *o)
{
    if (!o->taken) return;
    o->dropped_bytes += o->content.ready;
    channel_drop_taken(&o->content);
    channel_drop_taken(&o->thinking);
    o->n_tokens = 0;
    o->taken = false;
}

/* ---- a token's text ---- */

/* Searches for a stop string in the channel's text from byte `from`. True if the text ends. */
static bool find_stop(cn_output *o, channel *c, size_t from)
{
    cn_stop_match m;
    if (!cn_stop_push_text(o->stop, c->buf.data + from, c->buf.len - from, &m)) {
        c->ready = c->buf.len - cn_stop_held(o->stop);
        return false;
    }
    size_t end = from + m.end;
    channel_shorten(c, o->include_stop ? end : end - m.length);
    c->ready = c->buf.len;
    o->stop_reason = m.text;
    return true;
}

static cn_status add_output_text(cn_output *o, channel *c, uint32_t token, bool *stopped)
{
    size_t from = c->buf.len;
    CN_TRY(cn_detok_push(&o->detok, token, &c->buf));
    *stopped = find_stop(o, c, from);
    return CN_OK;
}

/* Ends the channel's text: adds an unfinished character and releases held-back text. */
static cn_status end_text(cn_output *o, channel *c, bool *stopped)
{
    size_t from = c->buf.len;
    CN_TRY(cn_detok_flush(&o->detok, &c->buf));
    *stopped = find_stop(o, c, from);
    return CN_OK;
}

/* Ends the text of channel c at a tag. The tag itself is not text, but a stop string may contain
 * it or begin before it. The part of the stop string before the tag is then removed. */
static cn_status cross_tag(cn_output *o, channel *c, const char *tag, bool *stopped)
{
    CN_TRY(end_text(o, c, stopped));
    if (*stopped) return CN_OK;
    cn_stop_match m;
    *stopped = cn_stop_push_text(o->stop, tag, strlen(tag), &m);
    if (*stopped) {
        o->stop_reason = m.text;
        size_t before = m.length > m.end ? m.length - m.end : 0;
        if (!o->include_stop) channel_shorten(c, c->buf.len - before);
    }
    cn_stop_cut_text(o->stop);
    c->ready = c->buf.len;
    return CN_OK;
}

static cn_status push_text(cn_output *o, uint32_t token, bool *stopped)
{
    channel *c = current(o);
    cn_reasoning_part part = cn_reasoning_push(&o->reasoning, token);
    if (part == CN_REASONING_TEXT || !o->reasoning.rules.split)
        CN_TRY(add_output_text(o, c, token, stopped));
    else
        CN_TRY(cross_tag(o, c, part == CN_REASONING_OPEN ? "<think>" : "</think>", stopped));
    if (token == o->reasoning.rules.close_id)
        o->answer_at = o->dropped_bytes + o->content.buf.len;
    return CN_OK;
}

/* Valid at the end of the sample. A stop string may have cut the text before answer_at. */
static size_t answer_at(const cn_output *o)
{
    const cn_reasoning *r = &o->reasoning;
    size_t end = o->dropped_bytes + o->content.ready;
    bool unended = r->phase == CN_REASONING_INSIDE && r->rules.close_id >= 0;
    return unended || o->answer_at > end ? end : o->answer_at;
}

/* ---- tokens ---- */

static cn_status record_token(cn_output *o, uint32_t token, const cn_token_logprobs *lp)
{
    if (o->n_tokens == o->cap_tokens)
        CN_TRY(reserve_tokens(o, 2 * o->cap_tokens, o->logprobs != NULL));
    uint32_t i = o->n_tokens++;
    o->tokens[i] = token;
    if (!o->logprobs) return CN_OK;
    CN_ASSERT(lp);
    uint32_t n = cn_min_u32(lp->n_top, o->n_top);
    o->logprobs[i] = (cn_token_logprobs){.chosen = lp->chosen, .n_top = n};
    if (n) memcpy(o->top + (size_t)i * o->n_top, lp->top, n * sizeof *lp->top);
    return CN_OK;
}

cn_status cn_output_push(cn_output *o, uint32_t token, const cn_token_logprobs *lp,
                         cn_finish *finish)
{
    drop_taken(o);
    CN_TRY(record_token(o, token, lp));
    cn_finish f = cn_stop_push_token(o->stop, token);
    bool stopped = false;
    if (f != CN_FINISH_STOP || o->include_stop) CN_TRY(push_text(o, token, &stopped));
    if (f == CN_FINISH_NONE && cn_reasoning_exhausted(&o->reasoning))
        f = CN_FINISH_THINKING_BUDGET;
    if (f != CN_FINISH_NONE && !stopped) CN_TRY(end_text(o, current(o), &stopped));
    *finish = stopped ? CN_FINISH_STOP : f;
    return CN_OK;
}

void cn_output_row(const cn_output *o, uint32_t n_pending, cn_sample_row *row, bool *bans_apply)
{
    int64_t after;
    row->force_token = cn_reasoning_force(&o->reasoning, n_pending, &after);
    row->force_after = (uint32_t)(after + 1);
    *bans_apply = cn_stop_bans_apply(o->stop, n_pending);
}

bool cn_output_reasons(const cn_output *o)
{
    return o->reasoning.phase == CN_REASONING_INSIDE && o->reasoning.rules.close_id >= 0;
}

bool cn_output_may_reason(const cn_output *o)
{
    const cn_output_reasoning *rules = &o->reasoning.rules;
    return o->reasoning.phase == CN_REASONING_BEFORE && rules->split && rules->open_id >= 0 &&
           rules->close_id >= 0;
}

/* ---- delivery ---- */

void cn_output_take(cn_output *o, cn_finish finish, cn_event *ev)
{
    drop_taken(o);
    if (finish != CN_FINISH_NONE) current(o)->ready = current(o)->buf.len;
    for (uint32_t i = 0; o->logprobs && i < o->n_tokens; i++)
        o->logprobs[i].top = o->n_top ? o->top + (size_t)i * o->n_top : NULL;
    ev->text = channel_take(&o->content);
    ev->text_len = o->content.ready;
    ev->reasoning = channel_take(&o->thinking);
    ev->reasoning_len = o->thinking.ready;
    ev->tokens = o->tokens;
    ev->n_tokens = o->n_tokens;
    ev->logprobs = o->logprobs;
    ev->finish = finish;
    bool stopped = finish == CN_FINISH_STOP;
    ev->stop_reason = stopped ? o->stop_reason : NULL;
    ev->stop_token = stopped && !o->stop_reason ? cn_stop_token(o->stop) : -1;
    ev->answer_at = finish == CN_FINISH_NONE ? 0 : answer_at(o);
    o->taken = true;
}

void cn_output_usage(const cn_output *o, cn_usage *u)
{
    u->reasoning_tokens = o->reasoning.n_tokens;
    u->thinking_truncated = o->reasoning.truncated || cn_reasoning_exhausted(&o->reasoning);
}
