/* token_masks.c - the token masks of a step: structured output, and the token rules of requests.
 * See engine_state.h.
 *
 * A grammar begins after the reasoning. Inside the reasoning any token may follow but EOS.
 *
 * All masks of an engine step take at most cn_engine.mask_share automaton steps. A row whose mask
 * is not made by then is late and sits out: its token is not sampled, the scheduler takes the row
 * back, and no row is planned for it before the mask is made. Masks of the owner whose running
 * requests have taken the fewest automaton steps come first, and of those the one that is late for
 * longest. So a costly form delays its own text, and others only by the share. What is sampled does
 * not depend on it. The first token of a text does not wait: its mask was made with the form.
 *
 * The automaton keeps the masks that it makes. What uniqueItems takes out of one is found for one
 * text, so a mask that is made while its row sits out is kept with the sample.
 *
 * A text may cost FREE_COST automaton steps, and TOKEN_COST more for each token. The cost of a mask
 * depends on the form and the text alone (automaton.h), so the same request always ends in the same
 * way.
 *
 * The exchange of an away row cannot be repeated (HOMES.md §6). If there are such requests with
 * a form, the masks of their rows are made before the step is planned, and kept likewise. */

#include "engine/engine_state.h"
#include "engine/grammar/unique_masks.h"

enum { FREE_COST = 1 << 28, TOKEN_COST = 10000000 };

static const char too_costly[] =
    "structured output: the tokens that may follow the text take too many automaton steps "
    "(docs/STRUCTURED_OUTPUT.md, Limits): expected fewer alternatives or smaller bounds";
static const char too_many_items[] =
    "structured output: finding the tokens after which the items of an array differ (uniqueItems) "
    "takes too many steps (docs/STRUCTURED_OUTPUT.md, Limits): expected fewer or shorter items "
    "(maxItems, maxLength)";
static const char no_memory[] = "structured output: out of memory for a token mask";
static const char too_large[] =
    "structured output: the form of the text needs too many states; expected fewer alternatives or "
    "smaller bounds";

/* ---- one mask ---- */

/* Whether the text that the form describes has begun. */
static bool has_begun(const cn_sample *s)
{
    return s->request->grammar && s->output && !cn_output_reasons(s->output);
}

static const uint32_t *made_mask(cn_sample *s)
{
    uint64_t none = 0;
    const uint32_t *mask;
    return cn_matcher_mask(&s->matcher, &none, &mask) == CN_OK ? mask : NULL;
}

static void allow(uint32_t *mask, uint32_t token) { mask[token / 32] |= 1u << token % 32; }

static bool is_mask_too_costly(const cn_sample *s)
{
    const uint64_t n_output = s->seq->n_tokens - s->seq->n_prompt;
    return s->mask_cost + cn_matcher_mask_cost(&s->matcher) >
           FREE_COST + TOKEN_COST * (n_output + 1);
}

static bool has_unique(const cn_sample *s) { return cn_automaton_has_unique(s->matcher.automaton); }

static bool is_kept(const cn_sample *s) { return s->kept && s->kept_at == s->seq->n_tokens; }

/* The tokens that continue the text, from a mask that is made. */
static void find_mask_tokens(cn_engine *e, cn_sample *s, uint32_t *mask)
{
    memcpy(mask, made_mask(s), cn_mask_words(e->model_config.vocab) * sizeof *mask);
    uint64_t steps = 0;
    const cn_status status = cn_matcher_exclude(&s->matcher, mask, &steps);
    if (status != CN_OK) s->mask_error = status == CN_ERR_MEMORY ? no_memory : too_many_items;
    e->mask_work -= steps < e->mask_work ? steps : e->mask_work;
    s->seq->mask_steps += steps;
    s->mask_cost += steps + cn_matcher_mask_cost(&s->matcher);
}

/* Finds them for the next row of the sample. */
static void keep_tokens(cn_engine *e, cn_sample *s)
{
    if (!s->kept) s->kept = cn_calloc(cn_mask_words(e->model_config.vocab), sizeof *s->kept);
    if (!s->kept) {
        s->mask_error = no_memory;
        return;
    }
    find_mask_tokens(e, s, s->kept);
    s->kept_at = s->seq->n_tokens;
}

/* The tokens that the form allows. */
static void write_form(cn_engine *e, cn_sample *s, uint32_t *mask)
{
    const uint32_t vocab = e->model_config.vocab;
    if (!has_begun(s)) {
        cn_mask_fill(mask, vocab);
        for (uint32_t i = 0; i < e->n_eos; i++) cn_mask_ban(mask, e->eos[i]);
        return;
    }
    if (is_kept(s))
        memcpy(mask, s->kept, cn_mask_words(vocab) * sizeof *mask);
    else
        find_mask_tokens(e, s, mask);
    if (cn_output_may_reason(s->output) && s->seq->n_tokens == s->seq->n_prompt)
        allow(mask, (uint32_t)e->reasoning.open_id);
}

/* Writes a mask that allows nothing if the sample has a mask_error: no token is then sampled. */
static void write_mask(cn_engine *e, cn_sample *s, uint32_t *mask)
{
    const cn_engine_request *r = s->request;
    const uint32_t vocab = e->model_config.vocab;
    bool bans_apply = false;
    cn_sample_row row;
    memset(mask, 0, cn_mask_words(vocab) * sizeof *mask);
    if (s->mask_error) return;
    if (has_begun(s) && !is_kept(s) && is_mask_too_costly(s)) {
        s->mask_error = too_costly;
        return;
    }
    if (r->grammar)
        write_form(e, s, mask);
    else
        cn_mask_fill(mask, vocab);
    cn_token_rules_apply(&r->rules, s->seq->tokens + s->seq->n_prompt,
                         s->seq->n_tokens - s->seq->n_prompt, vocab, mask);
    if (s->output) cn_output_row(s->output, 0, &row, &bans_apply);
    for (uint32_t i = 0; bans_apply && i < r->n_bans; i++) cn_mask_ban(mask, r->bans[i]);
    if (cn_mask_is_empty(mask, vocab))
        s->mask_error = r->grammar ? "structured output: no token of the vocabulary that the other "
                                     "parameters allow continues the text"
                                   : "allowed_token_ids, bad_words and min_tokens exclude every "
                                     "token";
}

/* ---- late masks ---- */

static void put_late(cn_engine *e, cn_sample *s, uint32_t row, uint32_t *mask)
{
    s->is_late = true;
    s->late_row = row;
    s->late_mask = mask;
    cn_list_append(&e->late, &s->late_node);
}

void cn_structure_end_late(cn_engine *e, cn_sample *s)
{
    if (s->is_late) cn_list_remove(&e->late, &s->late_node);
    s->is_late = s->seq->paused = false;
}

static cn_sample *late_of(cn_list_node *at) { return CN_CONTAINER_OF(at, cn_sample, late_node); }

static cn_sample *choose_late(const cn_engine *e)
{
    cn_sample *best = NULL;
    uint64_t fewest = UINT64_MAX;
    for (cn_list_node *at = e->late.head; at; at = at->next) {
        const uint64_t steps = cn_scheduler_mask_steps(e->scheduler, late_of(at)->seq);
        if (best && steps >= fewest) continue;
        best = late_of(at);
        fewest = steps;
    }
    return best;
}

/* Returns true when the mask is made, or cannot be made. */
static bool try_make(cn_sample *s, uint64_t *work)
{
    const uint64_t before = *work;
    const uint32_t *mask;
    const cn_status status = cn_matcher_mask(&s->matcher, work, &mask);
    s->seq->mask_steps += before - *work;
    if (status != CN_OK)
        s->mask_error = status == CN_ERR_MEMORY ? no_memory : too_large;
    else if (is_mask_too_costly(s))
        s->mask_error = too_costly;
    return mask || s->mask_error;
}

/* Works on late masks, also those of earlier steps. */
static void make_late(cn_engine *e)
{
    if (e->late.n > 0) cn_scheduler_sum_mask_steps(e->scheduler);
    while (e->late.n > 0 && e->mask_work > 0) {
        cn_sample *s = choose_late(e);
        if (!try_make(s, &e->mask_work)) continue;
        cn_structure_end_late(e, s);
        if (s->late_mask)
            write_mask(e, s, s->late_mask);
        else if (!s->mask_error && has_unique(s))
            keep_tokens(e, s);
    }
}

/* ---- a step ---- */

void cn_structure_begin_step(cn_engine *e)
{
    e->mask_work = e->mask_share;
    e->has_mask_room = false;
}

/* Once in a step, before its first mask is made: a mask that is made then stays until it is used,
 * and so do the transitions of its tokens. */
static void make_mask_room(cn_engine *e)
{
    if (e->grammars && !e->has_mask_room) cn_grammars_make_room(e->grammars);
    e->has_mask_room = true;
}

/* Whether the mask of a row takes automaton steps that can wait. */
static bool takes_work(cn_sample *s)
{
    if (s->done || s->mask_error || !has_begun(s) || s->seq->n_tokens == s->seq->n_prompt)
        return false;
    return !is_kept(s) && (has_unique(s) || !made_mask(s));
}

void cn_structure_make_early(cn_engine *e)
{
    make_mask_room(e);
    CN_LIST_EACH(cn_engine_request, r, &e->requests, node) {
        for (uint32_t i = 0; r->is_away && i < r->n_samples; i++) {
            cn_sample *s = &r->samples[i];
            if (s->is_late || !takes_work(s)) continue;
            put_late(e, s, 0, NULL);
            s->seq->paused = true;
        }
    }
    make_late(e);
}

void cn_structure_make_late(cn_engine *e)
{
    make_mask_room(e);
    make_late(e);
}

static void sit_out(cn_flight *f, cn_sample *s)
{
    f->sits_out[s->late_row] = true;
    s->late_mask = NULL;
    cn_seq_take_back(s->seq);
    s->seq->paused = true;
}

void cn_structure_write_masks(cn_engine *e, cn_flight *f)
{
    const uint32_t n = cn_mask_words(e->model_config.vocab);
    uint32_t *mask = e->masks;
    make_mask_room(e);
    for (uint32_t i = 0; i < f->n_rows; i++) {
        cn_sample *s = f->seqs[i]->user;
        if (!s->request->has_mask) continue;
        memset(mask, 0, n * sizeof *mask);
        if (takes_work(s))
            put_late(e, s, i, mask);
        else if (!s->done)
            write_mask(e, s, mask);
        mask += n;
    }
    make_late(e);
    for (cn_list_node *at = e->late.head; at; at = at->next)
        if (late_of(at)->late_mask) sit_out(f, late_of(at));
}
