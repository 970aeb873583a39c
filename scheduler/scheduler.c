/* scheduler.c - adds, extends, finishes and releases sequences; reports statistics.
 * See scheduler.h and sched_state.h. */
#include "scheduler/sched_state.h"

typedef struct seq_mem {
    cn_seq seq;
    cn_seq_sched sched;
} seq_mem;

static cn_status check_opts(const cn_sched_opts *o)
{
    if (o->block_tokens == 0 || (o->block_tokens & (o->block_tokens - 1)) != 0)
        return cn_fail(CN_ERR_ARG, "block size %u: expected a power of two", o->block_tokens);
    if (o->max_seqs == 0 || o->max_batched_tokens == 0 || o->max_model_len < 2)
        return cn_fail(CN_ERR_ARG,
                       "limits of %u requests, %u tokens per step and %u tokens per request: "
                       "expected at least 1, 1 and 2",
                       o->max_seqs, o->max_batched_tokens, o->max_model_len);
    if (!o->chunked_prefill && o->max_batched_tokens < o->max_model_len)
        return cn_fail(CN_ERR_ARG,
                       "without chunked prefill a step must fit a whole prompt: raise "
                       "--max-num-batched-tokens from %u to --max-model-len (%u), or enable "
                       "chunked prefill",
                       o->max_batched_tokens, o->max_model_len);
    return CN_OK;
}

static cn_status create_scheduler_parts(cn_scheduler *s)
{
    const cn_sched_opts *o = &s->o;
    CN_TRY(cn_space_init(&s->device, o->n_blocks, o->n_query_slots));
    if (o->prefix_caching)
        CN_TRY(
            cn_prefix_cache_create(&s->prefix, s->device.blocks, o->block_tokens, o->model_hash));
    CN_TRY(cn_sched_swap_init(&s->swap, o->n_swap_blocks, o->n_swap_windows));
    CN_TRY(cn_sched_home_init(s));
    uint32_t n_checked = o->n_blocks;
    for (int h = 0; h < CN_N_HOMES; h++)
        n_checked = cn_max_u32(n_checked, cn_space_total_blocks(&s->home[h]));
    s->begun = cn_calloc(o->max_seqs, sizeof *s->begun);
    s->done = cn_calloc(o->max_seqs, sizeof *s->done);
    s->puts = cn_calloc(o->max_seqs, sizeof *s->puts);
    s->rows = cn_calloc(o->max_seqs, sizeof *s->rows);
    s->block_copies = cn_calloc(o->max_seqs, sizeof *s->block_copies);
    s->slot_copies = cn_calloc(o->max_seqs, sizeof *s->slot_copies);
    s->forks = cn_calloc(o->max_seqs, sizeof *s->forks);
    s->fork_leaders = cn_calloc(o->max_seqs, sizeof *s->fork_leaders);
    s->check_refs = cn_calloc(n_checked, sizeof *s->check_refs);
    s->hit_blocks =
        cn_calloc(cn_ceil_div(o->max_model_len, o->block_tokens), sizeof *s->hit_blocks);
    if (!s->begun || !s->done || !s->puts || !s->rows || !s->block_copies || !s->slot_copies ||
        !s->forks || !s->fork_leaders || !s->check_refs || !s->hit_blocks)
        return cn_fail(CN_ERR_MEMORY, "out of memory for a scheduler of %u requests", o->max_seqs);
    return CN_OK;
}

cn_status cn_scheduler_create(cn_scheduler **out, const cn_sched_opts *o)
{
    *out = NULL;
    CN_TRY(check_opts(o));
    cn_scheduler *s = cn_calloc(1, sizeof *s);
    if (!s) return cn_fail(CN_ERR_MEMORY, "out of memory for the scheduler");
    s->o = *o;
    /* The token budget of a step then always covers one token for each running sequence. */
    s->o.max_seqs = cn_min_u32(o->max_seqs, o->max_batched_tokens);
    if (o->n_swap_blocks == 0) s->o.n_swap_windows = 0;
    s->stats = (cn_stats){.block_tokens = o->block_tokens,
                          .block_bytes = o->block_bytes,
                          .blocks_total = o->n_blocks,
                          .slots_total = o->n_query_slots,
                          .swap_blocks_total = s->o.n_swap_blocks,
                          .swap_windows_total = s->o.n_swap_windows};
    s->all.link = CN_LINK_ALL;
    s->running.link = CN_LINK_RUNNING;
    s->aged.link = CN_LINK_AGED;
    for (int h = 0; h < CN_N_HOLDS; h++) s->by_hold[h].link = CN_LINK_HOLD;
    for (int c = 0; c < 2; c++) s->waiting[c].by_priority = o->priority_order;
    cn_status status = create_scheduler_parts(s);
    if (status != CN_OK) {
        cn_scheduler_free(s);
        return status;
    }
    *out = s;
    return CN_OK;
}

void cn_scheduler_free(cn_scheduler *s)
{
    if (!s) return;
    while (s->all.head) cn_sched_destroy_seq(s, s->all.head);
    for (int c = 0; c < 2; c++) cn_queue_free(&s->waiting[c]);
    cn_sched_swap_free(&s->swap);
    cn_sched_home_free(s);
    cn_prefix_cache_free(s->prefix);
    cn_space_free(&s->device);
    cn_free(s->begun);
    cn_free(s->done);
    cn_free(s->puts);
    cn_free(s->rows);
    cn_free(s->block_copies);
    cn_free(s->slot_copies);
    cn_free(s->forks);
    cn_free(s->fork_leaders);
    cn_free(s->check_refs);
    cn_free(s->hit_blocks);
    cn_free(s->owners);
    cn_free(s);
}

/* The most that a request can hold, from its lengths and its policy, with each home that it may
 * have; and the sizes of its arrays, the largest of any home. */
typedef struct seq_shape {
    cn_seq_form forms[CN_N_HOMES];
    uint32_t homes; /* bit i is cn_kv_home i */
    bool chooses;   /* home `auto` */
    uint32_t max_tokens;
    cn_seq_room room;
} seq_shape;

/* Checks the policy and the selector against the engine's limits and rounds their sizes up. */
static cn_status check_policy_and_selector(const cn_sched_opts *o, cn_kv_params *kv)
{
    CN_TRY(cn_away_check(kv, o->block_tokens));
    CN_TRY(cn_selector_check(kv, o->block_tokens, &o->select_most));
    CN_TRY(cn_policy_check(kv, o->block_tokens, o->window_tokens));
    if (cn_policy_needs_slot(kv) && o->n_query_slots == 0)
        return cn_fail(CN_ERR_ARG,
                       "kv policy %s needs query slots, but the engine has none; declare the "
                       "policy with --kv-policies",
                       cn_kv_policy_name(kv->policy));
    const uint32_t n_rows = o->n_query_slots > 0 ? o->window_tokens : 0;
    if (cn_ring_rows(kv) <= n_rows) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "kv select %s needs query slots of %u rows, but the engine's have %u; declare "
                   "the selector with --kv-selectors",
                   cn_kv_select_name(kv->select), cn_ring_rows(kv), n_rows);
}

/* Sets the home blocks of a request with KV elsewhere. One that ends before its first event needs
 * none. */
static cn_status check_form_home(const cn_scheduler *s, const cn_group_params *p, cn_seq_form *form)
{
    const char *name = cn_kv_home_kind(&form->kv)->name;
    form->n_home = 0;
    if (!cn_kv_is_away(&form->kv)) return CN_OK;
    const uint32_t n_blocks = cn_space_total_blocks(form->home);
    if (n_blocks == 0)
        return cn_fail(CN_ERR_ARG,
                       "kv home %s, but the engine has no such home; declare it with --kv-homes",
                       name);
    if (form->trigger == CN_NEVER) return CN_OK;
    const uint32_t max_tokens = cn_min_u32(p->n_prompt + p->max_output, s->o.max_model_len);
    form->n_home = (uint32_t)cn_ceil_div(max_tokens, s->o.block_tokens);
    if (form->n_home <= n_blocks) return CN_OK;
    return cn_fail_param("max_tokens",
                         "prompt of %u tokens and output of %u need %u blocks of %u tokens in kv "
                         "home %s, which has %u; shorten one of them or raise --home-space "
                         "(--host-space)",
                         p->n_prompt, p->max_output, form->n_home, s->o.block_tokens, name,
                         n_blocks);
}

/* Derives the other fields from form->kv. CN_ERR_ARG: the request is too large. */
static cn_status check_seq_form(const cn_scheduler *s, const cn_group_params *p, cn_seq_form *form)
{
    const cn_sched_opts *o = &s->o;
    const uint32_t max_tokens = p->n_prompt + p->max_output;
    /* A request never reaches a cap above the context length, so n_max stops at that length. */
    const uint32_t longest_blocks = (uint32_t)cn_ceil_div(o->max_model_len, o->block_tokens);
    form->n_max = cn_min_u32(cn_away_n_max(&form->kv, o->block_tokens), longest_blocks);
    if (form->n_max > o->n_blocks)
        return cn_fail(CN_ERR_ARG,
                       "kv budget of %u tokens: its block cap of %u exceeds the pool of %u blocks "
                       "of %u tokens; lower the budget, or raise --kv-cache-memory-bytes (or "
                       "--num-gpu-blocks-override)",
                       form->kv.budget_tokens, form->n_max, o->n_blocks, o->block_tokens);
    form->trigger = cn_policy_first_trigger(form->n_max, p->n_prompt, o->block_tokens);
    if (form->trigger >= max_tokens - 1) form->trigger = CN_NEVER;
    uint32_t n_slots = form->trigger == CN_NEVER ? max_tokens - 1 : form->trigger;
    form->max_blocks = (uint32_t)cn_ceil_div(n_slots, o->block_tokens);
    if (form->max_blocks > o->n_blocks)
        return cn_fail_param("max_tokens",
                             "prompt of %u tokens and output of %u under policy %s may need %u KV "
                             "blocks of %u tokens, but the pool has %u; shorten one of them, or "
                             "raise --kv-cache-memory-bytes (or --num-gpu-blocks-override)",
                             p->n_prompt, p->max_output, cn_kv_policy_name(form->kv.policy),
                             form->max_blocks, o->block_tokens, o->n_blocks);
    return check_form_home(s, p, form);
}

/* Checks the request with each home that it may have. With home `auto` the parameters must be valid
 * for each home, and the request must fit with one of them; the error is that of the first. */
static cn_status check_group_forms(const cn_scheduler *s, const cn_group_params *p,
                                   seq_shape *shape)
{
    const uint32_t homes = cn_kv_homes(&p->kv, s->o.auto_homes);
    cn_status status = CN_ERR_ARG;
    shape->chooses = cn_kv_home_kind(&p->kv)->is_chosen;
    shape->homes = 0;
    if (homes == 0 && shape->chooses)
        return cn_fail(CN_ERR_ARG, "kv home auto, but the engine has no home to choose");
    if (homes == 0)
        return check_policy_and_selector(&s->o, &(cn_kv_params){.home = p->kv.home}); /* no home */
    for (int h = CN_N_HOMES; h-- > 0;) {
        if (!(homes >> h & 1)) continue;
        cn_seq_form form = {.kv = cn_away_form(&p->kv, (cn_kv_home)h), .home = &s->home[h]};
        CN_TRY(check_policy_and_selector(&s->o, &form.kv));
        status = check_seq_form(s, p, &form);
        if (status != CN_OK) continue;
        shape->forms[h] = form;
        shape->homes |= 1U << h;
    }
    if (shape->homes == 0) return status;
    if (!(shape->homes >> CN_HOME_DEVICE & 1)) return CN_OK;
    /* A request that ends before its first event would gain nothing elsewhere, and a slow home
     * would only delay it. */
    for (int h = 0; h < CN_N_HOMES; h++)
        if (h != CN_HOME_DEVICE && (shape->forms[h].n_home == 0 || s->o.slow_homes >> h & 1))
            shape->homes &= ~(1U << h);
    return CN_OK;
}

static cn_status check_group(const cn_scheduler *s, const cn_group_params *p, seq_shape *shape)
{
    const cn_sched_opts *o = &s->o;
    if (p->n_prompt == 0 || p->max_output == 0 || p->n == 0)
        return cn_fail(CN_ERR_ARG,
                       "%u prompt tokens, %u output tokens, %u samples: expected at least one of "
                       "each",
                       p->n_prompt, p->max_output, p->n);
    /* The last token of the output is not computed, so one always fits. */
    if (p->n_prompt > o->max_model_len ||
        p->max_output > cn_max_u32(o->max_model_len - p->n_prompt, 1))
        return cn_fail(CN_ERR_ARG,
                       "prompt of %u tokens and output of %u exceed the context length of %u: "
                       "shorten one of them or raise --max-model-len",
                       p->n_prompt, p->max_output, o->max_model_len);
    *shape = (seq_shape){.max_tokens = p->n_prompt + p->max_output};
    CN_TRY(check_group_forms(s, p, shape));
    for (int h = 0; h < CN_N_HOMES; h++) {
        const cn_seq_form *form = &shape->forms[h];
        if (!(shape->homes >> h & 1)) continue;
        cn_seq_room *room = &shape->room;
        room->table = cn_max_u32(room->table, form->max_blocks);
        room->target = cn_max_u32(room->target, form->n_max);
        room->home = cn_max_u32(room->home, form->n_home);
    }
    return CN_OK;
}

cn_status cn_scheduler_need(const cn_scheduler *s, const cn_group_params *p, cn_group_need *need)
{
    seq_shape shape;
    CN_TRY(check_group(s, p, &shape));
    int h = 0;
    while (!(shape.homes >> h & 1)) h++;
    const cn_seq_form *f = &shape.forms[h];
    *need = (cn_group_need){.blocks = f->max_blocks,
                            .held_blocks = f->trigger == CN_NEVER ? f->max_blocks : f->n_max,
                            .home = (cn_kv_home)h,
                            .home_blocks = f->n_home};
    return CN_OK;
}

static cn_group_prompt *create_prompt(const cn_group_params *p)
{
    cn_group_prompt *prompt =
        cn_calloc(1, sizeof *prompt + p->n_prompt * sizeof *prompt->tokens);
    if (prompt) memcpy(prompt->tokens, p->prompt, p->n_prompt * sizeof *prompt->tokens);
    return prompt;
}

static void drop_prompt(cn_seq *q)
{
    if (--q->sched->prompt->refs == 0) cn_free(q->sched->prompt);
    q->sched->prompt = NULL;
}

bool cn_sched_try_buffers(cn_scheduler *s, cn_seq *q)
{
    cn_seq_sched *st = q->sched;
    if (!st->prompt) return true;
    const size_t n_puts = st->room.home > 0 ? st->room.table : 0;
    const size_t n = (size_t)q->max_tokens + st->room.table + st->room.target + st->room.home +
                     n_puts * (sizeof(cn_block_copy) / sizeof(uint32_t));
    uint32_t *arrays = cn_calloc(n, sizeof *arrays);
    if (!arrays) {
        s->starved = q;
        return false;
    }
    s->n_buffered++;
    memcpy(arrays, q->tokens, q->n_prompt * sizeof *arrays);
    drop_prompt(q);
    q->tokens = arrays;
    q->table = q->tokens + q->max_tokens;
    st->target = q->table + st->room.table;
    q->home_table = st->target + st->room.target;
    st->puts = (cn_block_copy *)(void *)(q->home_table + st->room.home);
    return true;
}

static cn_seq *create_seq(const cn_sched_opts *o, const cn_group_params *p, const seq_shape *shape,
                          cn_group_prompt *prompt)
{
    seq_mem *m = cn_calloc(1, sizeof *m);
    if (!m) return NULL;
    cn_seq *q = &m->seq;
    q->sched = &m->sched;
    q->sched->prompt = prompt;
    prompt->refs++;
    q->tokens = prompt->tokens;
    q->n_prompt = q->n_tokens = p->n_prompt;
    q->max_tokens = shape->max_tokens;
    q->klass = p->klass;
    q->priority = p->priority;
    q->owner = p->owner;
    q->skips_prefix = p->skips_prefix;
    q->query_slot = -1;
    q->sched->room = shape->room;
    q->sched->chooses = shape->chooses;
    q->sched->homes = shape->homes;
    memcpy(q->sched->forms, shape->forms, sizeof shape->forms);
    cn_kv_home first = CN_HOME_DEVICE;
    while (!(shape->homes >> first & 1)) first++;
    cn_seq_set_home(q, first);
    q->usage_kv.params = q->kv;
    if (shape->chooses) q->usage_kv.params.home = CN_HOME_AUTO; /* until it is admitted */
    q->sched->in_group = p->n > 1;
    q->sched->chain = cn_sched_root(o, q->owner);
    return q;
}

static void free_seq(cn_seq *q)
{
    if (q->sched->prompt)
        drop_prompt(q);
    else
        cn_free(q->tokens); /* the first of its arrays */
    cn_free(q); /* the first member of its allocation */
}

void cn_sched_destroy_seq(cn_scheduler *s, cn_seq *q)
{
    cn_seq_list_remove(&s->all, q);
    free_seq(q);
}

void cn_sched_enqueue(cn_scheduler *s, cn_seq *q)
{
    q->state = CN_SEQ_WAITING;
    cn_queue_push(&s->waiting[q->klass], q);
}

static void put_off_unready(cn_scheduler *s, cn_seq *q)
{
    q->state = CN_SEQ_UNREADY;
    s->n_unready[q->klass]++;
}

/* Finds the slot of an owner, or takes a free or a new one. */
static cn_status find_owner(cn_scheduler *s, uint32_t id, uint32_t *slot)
{
    uint32_t unused = s->n_owner_slots;
    for (*slot = 0; *slot < s->n_owner_slots; ++*slot) {
        if (s->owners[*slot].n_seqs == 0)
            unused = *slot;
        else if (s->owners[*slot].id == id)
            return CN_OK;
    }
    *slot = unused;
    if (unused == s->n_owner_slots) {
        CN_TRY(CN_ROOM(&s->owners, s->n_owner_slots, "the owners of requests"));
        s->n_owner_slots++;
    }
    s->owners[unused] = (cn_owner){.id = id};
    return CN_OK;
}

/* Creates the sequences of a group, or none. */
static cn_status create_group(const cn_scheduler *s, const cn_group_params *p,
                              const seq_shape *shape, cn_seq **seqs)
{
    cn_group_prompt *prompt = create_prompt(p);
    uint32_t n = 0;
    while (prompt && n < p->n && (seqs[n] = create_seq(&s->o, p, shape, prompt))) n++;
    if (n == p->n) return CN_OK;
    if (n == 0) cn_free(prompt);
    while (n > 0) free_seq(seqs[--n]);
    return cn_fail(CN_ERR_MEMORY, "out of memory for %u samples with a prompt of %u tokens", p->n,
                   p->n_prompt);
}

cn_status cn_scheduler_add(cn_scheduler *s, const cn_group_params *p, void *const *users,
                           cn_seq **seqs)
{
    seq_shape shape;
    CN_TRY(check_group(s, p, &shape));
    CN_ASSERT(p->klass == CN_CLASS_INTERACTIVE || p->klass == CN_CLASS_BATCH);
    if (p->n > UINT32_MAX - s->all.n)
        return cn_fail_param("n", "%u samples exceed the limit of the scheduler", p->n);
    uint32_t owner_slot;
    CN_TRY(cn_queue_reserve(&s->waiting[p->klass], s->all.n + p->n));
    CN_TRY(find_owner(s, p->owner, &owner_slot));
    CN_TRY(create_group(s, p, &shape, seqs));
    s->n_owners += s->owners[owner_slot].n_seqs == 0;
    s->owners[owner_slot].n_seqs += p->n;
    for (uint32_t i = 0; i < p->n; i++) {
        cn_seq *q = seqs[i];
        q->sched->owner_slot = owner_slot;
        q->id = ++s->last_seq_id;
        q->sample = i;
        q->user = users ? users[i] : NULL;
        cn_seq_list_append(&s->all, q);
        s->n_in_group += q->sched->in_group;
        if (i == 0) continue;
        q->state = CN_SEQ_FORKING;
        q->sched->leader = seqs[0];
        q->sched->next_sample = i + 1 < p->n ? seqs[i + 1] : NULL;
    }
    seqs[0]->sched->samples = p->n > 1 ? seqs[1] : NULL;
    s->n_forking[p->klass] += p->n - 1;
    if (p->unready)
        put_off_unready(s, seqs[0]);
    else
        cn_sched_enqueue(s, seqs[0]);
    return CN_OK;
}

void cn_scheduler_ready(cn_scheduler *s, cn_seq *q)
{
    CN_ASSERT(q->state == CN_SEQ_UNREADY);
    s->n_unready[q->klass]--;
    cn_sched_enqueue(s, q);
}

void cn_seq_append(cn_seq *q, uint32_t token)
{
    if (q->state == CN_SEQ_FINISHED || q->sched->ending) return;
    CN_ASSERT(q->n_pending > 0 && q->n_tokens < q->max_tokens);
    q->tokens[q->n_tokens++] = token;
    q->n_pending--;
}

void cn_seq_take_back(cn_seq *q)
{
    CN_ASSERT(q->state == CN_SEQ_RUNNING && q->n_pending == 1 && q->n_computed == q->n_tokens);
    CN_ASSERT(q->n_tokens > q->n_prompt && q->home_len == 0);
    q->n_pending = 0;
    q->n_computed--;
    q->n_resident--;
}

/* If a leader ends before its prefill does, its first sample becomes the leader of the others. */
static void promote_sample(cn_scheduler *s, cn_seq *leader, bool unready)
{
    cn_seq *first = leader->sched->samples;
    if (!first) return;
    leader->sched->samples = NULL;
    first->sched->samples = first->sched->next_sample;
    first->sched->next_sample = NULL;
    first->sched->leader = NULL;
    first->sched->is_counted = leader->sched->is_counted;
    for (cn_seq *q = first->sched->samples; q; q = q->sched->next_sample) q->sched->leader = first;
    s->n_forking[first->klass]--;
    if (unready)
        put_off_unready(s, first);
    else
        cn_sched_enqueue(s, first);
}

static void leave_leader(cn_scheduler *s, cn_seq *q)
{
    cn_seq **link = &q->sched->leader->sched->samples;
    while (*link != q) link = &(*link)->sched->next_sample;
    *link = q->sched->next_sample;
    q->sched->next_sample = NULL;
    q->sched->leader = NULL;
    s->n_forking[q->klass]--;
}

void cn_sched_end(cn_scheduler *s, cn_seq *q)
{
    if (q->preemptions >= CN_AGED_PREEMPTIONS) cn_seq_list_remove(&s->aged, q);
    s->n_in_group -= q->sched->in_group;
    if (--s->owners[q->sched->owner_slot].n_seqs == 0) s->n_owners--;
    q->state = CN_SEQ_FINISHED;
}

void cn_scheduler_finish(cn_scheduler *s, cn_seq *q)
{
    const bool unready = q->state == CN_SEQ_UNREADY;
    switch (q->state) {
    case CN_SEQ_FINISHED: return;
    case CN_SEQ_COMPRESSING: q->sched->ending = true; return;
    case CN_SEQ_FORKING: leave_leader(s, q); break;
    case CN_SEQ_UNREADY: s->n_unready[q->klass]--; break;
    case CN_SEQ_WAITING: cn_queue_remove(&s->waiting[q->klass], q); break;
    case CN_SEQ_SWAPPED: cn_sched_swap_drop(s, q); break;
    case CN_SEQ_RUNNING:
        cn_sched_register(s, q);
        q->usage_kv.peak_tokens = cn_max_u32(q->usage_kv.peak_tokens,
                                             q->n_resident - (q->n_computed - cn_seq_settled(q)));
        cn_sched_leave(s, q);
        break;
    }
    promote_sample(s, q, unready);
    cn_sched_end(s, q);
}

void cn_scheduler_release(cn_scheduler *s, cn_seq *q)
{
    CN_ASSERT(q->state == CN_SEQ_FINISHED || q->sched->ending);
    if (q->state == CN_SEQ_FINISHED)
        cn_sched_destroy_seq(s, q);
    else
        q->sched->released = true;
}

/* Blocks that compressed sequences would hold without compression, minus those that they hold. */
static uint64_t count_spared(const cn_scheduler *s)
{
    uint64_t spared = 0;
    for (const cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q))
        if (q->usage_kv.compressions > 0) {
            const uint64_t whole = cn_ceil_div(q->n_computed, s->o.block_tokens);
            spared += whole > q->n_blocks ? whole - q->n_blocks : 0;
        }
    return spared;
}

const cn_prefix_marks *cn_scheduler_prefix_marks(const cn_scheduler *s)
{
    return s->prefix ? cn_prefix_cache_marks(s->prefix) : NULL;
}

uint64_t cn_scheduler_prefix_root(const cn_scheduler *s, uint32_t owner)
{
    return cn_sched_root(&s->o, owner);
}

uint32_t cn_scheduler_waiting_of(const cn_scheduler *s, cn_class klass)
{
    return s->waiting[klass].n + s->n_forking[klass] + s->n_unready[klass];
}

void cn_scheduler_sum_mask_steps(cn_scheduler *s) { cn_sched_count_loads(s); }

uint64_t cn_scheduler_mask_steps(const cn_scheduler *s, const cn_seq *q)
{
    return s->owners[q->sched->owner_slot].mask_steps;
}

cn_stats *cn_scheduler_counters(cn_scheduler *s) { return &s->stats; }

void cn_scheduler_set_slow_homes(cn_scheduler *s, uint32_t homes) { s->o.slow_homes = homes; }

void cn_scheduler_stats(const cn_scheduler *s, cn_stats *out)
{
    const cn_swap_room left = cn_sched_swap_room(s);
    *out = s->stats;
    out->running = s->running.n;
    out->waiting_interactive = cn_scheduler_waiting_of(s, CN_CLASS_INTERACTIVE);
    out->waiting = out->waiting_interactive + cn_scheduler_waiting_of(s, CN_CLASS_BATCH);
    out->blocked = s->n_blocked;
    out->compressing = s->n_compressing;
    out->blocks_used = out->blocks_total - cn_pool_available(s->device.blocks);
    out->blocks_cached = cn_pool_cached_only(s->device.blocks);
    out->blocks_spared = count_spared(s);
    out->slots_used = out->slots_total - cn_space_free_slots(&s->device);
    for (int h = 0; h < CN_N_HOMES; h++) {
        const uint32_t n_total = cn_space_total_blocks(&s->home[h]);
        out->home_blocks_total += n_total;
        out->home_blocks_used += n_total - cn_space_free_blocks(&s->home[h]);
    }
    out->swapped = s->swap.queue.n;
    out->swap_blocks_used = out->swap_blocks_total - left.blocks;
    out->swap_windows_used = out->swap_windows_total - left.windows;
}
