/* engine_request.c - the life of a request in the engine: check, tokenise and schedule it, deliver
 * the output of its samples, and drop it when it has finished, failed or was cancelled. */
#include "engine/engine_state.h"

#include "engine/text/prompt.h"

/* ---- a request's own memory ---- */

/* Deep copy of `n` elements; NULL for none. */
static void *copy_array(const void *src, size_t n, size_t size, bool *ok)
{
    if (n == 0) return NULL;
    void *copy = cn_calloc(n, size);
    if (copy)
        memcpy(copy, src, n * size);
    else
        *ok = false;
    return copy;
}

static void free_sampling_lists(cn_sampling *s)
{
    for (size_t i = 0; s->stop && i < s->n_stop; i++) cn_free((char *)(uintptr_t)s->stop[i]);
    cn_free((void *)(uintptr_t)s->stop);
    cn_free((void *)(uintptr_t)s->stop_token_ids);
    cn_free((void *)(uintptr_t)s->logit_bias);
}

static cn_status copy_sampling(cn_sampling *out, const cn_sampling *s)
{
    bool ok = true;
    *out = *s;
    /* These two are in cn_engine_request.rules. */
    out->allowed_token_ids = NULL, out->n_allowed_token_ids = 0;
    out->bad_words = NULL, out->n_bad_words = 0;
    char **stop = s->n_stop ? cn_calloc(s->n_stop, sizeof *stop) : NULL;
    for (size_t i = 0; stop && i < s->n_stop; i++) {
        stop[i] = cn_strdup(s->stop[i]);
        ok = ok && stop[i];
    }
    ok = ok && (stop || s->n_stop == 0);
    out->stop = (const char *const *)stop;
    out->stop_token_ids =
        copy_array(s->stop_token_ids, s->n_stop_token_ids, sizeof *s->stop_token_ids, &ok);
    out->logit_bias = copy_array(s->logit_bias, s->n_logit_bias, sizeof *s->logit_bias, &ok);
    if (ok) return CN_OK;
    free_sampling_lists(out);
    return cn_fail(CN_ERR_MEMORY, "out of memory for a request");
}

static void free_request(cn_engine *e, cn_engine_request *r)
{
    for (uint32_t i = 0; i < r->n_samples; i++) cn_output_free(r->samples[i].output);
    cn_structure_close(e, r);
    cn_stop_rules_free(r->stop);
    free_sampling_lists(&r->sampling);
    cn_free(r->bans);
    cn_free(r->forced);
    cn_prompt_scores_free(r->scores);
    cn_free(r);
}

/* EOS and stop ids: banned before min_tokens. */
static cn_status make_bans(const cn_engine *e, cn_engine_request *r)
{
    const cn_sampling *s = &r->sampling;
    if (s->min_tokens == 0) return CN_OK;
    r->bans = cn_calloc(e->n_eos + s->n_stop_token_ids, sizeof *r->bans);
    if (!r->bans) return cn_fail(CN_ERR_MEMORY, "out of memory for a request");
    for (uint32_t i = 0; i < e->n_eos; i++) r->bans[r->n_bans++] = e->eos[i];
    for (size_t i = 0; i < s->n_stop_token_ids; i++) r->bans[r->n_bans++] = s->stop_token_ids[i];
    return CN_OK;
}

static cn_status copy_forced(cn_engine_request *r, const cn_request_params *p)
{
    bool ok = true;
    r->forced = copy_array(p->forced, p->n_forced, sizeof *p->forced, &ok);
    r->n_forced = (uint32_t)p->n_forced;
    return ok ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for %zu forced tokens", p->n_forced);
}

cn_status cn_engine_open_output(const cn_engine *e, cn_sample *sample)
{
    cn_engine_request *r = sample->request;
    const cn_stop_opts stop = {&r->sampling, e->eos, e->n_eos, r->max_output};
    if (!r->stop) CN_TRY(cn_stop_rules_create(&r->stop, &stop));
    cn_output_reasoning reasoning = e->reasoning;
    if (r->whole_text) reasoning.split = false;
    const cn_output_opts o = {
        .tokenizer = e->tokenizer,
        .sampling = &r->sampling,
        .stop = r->stop,
        .reasoning = reasoning,
        .finds_calls = r->finds_calls,
        .prompt = sample->seq->tokens,
        .n_prompt = sample->seq->n_prompt,
    };
    return cn_output_create(&sample->output, &o);
}

static cn_status make_request(cn_engine *e, const cn_request_params *p, uint32_t max_output,
                              cn_engine_request **out)
{
    uint32_t n = p->sampling.n;
    cn_engine_request *r = cn_calloc(1, sizeof *r + n * sizeof *r->samples);
    if (!r) return cn_fail(CN_ERR_MEMORY, "out of memory for a request");
    cn_status status = copy_sampling(&r->sampling, &p->sampling);
    if (status != CN_OK) {
        cn_free(r);
        return status;
    }
    r->id = e->next_id;
    r->submitted_s = cn_now_s();
    r->needs_counts = cn_sampling_needs_counts(&r->sampling);
    r->max_output = max_output;
    r->n_samples = r->n_live = n;
    for (uint32_t i = 0; i < n; i++)
        r->samples[i] = (cn_sample){
            .request = r,
            .seed = cn_sampling_seed(&p->sampling, e->config->seed, p->custom_id, r->id),
            .count_slot = -1,
        };
    r->no_output = p->no_output;
    r->whole_text = p->whole_text;
    r->finds_calls = p->finds_calls;
    status = make_bans(e, r);
    if (status == CN_OK) status = copy_forced(r, p);
    if (status == CN_OK) status = cn_structure_open(e, p, r);
    if (status == CN_OK && p->score_prompt)
        status = cn_prompt_scores_create(&r->scores, e->prompt.ids, (uint32_t)e->prompt.len,
                                         p->n_prompt_top);
    if (status != CN_OK) {
        free_request(e, r);
        return status;
    }
    *out = r;
    return CN_OK;
}

/* ---- submit ---- */

static cn_status check_request_samples(const cn_engine *e, const cn_request_params *p)
{
    const uint32_t n = p->sampling.n, n_most = e->config->max_n, n_queue = e->config->max_queue;
    if (n > n_most)
        return cn_fail_param("n", "n: expected at most %u samples (--max-n), got %u", n_most, n);
    if (n > n_queue)
        return cn_fail_param("n", "n: %u samples exceed the queue of %u (--max-queue)", n,
                             n_queue);
    if (!p->was_accepted && cn_scheduler_waiting_of(e->scheduler, p->klass) > n_queue - n)
        return cn_fail(CN_ERR_BUSY,
                       "the queue has no room for %u samples (--max-queue %u): try again later", n,
                       n_queue);
    return CN_OK;
}

static cn_status check_request_priority(const cn_engine *e, const cn_request_params *p)
{
    if (p->priority == 0 || e->config->scheduling_policy == CN_OPT_SCHEDULING_PRIORITY)
        return CN_OK;
    return cn_fail_param("priority",
                         "priority: expected 0 with --scheduling-policy fcfs, got %d: leave it "
                         "out, or start with --scheduling-policy priority",
                         p->priority);
}

static cn_status check_request_lengths(const cn_engine *e, const cn_request_params *p,
                                       uint32_t *max_output)
{
    const cn_sampling *s = &p->sampling;
    size_t n_prompt = e->prompt.len;
    CN_TRY(cn_prompt_check_length(p, e->max_model_len, n_prompt));
    uint32_t room = e->max_model_len - (uint32_t)n_prompt;
    if (p->no_output ? s->min_tokens > 0 : s->min_tokens > room)
        return cn_fail_param("min_tokens", "min_tokens is %u: expected at most %u, the tokens that "
                             "can be generated", s->min_tokens, p->no_output ? 0 : room);
    if (s->max_tokens > room && !p->cut_max_tokens && !p->no_output)
        return cn_fail_param("max_tokens",
                             CN_CONTEXT_ERROR " %u tokens, but the prompt has %zu and max_tokens "
                             "is %u: lower max_tokens to %u, or start with --cap-max-tokens",
                             e->max_model_len, n_prompt, s->max_tokens, room);
    *max_output = s->max_tokens ? cn_min_u32(s->max_tokens, room) : room;
    if (p->no_output)
        *max_output = 1;
    else if (s->max_tokens == 0 && e->default_max_tokens > 0)
        *max_output = cn_min_u32(room, cn_max_u32(e->default_max_tokens, s->min_tokens));
    return CN_OK;
}

/* Cuts an output that need not be as long to what the pool can hold. Answers to batches are not
 * cut, so that they do not depend on the size of the pool. */
static void fit_pool(const cn_engine *e, const cn_request_params *p, uint32_t *max_output)
{
    cn_group_params group = {.n_prompt = (uint32_t)e->prompt.len,
                             .max_output = *max_output,
                             .n = p->sampling.n,
                             .kv = p->kv};
    cn_group_need need;
    uint32_t fits = cn_max_u32(p->sampling.min_tokens, 1), exceeds = *max_output;
    if (!p->cut_max_tokens || p->no_output || p->klass != CN_CLASS_INTERACTIVE) return;
    if (fits >= exceeds || cn_scheduler_need(e->scheduler, &group, &need) == CN_OK) return;
    group.max_output = fits;
    if (cn_scheduler_need(e->scheduler, &group, &need) != CN_OK) return; /* it is refused later */
    while (exceeds - fits > 1) {
        group.max_output = fits + (exceeds - fits) / 2;
        if (cn_scheduler_need(e->scheduler, &group, &need) == CN_OK)
            fits = group.max_output;
        else
            exceeds = group.max_output;
    }
    *max_output = fits;
}

static cn_status check_forced(const cn_engine *e, const cn_request_params *p, uint32_t max_output)
{
    if (p->n_forced > max_output)
        return cn_fail(CN_ERR_ARG, "%zu forced tokens exceed the %u that the request may generate",
                       p->n_forced, max_output);
    for (size_t i = 0; i < p->n_forced; i++)
        if (p->forced[i] >= e->model_config.vocab)
            return cn_fail(CN_ERR_ARG,
                           "forced[%zu] is %u: expected an id below the vocabulary size %u", i,
                           p->forced[i], e->model_config.vocab);
    return CN_OK;
}

/* Checks that policy, selector and home are declared, and their parameters against the options. */
static cn_status check_request_kv(const cn_engine *e, const cn_kv_params *given)
{
    cn_kv_params completed = *given, *kv = &completed;
    const cn_config *c = e->config;
    if ((unsigned)kv->policy < CN_N_POLICIES && !(cn_config_policies(c) >> kv->policy & 1))
        return cn_fail(CN_ERR_ARG,
                       "kv.policy %s is not enabled: add it to --kv-policies at start",
                       cn_kv_policy_name(kv->policy));
    if ((unsigned)kv->select < CN_N_SELECTORS && !(cn_config_selectors(c) >> kv->select & 1))
        return cn_fail(CN_ERR_ARG,
                       "kv.select %s is not enabled: add it to --kv-selectors at start",
                       cn_kv_select_name(kv->select));
    if ((unsigned)kv->policy >= CN_N_POLICIES || (unsigned)kv->select >= CN_N_SELECTORS)
        return CN_OK; /* the scheduler refuses it */
    const cn_model_config *m = &e->model_config;
    CN_TRY(cn_policy_check_heads(kv, m->n_heads / m->n_kv_heads, e->backend->head_rules));
    return cn_home_check_kv(c, kv, e->plan.kv.block_tokens, cn_policy_most_queries(&c->kv));
}

static cn_status schedule_request(cn_engine *e, const cn_request_params *p, cn_engine_request *r)
{
    cn_group_params group = {
        .prompt = e->prompt.ids,
        .n_prompt = (uint32_t)e->prompt.len,
        .max_output = r->max_output,
        .n = r->n_samples,
        .klass = p->klass,
        .priority = p->priority,
        .owner = p->owner,
        .skips_prefix = p->score_prompt,
        .unready = r->form.structure.text != NULL,
        .kv = p->kv,
    };
    void *users[CN_MAX_SAMPLES];
    cn_seq *seqs[CN_MAX_SAMPLES];
    for (uint32_t i = 0; i < r->n_samples; i++) users[i] = &r->samples[i];
    CN_TRY(cn_for_param(cn_scheduler_add(e->scheduler, &group, users, seqs), "kv"));
    for (uint32_t i = 0; i < r->n_samples; i++) r->samples[i].seq = seqs[i];
    return CN_OK;
}

/* The parameters, with a max_tokens that may be cut within the context. */
static cn_request_params fit_params(const cn_engine *e, const cn_request_params *given)
{
    cn_request_params p = *given;
    if (p.cut_max_tokens && p.sampling.max_tokens > e->max_model_len)
        p.sampling.max_tokens = e->max_model_len;
    return p;
}

cn_status cn_engine_submit(cn_engine *e, const cn_request_params *given, cn_event_fn fn, void *user,
                           uint64_t *request)
{
    const cn_request_params fitted = fit_params(e, given), *p = &fitted;
    CN_ASSERT(p->klass == CN_CLASS_INTERACTIVE || p->klass == CN_CLASS_BATCH);
    CN_TRY(cn_sampling_check(&p->sampling, e->model_config.vocab, e->max_model_len));
    CN_TRY(check_request_samples(e, p));
    CN_TRY(check_request_priority(e, p));
    CN_TRY(cn_for_param(check_request_kv(e, &p->kv), "kv"));
    if (p->n_prompt_top > CN_MAX_LOGPROBS)
        return cn_fail_param("prompt_logprobs",
                             "prompt_logprobs: expected at most %d alternatives, got %u",
                             CN_MAX_LOGPROBS, p->n_prompt_top);
    e->prompt.len = 0;
    const cn_prompt_maker maker = {.tokenizer = e->tokenizer,
                                   .chat = e->chat,
                                   .vocab = e->model_config.vocab,
                                   .max_model_len = e->max_model_len,
                                   .longest_token = e->longest_token};
    CN_TRY(cn_prompt_tokens(&maker, p, &e->prompt));
    uint32_t max_output = 0;
    CN_TRY(check_request_lengths(e, p, &max_output));
    fit_pool(e, p, &max_output);
    CN_TRY(check_forced(e, p, max_output));
    cn_engine_request *r = NULL;
    CN_TRY(make_request(e, p, max_output, &r));
    cn_status status = schedule_request(e, p, r);
    if (status != CN_OK) {
        free_request(e, r);
        return status;
    }
    r->fn = fn;
    r->user = user;
    r->is_away = p->structure.kind != CN_STRUCTURE_NONE && cn_kv_is_away(&p->kv);
    e->n_away_forms += r->is_away;
    r->is_unready = r->form.structure.text != NULL;
    e->n_unready += r->is_unready;
    e->n_scored += r->scores != NULL;
    cn_list_append(&e->requests, &r->node);
    e->next_id++;
    if (request) *request = r->id;
    return CN_OK;
}

/* More samples than the queue holds would find it full for ever. */
static cn_status check_request_fit(const cn_engine *e, const cn_request_params *p, size_t n)
{
    const uint32_t n_queue = e->config->max_queue;
    uint64_t samples = 0;
    for (size_t i = 0; i < n; i++) samples += p[i].sampling.n;
    if (n == 1 || samples <= n_queue) return CN_OK;
    return cn_fail_param("prompt",
                         "prompt: %zu prompts with %llu samples exceed the queue of %u: send fewer "
                         "at once or raise --max-queue",
                         n, (unsigned long long)samples, n_queue);
}

cn_status cn_engine_submit_all(cn_engine *e, const cn_request_params *p, size_t n, cn_event_fn fn,
                               void *user, uint64_t *first)
{
    const uint64_t next_id = e->next_id;
    CN_ASSERT(n > 0);
    CN_TRY(check_request_fit(e, p, n));
    *first = next_id;
    for (size_t i = 0; i < n; i++) {
        cn_request_params one = p[i];
        if (i > 0 && one.sampling.bad_words == p[i - 1].sampling.bad_words)
            one.bad_words_made =
                CN_CONTAINER_OF(e->requests.tail, cn_engine_request, node)->rules.bad;
        const cn_status status = cn_engine_submit(e, &one, fn, user, NULL);
        if (status == CN_OK) continue;
        while (e->next_id > next_id) {
            cn_engine_drop_request(e, CN_CONTAINER_OF(e->requests.tail, cn_engine_request, node));
            e->next_id--;
        }
        return n > 1 ? cn_fail_within(status, "prompt %zu of %zu", i + 1, n) : status;
    }
    return CN_OK;
}

/* ---- deliver and leave ---- */

static void usage_of(const cn_sample *s, cn_usage *u)
{
    const cn_seq *seq = s->seq;
    *u = (cn_usage){
        .prompt_tokens = seq->n_prompt,
        .cached_tokens = seq->n_cached_tokens,
        .completion_tokens = s->request->no_output ? 0 : seq->n_tokens - seq->n_prompt,
        .preemptions = seq->preemptions,
        .recomputed_tokens = seq->recomputed_tokens,
        .kv = seq->usage_kv,
    };
    if (s->output) cn_output_usage(s->output, u);
}

/* The scheduler takes back the sample's blocks and slot at once. This is safe although a step in
 * flight may still write there: work enqueued later runs after that step. The sequence itself
 * stays until the tokens of that step are read. */
static void end_sample(cn_engine *e, cn_sample *s)
{
    if (s->count_slot >= 0) e->count_owner[s->count_slot] = NULL;
    s->count_slot = -1;
    s->done = true;
    cn_structure_end_late(e, s);
    cn_scheduler_finish(e->scheduler, s->seq);
    s->request->n_live--;
}

void cn_engine_drop_request(cn_engine *e, cn_engine_request *r)
{
    for (uint32_t i = 0; i < r->n_samples; i++) {
        if (!r->samples[i].done) end_sample(e, &r->samples[i]);
        cn_scheduler_release(e->scheduler, r->samples[i].seq);
    }
    e->n_scored -= r->scores != NULL;
    e->n_away_forms -= r->is_away;
    e->n_unready -= r->is_unready;
    cn_list_remove(&e->requests, &r->node);
    free_request(e, r);
}

/* Drops the request if all its samples have ended and no step in flight refers to one. */
static void drop_if_over(cn_engine *e, cn_engine_request *r)
{
    uint32_t n_in_flight = 0;
    for (uint32_t i = 0; i < r->n_samples; i++) n_in_flight += r->samples[i].n_in_flight;
    if (r->n_live == 0 && n_in_flight == 0) cn_engine_drop_request(e, r);
}

void cn_engine_land_sample(cn_engine *e, cn_sample *sample)
{
    sample->n_in_flight--;
    drop_if_over(e, sample->request);
}

/* Returns the field that an error of the sample is about, or NULL. */
static const char *param_at_fault(const cn_sample *s)
{
    const cn_engine_request *r = s->request;
    if (r->is_refused) return *r->refused_param ? r->refused_param : NULL;
    return s->mask_error && r->grammar ? "structured_outputs" : NULL;
}

/* Delivers the sample's new output. Ends the sample unless finish is CN_FINISH_NONE. The callback
 * may submit and cancel requests, including this one. */
void cn_engine_deliver(cn_engine *e, cn_sample *sample, cn_finish finish, const char *error)
{
    cn_engine_request *r = sample->request;
    cn_usage usage;
    cn_event ev = {.request = r->id,
                   .sample = sample->seq->sample,
                   .prompt = sample->seq->tokens,
                   .n_prompt = sample->seq->n_prompt,
                   .error = error,
                   .invalid = error && (sample->mask_error || r->is_refused),
                   .param = param_at_fault(sample),
                   .warnings = r->grammar ? cn_grammar_warnings(r->grammar) : NULL,
                   .waited_s = (r->admitted_s > 0 ? r->admitted_s : cn_now_s()) - r->submitted_s};
    if (r->scores && r->scores->n == r->scores->n_prompt) ev.prompt_logprobs = r->scores->tokens;
    if (finish != CN_FINISH_NONE) {
        cn_scheduler_finish(e->scheduler, sample->seq); /* before usage_of: completes the usage */
        usage_of(sample, &usage);
        ev.usage = &usage;
        end_sample(e, sample);
        ev.last = r->n_live == 0;
    }
    if (sample->output)
        cn_output_take(sample->output, finish, &ev);
    else
        ev.text = ev.reasoning = "", ev.stop_token = -1;
    ev.finish = finish;
    if (ev.n_tokens == 0 && finish == CN_FINISH_NONE) return;
    if (ev.last) e->stats->requests_done++;
    r->fn(r->user, &ev);
}

void cn_engine_fail_sample(cn_engine *e, cn_sample *sample, const char *error)
{
    cn_engine_request *r = sample->request;
    cn_engine_deliver(e, sample, CN_FINISH_ERROR, error);
    drop_if_over(e, r);
}

void cn_engine_cancel(cn_engine *e, uint64_t request)
{
    CN_LIST_EACH(cn_engine_request, r, &e->requests, node) {
        if (r->id == request) r->cancelled = true;
    }
}

void cn_engine_sweep_cancelled(cn_engine *e)
{
    /* A callback may append requests but never removes one. */
    CN_LIST_EACH_SAFE(cn_engine_request, r, &e->requests, node) {
        if (!r->cancelled) continue;
        for (uint32_t i = 0; i < r->n_samples; i++)
            if (!r->samples[i].done)
                cn_engine_deliver(e, &r->samples[i], CN_FINISH_CANCELLED, NULL);
        drop_if_over(e, r);
    }
}
