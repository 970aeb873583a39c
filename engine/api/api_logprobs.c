/* api_logprobs.c - see api_logprobs.h. */
#include "engine/api/api_logprobs.h"

#include <math.h>

#include "engine/base/utf8.h"

/* JSON has no infinities. vLLM writes the same value for a probability of 0. */
#define LOWEST_LOGPROB (-9999.0)

enum {
    NO_TOKEN = UINT32_MAX, /* an alternative that the sample op did not have */
    FIRST_TOKENS = 16,
    CHAT_JSON_BYTES = 110, /* of an entry: token, logprob, bytes */
    COMPLETION_JSON_BYTES = 40
};

static const char *const members[CN_API_N_ENDPOINTS][4] = {
    [CN_API_CHAT] = {"content"},
    [CN_API_COMPLETION] = {"text_offset", "token_logprobs", "tokens", "top_logprobs"},
    [CN_API_RESPONSES] = {"content"},
};
/* The members of completions in this order, and the log-probabilities of a prompt. */
enum { TEXT_OFFSET, TOKEN_LOGPROBS, TOKENS, TOP_LOGPROBS, PROMPT_TOKENS };

uint32_t cn_api_logprobs_n_members(cn_api_endpoint e) { return e == CN_API_COMPLETION ? 4 : 1; }

const char *cn_api_logprobs_member(cn_api_endpoint e, uint32_t member)
{
    CN_ASSERT(member < cn_api_logprobs_n_members(e));
    return members[e][member];
}

/* ---- the numbers ---- */

void cn_api_logprobs_free(cn_api_logprobs *l)
{
    cn_free(l->entries);
    cn_free(l->ranks);
    *l = (cn_api_logprobs){0};
}

static size_t stride(const cn_api_logprobs_form *f) { return 1 + (size_t)f->n_top; }

cn_status cn_api_logprobs_add(cn_api_logprobs *l, const cn_api_logprobs_form *f,
                              const cn_token_logprobs *p)
{
    const size_t n = stride(f);
    if (l->n_tokens == l->cap_tokens) {
        const size_t cap = l->cap_tokens ? l->cap_tokens + l->cap_tokens / 2 : FIRST_TOKENS;
        cn_logprob *entries = cn_realloc(l->entries, cap, n * sizeof *entries);
        if (!entries) return cn_fail(CN_ERR_MEMORY, "out of memory for %zu logprobs", cap);
        l->entries = entries;
        if (f->has_ranks) {
            uint32_t *ranks = cn_realloc(l->ranks, cap, sizeof *ranks);
            if (!ranks) return cn_fail(CN_ERR_MEMORY, "out of memory for %zu ranks", cap);
            l->ranks = ranks;
        }
        l->cap_tokens = cap;
    }
    if (f->has_ranks) l->ranks[l->n_tokens] = p->rank;
    cn_logprob *entry = l->entries + l->n_tokens++ * n;
    entry[0] = p->chosen;
    for (uint32_t i = 0; i < f->n_top; i++)
        entry[1 + i] = i < p->n_top ? p->top[i] : (cn_logprob){.token = NO_TOKEN};
    return CN_OK;
}

const cn_logprob *cn_api_logprobs_token(const cn_api_logprobs *l, const cn_api_logprobs_form *f,
                                        size_t i)
{
    CN_ASSERT(i < l->n_tokens);
    return l->entries + i * stride(f);
}

void cn_api_logprobs_drop(cn_api_logprobs *l, const cn_api_logprobs_form *f, size_t n)
{
    CN_ASSERT(n <= l->n_tokens);
    l->n_tokens -= n;
    if (n == 0) return;
    memmove(l->entries, l->entries + n * stride(f), l->n_tokens * stride(f) * sizeof *l->entries);
    if (f->has_ranks) memmove(l->ranks, l->ranks + n, l->n_tokens * sizeof *l->ranks);
}

size_t cn_api_logprobs_json_bytes(const cn_api_logprobs_form *f, size_t n)
{
    return n * stride(f) *
           (f->endpoint == CN_API_COMPLETION ? COMPLETION_JSON_BYTES : CHAT_JSON_BYTES);
}

/* ---- JSON ---- */

static json_t *logprob_value(float logprob)
{
    if (isnan(logprob)) return json_null(); /* the first token of a prompt has no context */
    return json_real(isfinite(logprob) ? (double)logprob : LOWEST_LOGPROB);
}

/* The token as text, with U+FFFD for invalid UTF-8, and its raw bytes. */
static cn_status token_text(const cn_api_logprobs_form *f, uint32_t token, cn_buf *text,
                            const char **raw, size_t *n_raw)
{
    *n_raw = 0;
    bool special;
    *raw = f->token_bytes(f->user, token, n_raw, &special);
    cn_buf_clear(text);
    CN_TRY(cn_buf_add(text, "", 0));
    return *raw ? cn_utf8_add_lossy(text, *raw, *n_raw) : cn_buf_addf(text, "<%u>", token);
}

static json_t *bytes_array(const char *raw, size_t n_raw)
{
    json_t *bytes = json_array();
    for (size_t i = 0; bytes && i < n_raw; i++)
        json_array_append_new(bytes, json_integer((unsigned char)raw[i]));
    return bytes;
}

/* {"token", "logprob", "bytes"} of the chat endpoint. */
static json_t *chat_entry(const cn_api_logprobs_form *f, const cn_logprob *p)
{
    cn_buf text = {0};
    const char *raw;
    size_t n_raw;
    json_t *entry = NULL;
    if (token_text(f, p->token, &text, &raw, &n_raw) == CN_OK)
        entry = json_pack("{s:s%, s:o, s:o}", "token", text.data, text.len, "logprob",
                          logprob_value(p->logprob), "bytes", bytes_array(raw, n_raw));
    cn_buf_free(&text);
    return entry;
}

static json_t *chat_token(const cn_api_logprobs_form *f, const cn_logprob *entries)
{
    json_t *token = chat_entry(f, &entries[0]), *top = json_array();
    bool ok = token && top;
    for (uint32_t i = 1; ok && i <= f->n_top && entries[i].token != NO_TOKEN; i++)
        ok = json_array_append_new(top, chat_entry(f, &entries[i])) == 0;
    if (ok) ok = json_object_set(token, "top_logprobs", top) == 0;
    json_decref(top);
    if (ok) return token;
    json_decref(token);
    return NULL;
}

/* Adds an alternative. If one with the same text is there, the key is "token_id:N", with which vLLM
 * replaces texts. `text` has the text of the token and is overwritten. */
static bool add_alternative(json_t *top, cn_buf *text, const cn_logprob *p)
{
    if (json_object_getn(top, text->data, text->len)) {
        cn_buf_clear(text);
        if (cn_buf_addf(text, "token_id:%u", p->token) != CN_OK) return false;
    }
    return json_object_setn_new(top, text->data, text->len, logprob_value(p->logprob)) == 0;
}

/* Whether the token of entries[0] is among its alternatives. */
static bool is_alternative(const cn_api_logprobs_form *f, const cn_logprob *entries)
{
    for (uint32_t i = 1; i <= f->n_top; i++)
        if (entries[i].token == entries[0].token) return true;
    return false;
}

/* {"<text>": logprob} of the alternatives, best first, and of the token itself. `text` is
 * scratch. */
static json_t *alternatives(const cn_api_logprobs_form *f, const cn_logprob *entries, cn_buf *text)
{
    const char *raw;
    size_t n_raw;
    json_t *top = json_object();
    bool ok = top != NULL;
    const uint32_t n = f->n_top + !is_alternative(f, entries); /* the token itself is the last */
    for (uint32_t i = 1; ok && i <= n; i++) {
        const cn_logprob *p = &entries[i % (f->n_top + 1)];
        if (p->token == NO_TOKEN) continue;
        ok = token_text(f, p->token, text, &raw, &n_raw) == CN_OK && add_alternative(top, text, p);
    }
    if (ok) return top;
    json_decref(top);
    return NULL;
}

/* Moves the place after n bytes. *offset: that of the first of them. `text` is scratch. */
static cn_status advance_logprob(cn_api_text_place *place, const char *bytes, size_t n,
                                 cn_buf *text, size_t *offset)
{
    const size_t n_cut = place->n_cut;
    cn_buf_clear(text);
    CN_TRY(cn_buf_add(text, place->cut, n_cut));
    CN_TRY(cn_buf_add(text, bytes, n));
    *offset = place->chars;
    place->n_cut = 0;
    for (size_t at = 0, len; at < text->len; at += len) {
        uint32_t cp;
        const cn_utf8_kind kind = cn_utf8_read(text->data + at, text->len - at, &cp, &len);
        if (kind == CN_UTF8_CUT) {
            place->n_cut = (uint32_t)(text->len - at);
            memcpy(place->cut, text->data + at, place->n_cut);
            break;
        }
        place->chars++;
        if (at + len <= n_cut) ++*offset; /* the cut was an error */
    }
    return CN_OK;
}

/* The offset of a token in the text. `text` is scratch. NULL: out of memory. */
static json_t *text_offset(const cn_api_logprobs_form *f, uint32_t token, cn_buf *text,
                           cn_api_text_place *place)
{
    size_t n = 0, offset;
    bool special = false;
    const bool in_prompt = place->n_prompt > 0, added = in_prompt && place->n_added > 0;
    const char *bytes = f->token_bytes(f->user, token, &n, &special);
    const bool left_out = !bytes || added || (!in_prompt && special && f->skips_special);
    if (advance_logprob(place, left_out ? "" : bytes, left_out ? 0 : n, text, &offset) != CN_OK)
        return NULL;
    place->n_added -= added;
    place->n_prompt -= in_prompt;
    if (in_prompt && place->n_prompt == 0 && place->n_cut > 0) { /* the prompt ends with an error */
        place->chars++;
        place->n_cut = 0;
    }
    return json_integer((json_int_t)offset);
}

/* An element of a member of the completions endpoint. `text` is scratch. */
static json_t *completion_token(const cn_api_logprobs_form *f, uint32_t member,
                                const cn_logprob *entries, cn_buf *text, cn_api_text_place *at)
{
    const char *raw;
    size_t n_raw;
    if (member == TOKEN_LOGPROBS) return logprob_value(entries[0].logprob);
    if (member == TEXT_OFFSET) return text_offset(f, entries[0].token, text, at);
    if (member == TOKENS) {
        if (token_text(f, entries[0].token, text, &raw, &n_raw) != CN_OK) return NULL;
        return json_stringn(text->data, text->len);
    }
    return isnan(entries[0].logprob) ? json_null() : alternatives(f, entries, text);
}

/* {"<id>": {"logprob", "rank", "decoded_token"}} of a token and its alternatives. rank: of the
 * token itself, which an alternative may be. */
static json_t *prompt_token(const cn_api_logprobs_form *f, const cn_logprob *entries, uint32_t rank,
                            cn_buf *text)
{
    json_t *token = json_object();
    bool ok = token != NULL;
    for (uint32_t i = 0; ok && i <= f->n_top; i++) {
        /* The alternatives first: the i-th has the rank i + 1, also among equal ones. */
        const cn_logprob *p = &entries[(i + 1) % (f->n_top + 1)];
        char id[16];
        const char *raw;
        size_t n_raw;
        snprintf(id, sizeof id, "%u", p->token);
        if (p->token == NO_TOKEN || json_object_get(token, id)) continue;
        ok = token_text(f, p->token, text, &raw, &n_raw) == CN_OK;
        if (ok)
            ok = json_object_set_new(
                     token, id,
                     json_pack("{s:o, s:o, s:s%}", "logprob", logprob_value(p->logprob), "rank",
                               json_integer(i < f->n_top ? i + 1 : rank), "decoded_token",
                               text->data, text->len)) == 0;
    }
    if (ok) return token;
    json_decref(token);
    return NULL;
}

/* Token i of a member; `text` is scratch. */
static json_t *token_json(const cn_api_logprobs *l, const cn_api_logprobs_form *f, uint32_t member,
                          size_t i, cn_buf *text, cn_api_text_place *at)
{
    const cn_logprob *entries = l->entries + i * stride(f);
    if (member == PROMPT_TOKENS)
        return isnan(entries[0].logprob) ? json_null()
                                         : prompt_token(f, entries, l->ranks[i], text);
    return f->endpoint == CN_API_COMPLETION ? completion_token(f, member, entries, text, at)
                                            : chat_token(f, entries);
}

json_t *cn_api_logprobs_json(const cn_api_logprobs *l, const cn_api_logprobs_form *f,
                             uint32_t member, size_t first, size_t end, cn_api_text_place *at)
{
    CN_ASSERT(first <= end && end <= l->n_tokens);
    cn_buf text = {0};
    json_t *array = json_array();
    bool ok = array != NULL;
    for (size_t i = first; ok && i < end; i++)
        ok = json_array_append_new(array, token_json(l, f, member, i, &text, at)) == 0;
    cn_buf_free(&text);
    if (ok) return array;
    json_decref(array);
    return NULL;
}

json_t *cn_api_prompt_logprobs_json(const cn_api_logprobs *l, const cn_api_logprobs_form *f,
                                    size_t first, size_t end)
{
    return cn_api_logprobs_json(l, f, PROMPT_TOKENS, first, end, NULL);
}
