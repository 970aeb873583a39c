/* sim_waits.c - checks that some sequence advances at every step, that no sequence is overtaken,
 * and that no wait exceeds the bounds of sim.h. */
#include "scheduler/sched_state.h"
#include "tests/sim/sim_world.h"

static bool ranks_before(const sim_seq *a, const sim_seq *b)
{
    if (a->klass != b->klass) return a->klass < b->klass;
    if (a->priority != b->priority) return a->priority < b->priority;
    return a->id < b->id;
}

static bool is_waiting(const sim_seq *q) { return q->live && q->seq->state == CN_SEQ_WAITING; }

static bool is_swapped(const sim_seq *q) { return q->live && q->seq->state == CN_SEQ_SWAPPED; }

static const sim_seq *find_foremost(const sim_world *w, bool waiting)
{
    const sim_seq *best = NULL;
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) {
        const sim_seq *q = &w->seqs[i];
        if (!q->live || (waiting && !is_waiting(q))) continue;
        if (!best || ranks_before(q, best)) best = q;
    }
    return best;
}

/* Most steps that a sequence can take: one per token, and two to read the last one and end. */
static uint64_t work_left(const sim_seq *q) { return q->max_tokens - q->seq->n_computed + 2; }

static bool is_running(const sim_seq *q)
{
    return q->live && (q->seq->state == CN_SEQ_RUNNING || q->seq->state == CN_SEQ_COMPRESSING);
}

/* Returns true also when q was preempted and admitted again since the last check: it recomputes its
 * tokens, one a step where they are decoded apart. */
static bool has_entered(const sim_seq *q)
{
    return !q->was_running || q->seq->preemptions > q->n_preemptions;
}

/* The work left of all running sequences, or with `entered` only of those that have entered since
 * the last check: forks of a running leader and requests that rank before the waiting one. */
static uint64_t running_work(const sim_world *w, bool entered)
{
    uint64_t work = 0;
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) {
        const sim_seq *q = &w->seqs[i];
        if (is_running(q) && (!entered || has_entered(q))) work += work_left(q);
    }
    return work;
}

/* Interactive sequences go first, until as many as the floor have passed; then a batch sequence is
 * next. A sequence that returns from the swap space takes the turn of a batch sequence, before any
 * from the queue.
 * The check does not see the order of events inside a step: admissions of both classes, preemption
 * and readmission, and whether a sample was forked or admitted in place of its leader. It therefore
 * knows the number of passed sequences only as a range. */

/* Returns true when a waiting interactive sequence lacks home blocks. Sequences in the swap space
 * then return before it, because they keep their home blocks. */
static bool lacks_home(const sim_world *w)
{
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) {
        const sim_seq *q = &w->seqs[i];
        if (is_waiting(q) && q->klass == CN_CLASS_INTERACTIVE && cn_sched_lacks_home(q->seq))
            return true;
    }
    return false;
}

bool sim_check_admissions(sim_world *w)
{
    uint32_t admitted[2] = {0}, left[2] = {0}, n_swapped = 0, n_entered = 0;
    uint32_t unseen = (uint32_t)(w->s->stats.preemptions - w->last_preemptions);
    const uint32_t floor = w->engine.batch_floor;
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) {
        const sim_seq *q = &w->seqs[i];
        if (q->live && (q->was_waiting || q->was_swapped))
            (is_waiting(q) || is_swapped(q) ? left : admitted)[q->klass]++;
        else
            unseen += is_running(q) && !q->was_running;
        n_swapped += q->live && q->was_swapped && is_swapped(q);
        n_entered += q->live && q->klass == CN_CLASS_BATCH && q->was_waiting && is_running(q);
    }
    if (n_swapped > 0 && n_entered > 0)
        return sim_fail(w, "%u batch sequences were admitted past %u in the swap space", n_entered,
                        n_swapped);
    const uint32_t passing = admitted[CN_CLASS_INTERACTIVE], batch = admitted[CN_CLASS_BATCH];
    const bool aged = w->was_aged || w->s->aged.n > 0;
    w->last_preemptions = w->s->stats.preemptions;
    w->was_aged = w->s->aged.n > 0;
    w->passed_most += passing + unseen;
    if (batch > 0 && left[CN_CLASS_INTERACTIVE] > 0) {
        const bool returns = n_entered == 0 && lacks_home(w);
        w->r->home_returns += returns ? batch : 0;
        if (!returns && (floor == 0 || w->passed_most < floor * batch))
            return sim_fail(w, "%u batch sequences were admitted past an interactive one", batch);
        w->r->batch_turns += batch;
    }
    if (batch > 0) w->passed_most = passing + unseen;
    const bool certain = left[CN_CLASS_BATCH] > 0 && batch == 0 && unseen == 0 && !aged;
    w->passed_least = certain ? w->passed_least + passing : 0;
    return floor == 0 || w->passed_least <= floor ||
           sim_fail(w, "%u interactive sequences passed batch ones: the floor is %u",
                    w->passed_least, floor);
}

static bool check_overtaking(sim_world *w)
{
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) {
        const sim_seq *q = &w->seqs[i];
        if (!q->live || !q->was_waiting || is_waiting(q)) continue;
        for (uint32_t j = 0; j < SIM_MAX_LIVE; j++) {
            const sim_seq *other = &w->seqs[j];
            if (other->klass != q->klass) continue; /* checked by sim_check_admissions */
            if (other->owner != q->owner && other->priority == q->priority)
                continue; /* checked by check_shares */
            if (is_waiting(other) && other->was_waiting && ranks_before(other, q))
                return sim_fail(w, "sequence %llu was admitted past %llu",
                                (unsigned long long)q->id, (unsigned long long)other->id);
        }
    }
    return true;
}

/* The least and the most tokens that the running sequences of an owner can have had when the last
 * plan admitted sequences. */
static uint64_t least_load(const sim_world *w, uint32_t owner)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) {
        const sim_seq *q = &w->seqs[i];
        if (is_running(q) && q->owner == owner && !has_entered(q)) n += cn_seq_known(q->seq) - 1;
    }
    return n;
}

static uint64_t most_load(const sim_world *w, uint32_t owner)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++)
        if (is_running(&w->seqs[i]) && w->seqs[i].owner == owner) n += cn_seq_known(w->seqs[i].seq);
    return n;
}

/* An owner that got a sequence admitted past one of another owner must not have had more running
 * tokens. The check sees the sequences after the step: those of the passed owner may have ended or
 * been preempted meanwhile, so it compares only in steps in which nothing left. A sequence that has
 * ended counts until the commit of its event, but the check does not see it. */
static bool check_shares(sim_world *w)
{
    bool left = w->n_left != w->last_left || w->s->stats.preemptions != w->shares_preemptions ||
                w->s->stats.swap_outs + w->s->stats.swap_ins != w->shares_swaps;
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) left |= w->seqs[i].used && !w->seqs[i].live;
    w->last_left = w->n_left;
    w->shares_preemptions = w->s->stats.preemptions;
    w->shares_swaps = w->s->stats.swap_outs + w->s->stats.swap_ins;
    for (uint32_t i = 0; i < SIM_MAX_LIVE && !left && w->s->aged.n == 0; i++) {
        const sim_seq *q = &w->seqs[i];
        if (!q->live || !q->was_waiting || !is_running(q)) continue;
        for (uint32_t j = 0; j < SIM_MAX_LIVE; j++) {
            const sim_seq *other = &w->seqs[j];
            if (!is_waiting(other) || !other->was_waiting || other->klass != q->klass ||
                other->owner == q->owner || other->priority != q->priority)
                continue;
            w->r->shares_checked++;
            if (least_load(w, q->owner) > most_load(w, other->owner))
                return sim_fail(w, "owner %u got sequence %llu admitted past %llu of owner %u",
                                q->owner, (unsigned long long)q->id,
                                (unsigned long long)other->id, other->owner);
        }
    }
    return true;
}

/* Blocks belong to one owner, unless prefixes are shared. */
static bool check_owners_apart(sim_world *w)
{
    static uint32_t owner_of[1 << 16];
    static uint64_t seen[1 << 16], round;
    round++;
    if (w->engine.share_prefixes) return true;
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) {
        const sim_seq *q = &w->seqs[i];
        for (uint32_t b = 0; is_running(q) && b < q->seq->n_blocks; b++) {
            const uint32_t block = q->seq->table[b];
            if (seen[block] == round && owner_of[block] != q->owner)
                return sim_fail(w, "block %u belongs to owners %u and %u", block, q->owner,
                                owner_of[block]);
            seen[block] = round;
            owner_of[block] = q->owner;
        }
    }
    return true;
}

static bool check_head(sim_world *w)
{
    const sim_seq *head = find_foremost(w, true);
    if (!head || head->id != w->head_id) {
        w->head_id = head ? head->id : 0;
        w->head_waited = 0;
        w->head_bound = 2 + running_work(w, false);
        return true;
    }
    w->head_bound += running_work(w, true);
    w->head_waited += w->n_events == 0;
    if (w->head_waited > w->r->longest_head_wait) w->r->longest_head_wait = w->head_waited;
    if (w->head_waited <= w->head_bound) return true;
    return sim_fail(w, "sequence %llu, the foremost waiting one, has waited %llu steps",
                    (unsigned long long)head->id, (unsigned long long)w->head_waited);
}

static bool check_foremost(sim_world *w)
{
    const sim_seq *q = find_foremost(w, false);
    if (!q || q->id != w->foremost_id) {
        w->foremost_id = q ? q->id : 0;
        w->foremost_waited = 0;
        return true;
    }
    w->foremost_waited += w->n_events == 0;
    if (w->foremost_waited > w->r->longest_foremost) w->r->longest_foremost = w->foremost_waited;
    uint64_t bound =
        (uint64_t)(CN_AGED_PREEMPTIONS + 2) * (w->engine.max_seqs + 1) * w->engine.max_model_len;
    if (w->foremost_waited <= bound) return true;
    return sim_fail(w, "sequence %llu, the foremost, has not ended in %llu steps",
                    (unsigned long long)q->id, (unsigned long long)w->foremost_waited);
}

bool sim_check_waits(sim_world *w)
{
    bool waits_for_device = w->n_events > 0 || w->n_unread > 0;
    w->n_idle = w->moved || waits_for_device || w->n_live == 0 ? 0 : w->n_idle + 1;
    if (w->n_idle > 2) return sim_fail(w, "deadlock: none of %u sequences advances", w->n_live);
    bool good = check_overtaking(w) && check_shares(w) && check_owners_apart(w) && check_head(w) &&
                check_foremost(w);
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) {
        w->seqs[i].was_waiting = is_waiting(&w->seqs[i]);
        w->seqs[i].was_running = is_running(&w->seqs[i]);
        w->seqs[i].was_swapped = is_swapped(&w->seqs[i]);
        w->seqs[i].n_preemptions = w->seqs[i].live ? w->seqs[i].seq->preemptions : 0;
    }
    return good;
}
