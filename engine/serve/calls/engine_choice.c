/* engine_choice.c - which of several engines gets a request. See service_state.h.
 *
 * 1. An engine that can seat the request now goes before one that would have to preempt a batch
 *    request for it, that before one where it waits, then one whose step is long, then one whose
 *    queue is full. An engine that failed, or whose step does not end, gets none. Of requests that
 *    may make engines fail each goes to another engine.
 * 2. Of these, the one whose prefix cache has the longest part of the prompt, if that is a third of
 *    it and the engine has not much more to do than the others.
 * 3. Else the one with the least load: the tokens of its requests, and for each sample those that
 *    it will still make, as many as the mean answer. If batch requests can be preempted for this
 *    one, they do not count. Equal engines take turns.
 * Loads are exact: what is on its way to an engine is part of its load. What its cache has is not
 * (paged/prefix_marks.h), which may cost time and never changes an answer. */

#include "engine/serve/calls/service_state.h"

enum {
    FIRST_MEAN_TOKENS = 256, /* of an answer, before one has ended */
    LEAST_PART = 3,          /* of the prompt: a third */
    MORE_SAMPLES = 64        /* beside MORE_LOAD, what a prefix is worth */
};
static const double MORE_LOAD = 1.5;
static const double SLOW_S = 2; /* a turn that lasts longer may be the begin of a stall */

typedef enum rank { SEATED, PREEMPTS, WAITS, RISKS, SLOW, FULL, STALLED, FAILED } rank;

bool cn_engine_is_up(const cn_service_lane *at)
{
    const double stall_s = at->service->stall_s;
    return !cn_lane_failure(&at->lane) &&
           (stall_s == 0 || cn_lane_turn_s(&at->lane, cn_now_s()) <= stall_s);
}

static bool may_end_engine(const cn_call *call) { return call->n_lost + 1 == CN_CALL_MOST_LOST; }

/* The least samples of a class that wait: after its last step, and of all that it has now. */
static uint32_t n_waiting(const cn_service_lane *at, const cn_stats *stats, cn_class klass)
{
    const uint32_t seats = at->service->config->max_num_seqs;
    const uint32_t all = atomic_load(&at->load.samples[klass]);
    const uint32_t waited = klass == CN_CLASS_BATCH ? stats->waiting - stats->waiting_interactive
                                                    : stats->waiting_interactive;
    return cn_max_u32(waited, all > seats ? all - seats : 0);
}

static rank rank_of(cn_service_lane *at, const cn_call *call)
{
    cn_stats stats;
    const uint32_t queue = at->service->config->max_queue;
    const uint32_t seats = at->service->config->max_num_seqs;
    const uint32_t interactive = atomic_load(&at->load.samples[CN_CLASS_INTERACTIVE]);
    const uint32_t all = interactive + atomic_load(&at->load.samples[CN_CLASS_BATCH]);
    if (cn_lane_failure(&at->lane)) return FAILED;
    if (!cn_engine_is_up(at)) return STALLED;
    cn_lane_stats(&at->lane, &stats);
    if (n_waiting(at, &stats, call->klass) + call->load_samples > queue) return FULL;
    if (cn_lane_turn_s(&at->lane, cn_now_s()) > SLOW_S) return SLOW;
    if (may_end_engine(call) && atomic_load(&at->load.suspects) > 0) return RISKS;
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

/* ---- prefixes ---- */

/* Writes the leading blocks of the prompt that each engine has. Of several prompts, the first. */
static void count_hits(const cn_service *s, const cn_call *call, uint32_t hits[CN_MAX_DEVICES])
{
    const cn_engine *first = s->engines.at[0];
    const uint32_t b = cn_engine_block_tokens(first);
    const cn_tokens *prompt = &call->tokens[0];
    uint64_t hash = cn_engine_prefix_root(first, call->owner);
    bool any = cn_engine_prefix_marks(first) != NULL;
    memset(hits, 0, CN_MAX_DEVICES * sizeof *hits);
    for (uint32_t n = 0; any && n < prompt->len / b; n++) {
        hash = cn_prefix_hash(hash, prompt->ids + (size_t)n * b, b);
        any = false;
        for (uint32_t i = 0; i < s->n_lanes; i++) {
            if (hits[i] < n || !cn_prefix_marks_has(cn_engine_prefix_marks(s->engines.at[i]), hash))
                continue;
            hits[i]++;
            any = true;
        }
    }
}

/* ---- the choice ---- */

typedef struct candidate {
    cn_service_lane *at;
    rank rank;
    double load;
    uint32_t hit; /* blocks */
} candidate;

static candidate candidate_of(cn_service_lane *at, const cn_call *call, double mean, uint32_t hit)
{
    const rank r = rank_of(at, call);
    const bool before_batch = r != SEATED && call->klass == CN_CLASS_INTERACTIVE;
    return (candidate){at, r, load_of(at, before_batch, mean), hit};
}

static cn_service_lane *find_best(cn_service *s, const cn_call *call,
                                  const uint32_t hits[CN_MAX_DEVICES])
{
    const double mean = mean_output(s);
    const uint32_t n = s->n_lanes;
    candidate all[CN_MAX_DEVICES];
    const candidate *least = NULL, *cached = NULL;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = (s->next_lane + k) % n;
        all[k] = candidate_of(&s->lanes[i], call, mean, hits[i]);
        if (!least || all[k].rank < least->rank ||
            (all[k].rank == least->rank && all[k].load < least->load))
            least = &all[k];
    }
    const double most_load = MORE_LOAD * least->load + MORE_SAMPLES * mean;
    const size_t part = call->tokens[0].len / LEAST_PART, least_hit = part ? part : 1;
    for (const candidate *c = all; c < all + n; c++) {
        const uint64_t hit = (uint64_t)c->hit * cn_engine_block_tokens(c->at->lane.engine);
        if (c->rank != least->rank || c->load > most_load || hit < least_hit) continue;
        if (!cached || c->hit > cached->hit || (c->hit == cached->hit && c->load < cached->load))
            cached = c;
    }
    return cached ? cached->at : least->at;
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
    uint32_t hits[CN_MAX_DEVICES];
    if (s->n_lanes > 1) count_hits(s, call, hits);
    pthread_mutex_lock(&s->choice_lock);
    cn_service_lane *at = s->n_lanes == 1 ? &s->lanes[0] : find_best(s, call, hits);
    s->next_lane = at->lane.index + 1;
    atomic_fetch_add(&at->load.samples[call->klass], call->load_samples);
    atomic_fetch_add(&at->load.tokens[call->klass], call->load_tokens);
    call->load_suspect = may_end_engine(call);
    atomic_fetch_add(&at->load.suspects, call->load_suspect);
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
    atomic_fetch_sub(&at->load.suspects, call->load_suspect);
    call->load_samples = 0;
    call->load_tokens = 0;
    call->load_suspect = false;
}
