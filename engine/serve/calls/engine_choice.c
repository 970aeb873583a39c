/* engine_choice.c - which of several engines gets a request. See service_state.h.
 *
 * 1. An engine that can seat the request now goes before one that would have to preempt a batch
 *    request for it, and that before one where it waits. An engine that failed, or whose step does
 *    not end, gets none.
 * 2. Of these the one with the least load: the tokens of its requests, and for each sample those
 *    that it will still make, as many as the mean answer. If batch requests can be preempted for
 *    this one, they do not count. Equal engines take turns.
 * Counts are exact: what is on its way to an engine is part of its load. */
#include "engine/serve/calls/service_state.h"

enum { FIRST_MEAN_TOKENS = 256 }; /* of an answer, before one has ended */

typedef enum rank { SEATED, PREEMPTS, WAITS, STALLED, FAILED } rank;

bool cn_engine_is_up(const cn_service_lane *at)
{
    const double stall_s = at->service->stall_s;
    return !cn_lane_failure(&at->lane) &&
           (stall_s == 0 || cn_lane_turn_s(&at->lane, cn_now_s()) <= stall_s);
}

static rank rank_of(cn_service_lane *at, const cn_call *call)
{
    cn_stats stats;
    const uint32_t seats = at->service->config->max_num_seqs;
    const uint32_t interactive = atomic_load(&at->load.samples[CN_CLASS_INTERACTIVE]);
    const uint32_t all = interactive + atomic_load(&at->load.samples[CN_CLASS_BATCH]);
    if (cn_lane_failure(&at->lane)) return FAILED;
    if (!cn_engine_is_up(at)) return STALLED;
    cn_lane_stats(&at->lane, &stats);
    if (all + call->load_samples <= seats && stats.waiting + stats.swapped == 0) return SEATED;
    if (call->klass == CN_CLASS_INTERACTIVE && interactive + call->load_samples <= seats &&
        stats.waiting_interactive == 0)
        return PREEMPTS;
    return WAITS;
}

static double mean_output(cn_service *s)
{
    const cn_histogram *h =
        &cn_serve_stats_lock(s->serve_stats)->histograms[CN_HIST_OUTPUT_TOKENS];
    const double mean = h->n ? h->sum / (double)h->n : FIRST_MEAN_TOKENS;
    cn_serve_stats_unlock(s->serve_stats);
    return mean;
}

/* In tokens; of one class, or of all. */
static double load_of(const cn_service_lane *at, bool interactive_only, double mean)
{
    const cn_lane_load *l = &at->load;
    double sum = 0;
    for (int k = CN_CLASS_INTERACTIVE; k <= (interactive_only ? CN_CLASS_INTERACTIVE
                                                              : CN_CLASS_BATCH); k++)
        sum += (double)atomic_load(&l->tokens[k]) + mean * atomic_load(&l->samples[k]);
    return sum;
}

static cn_service_lane *find_best(cn_service *s, const cn_call *call)
{
    const double mean = mean_output(s);
    cn_service_lane *best = NULL;
    rank best_rank = FAILED;
    double best_load = 0;
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        cn_service_lane *at = &s->lanes[(s->next_lane + i) % s->n_lanes];
        const rank r = rank_of(at, call);
        const double load = load_of(at, r != SEATED && call->klass == CN_CLASS_INTERACTIVE, mean);
        if (best && (r > best_rank || (r == best_rank && load >= best_load))) continue;
        best = at;
        best_rank = r;
        best_load = load;
    }
    return best;
}

static uint64_t prompt_tokens(const cn_call *call)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < call->n_tokens; i++) n += call->tokens[i].len;
    return n;
}

cn_service_lane *cn_engine_choose(cn_service *s, cn_call *call)
{
    call->load_samples = call->request->params.sampling.n * call->request->n_prompts;
    call->load_tokens = prompt_tokens(call);
    pthread_mutex_lock(&s->choice_lock);
    cn_service_lane *at = s->n_lanes == 1 ? &s->lanes[0] : find_best(s, call);
    s->next_lane = at->lane.index + 1;
    atomic_fetch_add(&at->load.samples[call->klass], call->load_samples);
    atomic_fetch_add(&at->load.tokens[call->klass], call->load_tokens);
    pthread_mutex_unlock(&s->choice_lock);
    atomic_store(&call->at, at);
    return at;
}

void cn_engine_unload_sample(cn_call *call)
{
    cn_service_lane *at = atomic_load(&call->at);
    if (call->load_samples == 0) return;
    call->load_samples--;
    atomic_fetch_sub(&at->load.samples[call->klass], 1);
}

void cn_engine_unload(cn_call *call)
{
    cn_service_lane *at = atomic_load(&call->at);
    atomic_fetch_sub(&at->load.samples[call->klass], call->load_samples);
    atomic_fetch_sub(&at->load.tokens[call->klass], call->load_tokens);
    call->load_samples = 0;
    call->load_tokens = 0;
}
