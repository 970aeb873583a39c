/* responses_items.c - see responses_items.h. */
#include "engine/api/responses_items.h"

#include "engine/api/api_result_state.h"
#include "engine/base/json.h"

static bool is_items_blank(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && cn_json_is_space(text[i])) i++;
    return i == n;
}

bool cn_response_is_cut(const cn_api_result *r)
{
    const cn_finish finish = r->choices[0].finish;
    return finish != CN_FINISH_NONE && finish != CN_FINISH_STOP;
}

/* Sets the tokens of a message: those whose text is in it. Only the message that begins the content
 * after the reasoning has any. */
static void find_items_tokens(const cn_api_result *r, cn_response_place *place,
                              cn_response_item *item)
{
    const cn_api_choice *c = &r->choices[0];
    const bool has_tokens = place->call == 0 && (place->past_reasoning || c->reasoning.len == 0);
    item->first = item->end = c->n_unsaid;
    if (!r->wants_logprobs || !has_tokens) return;
    if (place->token < c->n_unsaid) place->token = c->n_unsaid;
    while (place->token < c->logprobs.n_tokens && place->token_bytes < item->n) {
        size_t n = 0;
        bool special = false;
        const cn_logprob *p = cn_api_logprobs_token(&c->logprobs, &r->form, place->token++);
        const char *bytes = r->form.token_bytes(r->form.user, p->token, &n, &special);
        if (bytes && !(special && r->form.skips_special)) place->token_bytes += n;
    }
    const bool all = item->complete && c->tools.n_calls == 0;
    item->end = all ? c->logprobs.n_tokens : place->token;
}

/* The item may still grow unless another one follows or the output has ended. */
static bool found(const cn_api_result *r, cn_response_place *place, cn_response_item *item,
                  bool followed)
{
    const bool over = r->choices[0].finish != CN_FINISH_NONE;
    item->index = place->index;
    item->complete = followed || over;
    item->cut = !followed && over && cn_response_is_cut(r);
    if (item->kind == CN_OUT_MESSAGE) find_items_tokens(r, place, item);
    return true;
}

bool cn_response_item_at(const cn_api_result *r, cn_response_place *place, cn_response_item *out)
{
    const cn_api_choice *c = &r->choices[0];
    const uint32_t n_calls = c->tools.n_calls;
    const cn_tool_call *call = place->call < n_calls ? &c->tools.calls[place->call] : NULL;
    const bool reasons =
        !place->past_reasoning && c->reasoning.len > 0 && c->reasoning_call == place->call;
    const char *text = c->text.data ? c->text.data : "";
    const size_t end = reasons ? c->reasoning_at : call ? call->content_at : c->text.len;
    const size_t n = end - place->text_at;
    *out = (cn_response_item){.kind = CN_OUT_MESSAGE, .text = text + place->text_at, .n = n};
    if (!is_items_blank(out->text, n)) return found(r, place, out, reasons || call);
    if (reasons) {
        place->text_at = end;
        *out =
            (cn_response_item){CN_OUT_REASONING, .text = c->reasoning.data, .n = c->reasoning.len};
        return found(r, place, out, c->text.len > end || n_calls > c->reasoning_call);
    }
    if (call) {
        place->text_at = end;
        *out = (cn_response_item){CN_OUT_CALL,
                                  .text = call->arguments.data ? call->arguments.data : "",
                                  .n = call->arguments.len, .call = place->call};
        return found(r, place, out, place->call + 1 < n_calls || c->text.len > end);
    }
    return c->finish != CN_FINISH_NONE && place->index == 0 && found(r, place, out, false);
}

void cn_response_item_leave(const cn_response_item *item, cn_response_place *place)
{
    place->index++;
    place->past_reasoning |= item->kind == CN_OUT_REASONING;
    place->call += item->kind == CN_OUT_CALL;
    if (item->kind == CN_OUT_MESSAGE) place->text_at += item->n;
}

/* ---- JSON ---- */

void cn_response_item_id(char *out, const char *id, const cn_response_item *item)
{
    static const char *const prefixes[] = {
        [CN_OUT_REASONING] = "rs", [CN_OUT_MESSAGE] = "msg", [CN_OUT_CALL] = "fc"};
    snprintf(out, CN_ITEM_ID_BYTES, "%s_%.128s_%u", prefixes[item->kind], id, item->index);
}

json_t *cn_response_part_json(const cn_api_result *r, const cn_response_item *item,
                              const char *text, size_t n)
{
    if (item->kind == CN_OUT_MESSAGE)
        return json_pack("{s:s, s:[], s:s%, s:[]}", "type", "output_text", "annotations", "text",
                         text, n, "logprobs");
    return json_pack("{s:s, s:s%}", "type", r->summarizes ? "summary_text" : "reasoning_text",
                     "text", text, n);
}

static json_t *item_json(const cn_api_result *r, const char *id, const cn_response_item *item,
                         const char *status, bool with_text)
{
    char item_id[CN_ITEM_ID_BYTES];
    cn_response_item_id(item_id, id, item);
    if (item->kind == CN_OUT_CALL) {
        const cn_tool_call *call = &r->choices[0].tools.calls[item->call];
        return json_pack("{s:s, s:s, s:s, s:s, s:O, s:s%}", "id", item_id, "type", "function_call",
                         "status", status, "call_id", call->id, "name", call->name, "arguments",
                         with_text ? item->text : "", with_text ? item->n : 0);
    }
    json_t *parts = with_text
                        ? json_pack("[o]", cn_response_part_json(r, item, item->text, item->n))
                        : json_array();
    if (item->kind == CN_OUT_MESSAGE)
        return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", item_id, "type", "message", "status",
                         status, "role", "assistant", "content", parts);
    json_t *empty = json_array();
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:n}", "id", item_id, "type", "reasoning", "status",
                     status, "summary", r->summarizes ? parts : empty, "content",
                     r->summarizes ? empty : parts, "encrypted_content");
}

json_t *cn_response_item_opened(const cn_api_result *r, const char *id,
                                const cn_response_item *item)
{
    return item_json(r, id, item, "in_progress", false);
}

json_t *cn_response_item_json(const cn_api_result *r, const char *id, const cn_response_item *item)
{
    return item_json(r, id, item, item->cut ? "incomplete" : "completed", true);
}
