/* batch_job.c - what happens to one job: events, its end, and an engine that is lost. See
 * batch_job.h. */
#include "engine/offline/batch_job.h"

void cn_batch_job_free(cn_batch_job *job)
{
    job->run->held_bytes -= job->held_bytes;
    cn_batch_item_free(&job->item);
    cn_api_result_free(job->result);
    cn_api_result_free(job->unrescued);
    cn_transcript_free(&job->said);
    cn_buf_free(&job->text);
    cn_buf_free(&job->error);
    cn_buf_free(&job->at_fault);
    cn_free(job);
}

void cn_batch_job_fail(cn_batch_job *job, cn_status status, const char *code)
{
    const char *text = cn_last_error();
    job->status = status;
    job->code = code;
    cn_buf_clear(&job->error);
    cn_api_note_param(&job->item.request, &job->at_fault);
    if (cn_buf_add(&job->error, text, strlen(text)) != CN_OK) cn_buf_clear(&job->error);
}

cn_batch_format cn_batch_run_format(const cn_batch_run *run)
{
    const cn_config *c = run->config;
    return (cn_batch_format){c->prompt_field, c->id_field, c->answer_field};
}

cn_status cn_batch_job_prepare(cn_batch_job *job)
{
    const cn_batch_run *run = job->run;
    const cn_batch_format format = cn_batch_run_format(run);
    CN_TRY(cn_batch_item_read(&job->item, &format, &run->port->defaults));
    job->audited = job->item.request.n_prompts == 1 && !job->item.request.params.no_output &&
                   cn_audit_picks(run->config->audit_percent, run->config->seed, &job->item.id,
                                  sizeof job->item.id);
    return CN_OK;
}

/* ---- events ---- */

static void take_replay(cn_batch_job *job, const cn_event *ev)
{
    cn_audit_add(&job->agreement, &job->said, &job->n_replayed, ev);
    if (!ev->usage) return;
    job->replayed.prompt_tokens += ev->usage->prompt_tokens;
    job->replayed.cached_tokens += ev->usage->cached_tokens;
    job->replayed.completion_tokens += ev->usage->completion_tokens;
}

static void take_output(cn_batch_job *job, const cn_event *ev)
{
    cn_api_result_add(job->result, ev);
    job->looped |= ev->finish == CN_FINISH_REPETITION;
    if (job->audited && ev->sample == 0 && cn_transcript_add(&job->said, ev) != CN_OK)
        job->audited = false; /* out of memory: the answer is kept without an audit */
}

bool cn_batch_job_event(cn_batch_job *job, const cn_event *ev)
{
    const cn_event e = cn_api_event_of(&job->attempt, job->request, &job->n_left, ev);
    if (job->replays)
        take_replay(job, &e);
    else
        take_output(job, &e);
    return e.last;
}

/* ---- the end ---- */

static void add_replay(cn_batch_run *run, const cn_batch_job *job)
{
    const cn_agreement *a = &job->agreement;
    run->agreement.outputs += a->outputs;
    run->agreement.tokens += a->tokens;
    run->agreement.same_best += a->same_best;
    run->agreement.gap_nats += a->gap_nats;
    run->replayed.prompt_tokens += job->replayed.prompt_tokens;
    run->replayed.cached_tokens += job->replayed.cached_tokens;
    run->replayed.completion_tokens += job->replayed.completion_tokens;
}

static void return_job(cn_batch_job *job)
{
    cn_list_remove(&job->run->inflight, &job->node);
    cn_list_append(&job->run->finished, &job->node);
}

void cn_batch_job_end(cn_batch_job *job, cn_status status)
{
    if (status != CN_OK)
        cn_batch_job_fail(job, status, NULL);
    else if (job->replays)
        add_replay(job->run, job);
    return_job(job);
}

/* The line of a replay is written: nothing more is said of it. */
void cn_batch_job_end_lost(cn_batch_job *job, const char *text)
{
    const cn_status status = job->replays ? CN_ERR_CANCELLED : CN_ERR_ARG;
    cn_batch_job_fail(job, cn_fail(status, "%s", text), CN_BATCH_ENGINE_FAILED);
    return_job(job);
}

/* ---- a lost engine ---- */

/* A job for the same line. Takes over its text, and the output that looped; nothing else, as the
 * engine may use it. */
static cn_batch_job *copy(cn_batch_job *job)
{
    cn_batch_job *next = cn_calloc(1, sizeof *next);
    if (!next) return NULL;
    const cn_batch_item *from = &job->item;
    *next = (cn_batch_job){.run = job->run,
                           .numbered = job->numbered,
                           .text = job->text,
                           .held_bytes = job->held_bytes,
                           .rescued_by = job->rescued_by,
                           .unrescued = job->unrescued,
                           .n_lost = job->n_lost + 1};
    job->text = (cn_buf){0};
    job->held_bytes = 0;
    job->unrescued = NULL;
    cn_batch_item *to = &next->item;
    to->line = from->line;
    to->id = from->id;
    to->request_hash = from->request_hash;
    if (from->custom_id) to->custom_id = cn_strdup(from->custom_id);
    if (from->reference) to->reference = cn_strdup(from->reference);
    const bool whole = !to->custom_id == !from->custom_id && !to->reference == !from->reference;
    /* Parses the line again: the tree of the first time has lost what was read from it. */
    if (whole && cn_batch_item_parse(to, next->text.data, next->text.len) == CN_OK &&
        cn_batch_job_prepare(next) == CN_OK)
        return next;
    cn_batch_job_free(next);
    return NULL;
}

void cn_batch_job_lose(cn_batch_job *job, const char *why, bool is_cause)
{
    cn_batch_run *run = job->run;
    cn_list_remove(&run->inflight, &job->node);
    if (job->replays) return; /* its line is written */
    if (run->state != CN_BATCH_RUNNING) {
        run->n_put_back++;
        return;
    }
    cn_batch_job *next = copy(job);
    if (!next) {
        run->n_put_back++;
        cn_batch_run_drain(run, true, "out of memory for line %llu, which a failed engine had",
                           (unsigned long long)job->item.line);
    } else if (!is_cause && next->n_lost < CN_BATCH_MOST_LOST) {
        cn_list_append(&run->again, &next->node);
    } else {
        cn_batch_job_fail(next, cn_fail(CN_ERR_ARG, "%u engines failed while they had this line, "
                                                    "the last because: %s",
                                        next->n_lost, why),
                          CN_BATCH_ENGINE_FAILED);
        cn_list_append(&run->finished, &next->node);
    }
}
