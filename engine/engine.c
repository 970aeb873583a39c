/* engine.c - one step: commit and start compressions, schedule, run the model, sample, deliver.
 *
 * Stage 3 of the path of a request. launch_step() enqueues a step, collect_step() reads its tokens.
 * With asynchronous scheduling, collect_step() runs one step later, so that the device never waits
 * for the host (DESIGN.md §4.5). A step with token masks is collected one step later too, but
 * between the model and the sample op of the next step: the masks depend on the tokens, and the
 * model runs meanwhile. */
#include "engine/engine_state.h"

/* ---- compression events ---- */

static cn_status start_events(cn_engine *e, const cn_begin_plan *begin)
{
    if (begin->n_events == 0) return CN_OK;
    for (uint32_t i = 0; i < begin->n_events; i++)
        cn_events_add(e->events, &begin->events[i]->req, begin->events[i]);
    CN_TRY(cn_events_start(e->events, e->stats->steps));
    return e->config->sync_compression ? cn_events_wait(e->events, e->stats->steps) : CN_OK;
}

/* Starts what a begin plan has: events, then puts of prompts. */
static cn_status start_beside(cn_engine *e, const cn_begin_plan *begin)
{
    if (begin->after_puts) CN_TRY(cn_home_after_puts(&e->homes));
    CN_TRY(start_events(e, begin));
    return cn_home_put(&e->homes, begin->puts, begin->n_puts);
}

/* ---- launch ---- */

static uint32_t n_flights(const cn_engine *e) { return e->flight_tail - e->flight_head; }

/* Gives a sample with penalties a row of counts while it runs. A row that is new to the sample is
 * rebuilt from the sequence's tokens. */
static cn_status ensure_counts(cn_engine *e, cn_sample *s)
{
    if (!s->request->needs_counts || s->count_slot >= 0) return CN_OK;
    uint32_t slot = 0, n_slots = e->config->max_num_seqs;
    while (slot < n_slots && e->count_owner[slot] &&
           (e->count_owner[slot]->seq->state == CN_SEQ_RUNNING ||
            e->count_owner[slot]->seq->state == CN_SEQ_COMPRESSING))
        slot++;
    CN_ASSERT(slot < n_slots);
    if (e->count_owner[slot]) e->count_owner[slot]->count_slot = -1;
    e->count_owner[slot] = s;
    s->count_slot = (int32_t)slot;
    const cn_seq *seq = s->seq;
    CN_TRY(e->backend->mem_write(e->stream, e->count_tokens, seq->tokens,
                                 seq->n_tokens * sizeof *seq->tokens));
    cn_count_reset_args reset = {
        .counts = e->counts,
        .vocab = e->model_config.vocab,
        .slot = slot,
        .prompt = e->count_tokens,
        .n_prompt = seq->n_prompt,
        .output = e->count_tokens + seq->n_prompt,
        .n_output = seq->n_tokens - seq->n_prompt,
    };
    return e->backend->count_reset(e->stream, &reset);
}

static cn_status fill_sample_row(cn_engine *e, uint32_t i)
{
    cn_sample *s = cn_batch_logit_seq(e->batch, i)->user;
    const cn_sampling *p = &s->request->sampling;
    CN_TRY(ensure_counts(e, s));
    cn_sample_row *row = cn_batch_sample_row(e->batch, i);
    int32_t prev_row = row->prev_row;
    cn_sampling_row(p, row);
    row->seed = s->seed;
    row->sample = s->seq->sample;
    row->count_slot = s->count_slot;
    /* The plan already counts the token that this row will sample as pending. */
    uint32_t n_pending = s->seq->n_pending - 1;
    row->position = s->seq->n_tokens + n_pending;
    if (n_pending > 0) row->prev_row = prev_row;
    bool bans_apply = false;
    /* Without memory for its output the sample ends when this token is read. */
    if (!s->output && cn_engine_open_output(e, s) != CN_OK) return CN_OK;
    cn_output_row(s->output, n_pending, row, &bans_apply);
    uint32_t at = row->position - s->seq->n_prompt; /* index of the output token of this row */
    if (at < s->request->n_forced) {
        row->force_token = (int32_t)s->request->forced[at];
        row->prev_row = -1; /* also after the same token */
        row->force_after = 0;
    }
    uint32_t index = 0;
    for (uint32_t b = 0; bans_apply && b < s->request->n_bans; b++) {
        const bool added = cn_batch_try_add_ban(e->batch, s->request->bans[b], &index);
        CN_ASSERT(added);
        if (row->n_ban++ == 0) row->ban_start = index;
    }
    for (uint32_t b = 0; b < p->n_logit_bias; b++) {
        const bool added = cn_batch_try_add_bias(e->batch, p->logit_bias[b], &index);
        CN_ASSERT(added);
        if (row->n_bias++ == 0) row->bias_start = index;
    }
    return CN_OK;
}

/* Copies blocks and query slots inside the device, or between the device and another space on the
 * stream of that space. */
static cn_status copy_items(cn_engine *e, const cn_space_memory *from, const cn_space_memory *to,
                            const cn_copy_list *list)
{
    if (list->n_blocks == 0 && list->n_slots == 0) return CN_OK;
    /* An exchange may still read or write these blocks. */
    CN_TRY(cn_home_wait(&e->homes, (to == &e->device ? from : to)->copies));
    const cn_copy_args args = {.from = from->planes, .to = to->planes, .list = *list};
    return e->backend->copy_blocks((to == &e->device ? from : to)->copies, &args);
}

/* Moves KV to the swap space and back. The copies precede the step's rows in the stream. */
static cn_status swap(cn_engine *e, const cn_plan *plan)
{
    const cn_copy_list *out = &plan->swap_out, *in = &plan->swap_in;
    const cn_memory_plan *kv = &e->plan.kv;
    const uint64_t n_ranks = 1 + e->ranks.n;
    e->stats->swapped_out_bytes +=
        n_ranks * (out->n_blocks * kv->block_bytes + out->n_slots * kv->query_slot_bytes);
    e->stats->swapped_in_bytes +=
        n_ranks * (in->n_blocks * kv->block_bytes + in->n_slots * kv->query_slot_bytes);
    CN_TRY(cn_ranks_swap(&e->ranks, out, in));
    CN_TRY(copy_items(e, &e->device, &e->swap, out));
    return copy_items(e, &e->swap, &e->device, in);
}

/* Enqueues the copy of the step's tokens to the host; collect_step() waits for the fence. */
static cn_status read_back(cn_engine *e, cn_flight *f)
{
    cn_backend *be = e->backend;
    CN_TRY(be->mem_read(e->stream, f->host_tokens, f->tokens, f->n_rows * sizeof *f->tokens));
    if (f->logprobs) {
        CN_TRY(be->mem_read(e->stream, f->host_logprobs, f->token_logprobs,
                            f->n_rows * sizeof *f->token_logprobs));
        CN_TRY(be->mem_read(e->stream, f->host_top, f->top,
                            f->n_rows * CN_MAX_LOGPROBS * sizeof *f->top));
    }
    return be->fence_record(f->fence, e->stream);
}

static cn_status sample(cn_engine *e, cn_flight *f)
{
    if (f->n_rows == 0) return CN_OK;
    cn_sample_args args = {
        .logits = cn_model_logits(e->model),
        .n_rows = f->n_rows,
        .vocab = e->model_config.vocab,
        .rows = cn_batch_sample_rows(e->batch),
        .bans = cn_batch_bans(e->batch),
        .biases = cn_batch_biases(e->batch),
        .masks = e->masks,
        .counts = e->counts,
        .prev_tokens = cn_flight_other(e, f)->tokens,
        .tokens = f->tokens,
        .token_logprobs = f->token_logprobs,
        .top = f->top,
        .scratch = e->sample_scratch,
        .scratch_bytes = e->sample_scratch_bytes,
    };
    return e->backend->sample(e->stream, &args);
}

cn_status cn_engine_run_model(cn_engine *e, uint32_t n_rows, const cn_layer_hook *hook)
{
    const cn_model_pass pass = {
        .batch = cn_batch_device_view(e->batch),
        .pools = &e->pools,
        .select = cn_batch_select_view(e->batch),
        .plane = cn_batch_plane_view(e->batch),
        .drafts = cn_batch_draft_view(e->batch),
        .hook = hook,
        .logit_rows = cn_batch_logit_rows(e->batch),
        .n_rows = n_rows,
    };
    return cn_model_forward(e->model, e->stream, &pass);
}

/* Rows of forks are of prompts, and attend to all tokens. */
static void note_selected(cn_flight *f, const cn_plan *plan)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < plan->n_rows; r++)
        if (plan->rows[r].wants_sample) f->n_selected[n++] = plan->rows[r].n_selected;
    memset(f->n_selected + n, 0, (f->n_rows - n) * sizeof *f->n_selected);
}

static cn_status fill_flight(cn_engine *e, cn_flight *f, const cn_plan *plan)
{
    f->n_rows = cn_batch_n_logit_rows(e->batch);
    f->logprobs = false;
    f->n_masks = 0;
    memset(f->sits_out, 0, f->n_rows * sizeof *f->sits_out);
    note_selected(f, plan);
    for (uint32_t i = 0; i < f->n_rows; i++) {
        CN_TRY(fill_sample_row(e, i));
        f->seqs[i] = cn_batch_logit_seq(e->batch, i);
        cn_sample *s = f->seqs[i]->user;
        s->n_in_flight++;
        if (s->request->has_mask) cn_batch_sample_row(e->batch, i)->mask = ++f->n_masks;
        f->logprobs |= s->request->sampling.logprobs >= 0;
    }
    return CN_OK;
}

/* Digests the tiles that the step's rows completed, before a fork copies them. */
static cn_status digest_tiles(cn_engine *e, const cn_flight *f, uint32_t n)
{
    if (n == 0) return CN_OK;
    const cn_digest_args a = {.pools = e->pools, .tiles = f->tiles, .n = n};
    return e->backend->digest(e->stream, &a);
}

/* The positions of a plan are less than this. */
static uint32_t end_position(const cn_plan *plan)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < plan->n_rows; i++)
        end = cn_max_u32(end, plan->rows[i].first_pos + plan->rows[i].n_new);
    return end;
}

/* Runs the ops of a step. */
static cn_status run_step(cn_engine *e, cn_flight *f, const cn_plan *plan, cn_step_shape shape)
{
    const bool recorded = shape.rows > 0;
    CN_TRY(cn_home_flight_begin(&e->homes, &f->homes, plan, recorded));
    CN_TRY(recorded ? cn_step_graph_launch(e, shape, f)
                    : cn_engine_run_model(e, f->n_rows, cn_home_hook(&e->homes)));
    cn_home_flight_end(&e->homes);
    return CN_OK;
}

/* Enqueues a step on the engine's own device, up to its logits and what forks copy. */
static cn_status enqueue_step(cn_engine *e, cn_flight *f, const cn_plan *plan, cn_step_shape shape,
                              uint32_t n_tiles)
{
    CN_TRY(cn_batch_upload(e->batch, e->stream, cn_flight_other(e, f)->tokens));
    CN_TRY(run_step(e, f, plan, shape));
    CN_TRY(digest_tiles(e, f, n_tiles));
    return copy_items(e, &e->device, &e->device, &plan->fork_copies);
}

/* Enqueues it on the devices of all ranks. */
static cn_status enqueue_on_ranks(cn_engine *e, cn_flight *f, const cn_plan *plan,
                                  cn_step_shape shape)
{
    const uint32_t n_tiles =
        f->tiles ? cn_select_completed_tiles(plan, e->plan.kv.block_tokens, f->tiles) : 0;
    cn_rank_step step = {.batch = e->batch,
                         .sampled = cn_flight_other(e, f)->tokens,
                         .n_rows = f->n_rows,
                         .end_position = end_position(plan),
                         .tiles = f->tiles,
                         .n_tiles = n_tiles,
                         .forks = &plan->fork_copies};
    CN_TRY(cn_ranks_start(&e->ranks, cn_rank_run_step, &step));
    return cn_ranks_join(&e->ranks, enqueue_step(e, f, plan, shape, n_tiles));
}

static cn_status collect_step(cn_engine *e);

static cn_status collect_all(cn_engine *e)
{
    while (n_flights(e) > 0) CN_TRY(collect_step(e));
    return CN_OK;
}

static cn_status launch_step(cn_engine *e, const cn_plan *plan)
{
    CN_TRY(cn_model_cover(e->model, e->stream, end_position(plan)));
    cn_flight *f = &e->flights[e->flight_tail % CN_FLIGHTS];
    const cn_step_shape shape = cn_step_graph_shape(e, plan);
    cn_batch_build(e->batch, plan, shape);
    CN_TRY(fill_flight(e, f, plan));
    CN_TRY(enqueue_on_ranks(e, f, plan, shape));
    e->last_shape = shape;
    if (f->n_masks > 0 || e->late.n > 0) {
        CN_TRY(collect_all(e));
        cn_structure_write_masks(e, f);
    }
    CN_TRY(sample(e, f));
    if (e->n_scored > 0) CN_TRY(cn_prompt_scores_step(e, plan)); /* replaces the logits */
    CN_TRY(read_back(e, f));
    e->flight_tail++;
    return CN_OK;
}

/* ---- collect ---- */

/* Counts the tokens that the step of a delivered token attended to. Only delivered tokens count, so
 * the sums do not depend on preemptions or on asynchronous scheduling. */
static void count_selected(cn_engine *e, cn_seq *seq, uint32_t n_selected)
{
    const uint64_t resident = seq->n_tokens - 1; /* the newest token is not computed */
    if (n_selected == 0) return;
    seq->usage_kv.selected_steps++;
    seq->usage_kv.selected_tokens += n_selected;
    seq->usage_kv.candidate_tokens += resident;
    e->stats->selected_steps++;
    e->stats->selected_tokens += n_selected;
    e->stats->candidate_tokens += resident;
}

static void take_token(cn_engine *e, cn_flight *f, uint32_t i)
{
    cn_seq *seq = f->seqs[i];
    cn_sample *s = seq->user;
    uint32_t token = f->host_tokens[i];
    if (token == CN_NO_TOKEN) { /* the sequence ends, so nothing is appended */
        static const char why[] =
            "no token can be sampled: every logit is NaN or -inf (damaged weights, or an "
            "overflow), or belongs to a token that is not allowed";
        if (!s->done)
            cn_engine_deliver(e, s, CN_FINISH_ERROR, s->mask_error ? s->mask_error : why);
        return;
    }
    cn_seq_append(seq, token);
    if (s->done) return; /* the sample ended while the step was in flight */
    if (s->request->no_output) {
        cn_engine_deliver(e, s, CN_FINISH_LENGTH, NULL);
        return;
    }
    e->stats->generation_tokens++;
    count_selected(e, seq, f->n_selected[i]);
    cn_home_flight_count(&e->homes, &f->homes, seq, e->stats);
    int32_t n_logprobs = s->request->sampling.logprobs;
    cn_token_logprobs lp = {
        .chosen = {token, f->host_logprobs[i]},
        .top = f->host_top + (size_t)i * CN_MAX_LOGPROBS,
        .n_top = n_logprobs < 0 ? 0 : cn_min_u32((uint32_t)n_logprobs, e->model_config.vocab),
    };
    cn_finish finish = CN_FINISH_NONE;
    const bool reasons = s->output && cn_output_reasons(s->output);
    cn_status status = s->output
                           ? cn_output_push(s->output, token, n_logprobs < 0 ? NULL : &lp, &finish)
                           : cn_fail(CN_ERR_MEMORY, "out of memory for a sample's output");
    if (status == CN_OK && s->mask_error) status = cn_fail(CN_ERR_MEMORY, "%s", s->mask_error);
    if (status == CN_OK && s->request->grammar && !reasons && !cn_output_reasons(s->output))
        status = cn_structure_push(e, s, token, &finish);
    bool failed = status != CN_OK;
    cn_engine_deliver(e, s, failed ? CN_FINISH_ERROR : finish, failed ? cn_last_error() : NULL);
}

static cn_status collect_step(cn_engine *e)
{
    cn_flight *f = &e->flights[e->flight_head % CN_FLIGHTS];
    CN_TRY(e->ranks.n > 0 ? cn_ranks_sync(&e->ranks, f->fence) : e->backend->fence_sync(f->fence));
    CN_TRY(cn_home_flight_land(&e->homes, &f->homes));
    e->flight_head++;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        cn_sample *s = f->seqs[i]->user;
        if (!f->sits_out[i]) take_token(e, f, i);
        cn_engine_land_sample(e, s);
    }
    return CN_OK;
}

/* ---- step ---- */

/* A request has its first row in the plan that admits it. */
static void note_admissions(cn_engine *e, const cn_plan *plan)
{
    double now = 0;
    for (uint32_t i = 0; i < plan->n_rows; i++) {
        cn_engine_request *r = ((cn_sample *)plan->rows[i].seq->user)->request;
        if (r->admitted_s > 0) continue;
        if (now == 0) now = cn_now_s();
        r->admitted_s = now;
        e->forms_changed |= r->was_compiled;
    }
}

cn_status cn_engine_step(cn_engine *e, bool *idle)
{
    *idle = false;
    if (e->backend->enter) e->backend->enter(e->backend);
    cn_engine_sweep_cancelled(e);
    cn_structure_prepare(e);
    cn_structure_begin_step(e);
    if (e->n_away_forms > 0) {
        CN_TRY(collect_all(e));
        cn_structure_make_early(e);
    }
    if (e->events) CN_TRY(cn_events_poll(e->events, e->stats->steps));
    cn_begin_plan begin;
    cn_scheduler_begin(e->scheduler, &begin);
    CN_TRY(start_beside(e, &begin));
    cn_plan plan;
    cn_scheduler_schedule(e->scheduler, &plan);
    note_admissions(e, &plan);
    if (e->config->check_invariants) {
        const char *broken = cn_scheduler_check(e->scheduler);
        if (broken) return cn_fail(CN_ERR_DEVICE, "scheduler invariant broken: %s", broken);
    }
    const bool moves = plan.swap_out.n_blocks + plan.swap_in.n_blocks > 0;
    if (plan.after_puts) CN_TRY(cn_home_after_puts(&e->homes));
    CN_TRY(swap(e, &plan));
    if (plan.n_rows > 0) {
        CN_TRY(launch_step(e, &plan));
        e->stats->steps++;
    } else if (e->late.n > 0) {
        CN_TRY(collect_all(e));
        cn_structure_make_late(e);
        return CN_OK;
    }
    if (n_flights(e) > (plan.n_rows > 0 ? e->max_in_flight : 0)) {
        CN_TRY(collect_step(e));
    } else if (plan.n_rows > 0 || moves) {
        return CN_OK;
    } else if (e->events && cn_events_in_flight(e->events)) {
        /* Nothing can run before one of the events commits. */
        CN_TRY(cn_events_wait(e->events, e->stats->steps));
    } else if (plan.starved) {
        /* No other request can end and free memory. */
        cn_engine_fail_sample(e, plan.starved->user,
                              "out of host memory for the tokens and tables of the request: lower "
                              "max_tokens, or free memory");
    } else if (!cn_structure_wait(e)) {
        CN_ASSERT(e->requests.n == 0);
        *idle = true;
    }
    return CN_OK;
}

void cn_engine_stats(const cn_engine *e, cn_stats *out)
{
    cn_scheduler_stats(e->scheduler, out);
    if (e->events) out->compression_s = cn_events_stats(e->events)->total_s;
    out->stall_s = e->homes.stall_s;
    out->put_bytes += cn_homes_put_bytes(&e->homes);
    for (int h = 0; h < CN_N_HOMES; h++)
        out->home_link_bytes_per_s[h] = e->homes.at[h].link_bytes_per_s;
}
