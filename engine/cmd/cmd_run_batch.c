/* cmd_run_batch.c - `cinch run-batch`: opens what a run needs, cheap checks first, runs the batch,
 * and prints a summary.
 *
 * Exit codes: 0 every line is answered, 2 some lines ended in an error (0 with --ok-with-errors), 3
 * stopped and --resume continues, also after a full disk, a failed fsync or a failed engine, 1
 * nothing was done, a pipe for the answers was closed, or the summary could not be written. */
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/checkpoint/model_config.h"
#include "engine/cmd/command.h"
#include "engine/cmd/stop_signals.h"
#include "engine/lanes/lane_engines.h"
#include "engine/offline/batch_drive.h"
#include "engine/offline/done_files.h"
#include "engine/offline/lanes.h"

/* ---- signals ---- */

static volatile int stop_asked; /* only the handler writes it; int is sig_atomic_t here */
_Static_assert(sizeof(int) == sizeof(sig_atomic_t), "the flag must be written atomically");

static void take_command_signal(void) { stop_asked = 1; }

/* The first signal drains the run, also a terminal that closes. It interrupts a read from an idle
 * pipe. */
static const cn_stop_rule stop_rule = {
    .first = take_command_signal, .exit_code = CN_EXIT_RESUMABLE, .hangup = true};

/* ---- opening ---- */

static cn_status check_two_files(const cn_batch_run *run)
{
    struct stat in, out;
    if (fstat(cn_line_reader_fd(run->input), &in) != 0 ||
        fstat(cn_batch_output_fd(run->output), &out) != 0)
        return cn_fail(CN_ERR_IO, "fstat: %s", strerror(errno));
    if (S_ISREG(in.st_mode) && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        return cn_fail(CN_ERR_ARG, "--input-file and --output-file are the same file");
    return CN_OK;
}

/* Resumes an output that has lines: checks the record, repairs the end and reads the lines. */
static cn_status resume_output(cn_batch_run *run, const cn_buf *record)
{
    const cn_config *c = run->config;
    uint64_t removed = 0;
    CN_TRY(cn_run_record_check(c->output_file, record));
    CN_TRY(cn_batch_output_repair(run->output, &removed));
    if (removed)
        cn_log(CN_LOG_INFO, "%s: removed an incomplete last line of %llu bytes", c->output_file,
               (unsigned long long)removed);
    cn_status status = cn_resume_scan(run->output, c->retry_errors, &run->ids, &run->totals);
    return status == CN_OK ? CN_OK : cn_fail_within(status, "%s", c->output_file);
}

static cn_status prepare_output(cn_batch_run *run, cn_config *c)
{
    const bool has_lines = cn_batch_output_bytes(run->output) > 0;
    const bool is_file = cn_batch_output_is_file(run->output);
    /* The first lines of a shard, or of what other runs left, are not those of the file. */
    run->first.watching = !has_lines && c->shard_of == 0 && !c->done;
    if (!is_file && (c->resume || c->shard_of > 0))
        return cn_fail(CN_ERR_ARG, "%s: --%s needs a regular file", c->output_file,
                       c->resume ? "resume" : "shard");
    if (has_lines && !c->resume)
        return cn_fail(CN_ERR_ARG,
                       "%s is not empty: continue it with --resume, or remove it", c->output_file);
    cn_buf record = {0};
    cn_status status = has_lines ? cn_run_record_adopt(c->output_file, c) : CN_OK;
    if (status == CN_OK && (is_file || c->done)) status = cn_run_record_make(&record, c);
    if (status == CN_OK && is_file)
        status = has_lines ? resume_output(run, &record)
                           : cn_run_record_write(c->output_file, &record);
    if (status == CN_OK) status = cn_done_files_read(c, &record, &run->ids);
    cn_buf_free(&record);
    return status;
}

/* A time that is past today is that of tomorrow, which may not be what the user meant. */
static void set_until(cn_batch_drive *drive, int32_t minutes)
{
    const time_t now = time(NULL);
    drive->until = cn_next_time_of_day(minutes, (int64_t)now);
    const time_t until = (time_t)drive->until;
    struct tm today, end;
    localtime_r(&now, &today);
    localtime_r(&until, &end);
    const bool past = today.tm_yday != end.tm_yday;
    const long long left_min = (drive->until - (int64_t)now + 59) / 60;
    cn_log(past ? CN_LOG_WARN : CN_LOG_INFO,
           "--until %02d:%02d%s: requests are admitted until then, for %lld h %lld min",
           minutes / 60, minutes % 60, past ? " is past today and means tomorrow" : "",
           left_min / 60, left_min % 60);
}

/* Tasks on several machines must not write one shard, and not every network file system tells them
 * so. */
static void warn_of_network(const cn_config *c, const cn_batch_run *run)
{
    enum { NFS = 0x6969, LUSTRE = 0x0BD00BD0 };
    struct statfs fs;
    if (c->shard_of == 0 || fstatfs(cn_batch_output_fd(run->output), &fs) != 0) return;
    if (fs.f_type == NFS || fs.f_type == LUSTRE)
        cn_log(CN_LOG_WARN,
               "%s is on %s: a second task on this shard is refused only if locks work between "
               "machines (NFSv4, or Lustre mounted with -o flock)",
               c->output_file, fs.f_type == NFS ? "NFS" : "Lustre");
}

/* Loads the engines, each on its thread. */
static cn_status start_lanes(cn_lanes **out, const cn_lane_engines *engines, const cn_config *c)
{
    const cn_lanes_opts o = {
        .engines = engines->at,
        .n = engines->n,
        .n_seats = c->max_num_seqs,
        .stall_s = cn_lane_engines_stall_s(engines, c),
        .by_priority = c->scheduling_policy == CN_OPT_SCHEDULING_PRIORITY,
        .load = cn_engine_load,
    };
    const cn_status status = cn_lanes_create(out, &o);
    if (status != CN_OK) cn_load_gate_open(engines->gate);
    return status;
}

static cn_status open_run(cn_batch_run *run, cn_batch_drive *drive, cn_lane_engines *engines,
                          cn_config *c)
{
    const cn_batch_format format = {c->prompt_field, c->id_field, c->answer_field};
    const cn_line_part part = {c->shard_index, c->shard_of,
                               c->shard_by == CN_OPT_SHARD_BY_BYTES};
    cn_model_config model; /* finds a wrong directory before a file is made */
    CN_TRY(cn_model_config_load(&model, c->model));
    CN_TRY(cn_line_reader_open(&run->input, c->input_file, CN_BATCH_MAX_LINE_BYTES));
    CN_TRY(cn_line_reader_take_part(run->input, &part));
    CN_TRY(cn_first_line_check_file(c->input_file, &format));
    CN_TRY(cn_batch_output_open(&run->output, c->output_file, 0666));
    CN_TRY(check_two_files(run));
    warn_of_network(c, run);
    CN_TRY(prepare_output(run, c));
    drive->drain_timeout_s = c->drain_timeout_s;
    if (c->until_minutes >= 0) set_until(drive, c->until_minutes);
    CN_TRY(cn_lane_engines_plan(engines, c));
    char backend[96];
    cn_engine_backend_text(engines->at[0], backend, sizeof backend);
    CN_TRY(cn_done_files_check_backend(c, backend));
    CN_TRY(start_lanes(&drive->lanes, engines, c));
    if (!cn_batch_output_is_file(run->output)) return CN_OK;
    return cn_run_record_backend(c->output_file, backend);
}

/* ---- the summary ---- */

typedef struct summary {
    const cn_batch_run *run;
    cn_lanes *lanes;
    cn_stats stats;
    double elapsed_s;
    int exit_code;
} summary;

static double per_second(const summary *s, uint64_t n)
{
    return s->elapsed_s > 0 ? (double)n / s->elapsed_s : 0;
}

static void print_second_runs(FILE *f, const cn_batch_run *r)
{
    const cn_agreement *a = &r->agreement;
    if (r->config->loop_rescue != CN_OPT_RESCUE_OFF)
        fprintf(f, "loops: %llu requests submitted again\n", (unsigned long long)r->n_rescued);
    if (r->config->audit_percent > 0 && a->tokens == 0)
        fprintf(f, "audit: no answer was replayed under full KV\n");
    else if (r->config->audit_percent > 0)
        fprintf(f,
                "audit: %llu answers replayed under full KV: of %llu tokens, the most likely is "
                "the same for %.2f %%; log-probability gap %.4f per token\n",
                (unsigned long long)a->outputs, (unsigned long long)a->tokens,
                100 * cn_agreement_share(a), cn_agreement_gap(a));
}

static void warn_of_changes(const cn_batch_run *r)
{
    const char *in = r->config->input_file, *out = r->config->output_file;
    if (r->n_changed == 0) return;
    cn_log(CN_LOG_WARN,
           "%llu lines of %s have changed since they were answered (%s); their old answers are "
           "kept: to answer them again, remove their lines from %s, or remove that file",
           (unsigned long long)r->n_changed, in, r->changed.data, out);
}

/* Why the run ended before its time, or that it had nothing to do. */
static void print_end(FILE *f, const summary *s)
{
    const cn_batch_run *r = s->run;
    const bool resumable =
        s->exit_code == CN_EXIT_RESUMABLE && cn_batch_output_is_file(r->output);
    char why[CN_UTF8_ESCAPED * sizeof r->why], cause[CN_UTF8_ESCAPED * sizeof r->first.cause];
    cn_utf8_escape_controls(r->why, why, sizeof why);
    if (*why && cn_batch_run_is_complete(r))
        fprintf(f, "%s, but nothing is left to do: every line has its answer\n", why);
    else if (*why)
        fprintf(f, "stopped: %s%s\n", why, resumable ? "; --resume continues" : "");
    else if (r->n_skipped && r->n_answered + r->n_errors == 0)
        fprintf(f, "nothing was left to do: all %llu lines were done before\n",
                (unsigned long long)r->n_skipped);
    if (r->first.watching && r->first.n_failed > 0)
        fprintf(f, "every line fails for one reason: %s\n",
                cn_utf8_escape_controls(r->first.cause, cause, sizeof cause));
}

static void print_engines(FILE *f, const summary *s)
{
    cn_stats one;
    const uint32_t n = cn_lanes_n(s->lanes);
    if (n > 1) fprintf(f, "engines: %u; output tokens", n);
    for (uint32_t i = 0; n > 1 && i < n; i++) {
        const bool failed = cn_lanes_stats_of(s->lanes, i, &one) != NULL;
        fprintf(f, "%s %llu%s", i ? "," : "", (unsigned long long)one.generation_tokens,
                failed ? " (failed)" : "");
    }
    if (n > 1) fprintf(f, "\n");
}

static void print_summary(FILE *f, const summary *s)
{
    const cn_batch_run *r = s->run;
    const cn_stats *e = &s->stats;
    fprintf(f, "%llu answered, %llu errors",
            (unsigned long long)r->n_answered, (unsigned long long)r->n_errors);
    if (r->n_skipped) fprintf(f, ", %llu done before", (unsigned long long)r->n_skipped);
    fprintf(f, ", in %.1f s: %.2f requests/s, %.1f output tokens/s\n", s->elapsed_s,
            per_second(s, r->n_answered), per_second(s, e->generation_tokens));
    fprintf(f, "tokens: %llu prompt (%llu from the prefix cache), %llu output\n",
            (unsigned long long)e->prompt_tokens, (unsigned long long)e->cached_tokens,
            (unsigned long long)e->generation_tokens);
    print_engines(f, s);
    if (e->preemptions)
        fprintf(f, "kv: %llu preemptions, %llu tokens recomputed\n",
                (unsigned long long)e->preemptions, (unsigned long long)e->recomputed_tokens);
    if (e->compressions)
        fprintf(f, "kv: %llu compressions, %llu tokens evicted, %llu bytes freed\n",
                (unsigned long long)e->compressions, (unsigned long long)e->evicted_tokens,
                (unsigned long long)e->freed_bytes);
    if (e->selected_steps)
        fprintf(f, "kv: %llu decode steps attended to %.0f of %.0f tokens on average\n",
                (unsigned long long)e->selected_steps,
                (double)e->selected_tokens / (double)e->selected_steps,
                (double)e->candidate_tokens / (double)e->selected_steps);
    if (e->exchanges)
        fprintf(f,
                "kv: %llu exchanges with the home, %llu entries fetched and %llu missed, summed "
                "over layers and kv heads\n",
                (unsigned long long)e->exchanges, (unsigned long long)e->fetched_entries,
                (unsigned long long)e->missed_entries);
    const uint64_t *chosen = e->auto_admissions;
    if (chosen[CN_HOME_DEVICE] + chosen[CN_HOME_PEER] + chosen[CN_HOME_HOST] > 0)
        fprintf(f, "kv: home auto chose device %llu times, peer %llu and host %llu; %llu moves\n",
                (unsigned long long)chosen[CN_HOME_DEVICE],
                (unsigned long long)chosen[CN_HOME_PEER],
                (unsigned long long)chosen[CN_HOME_HOST], (unsigned long long)e->auto_moves);
    if (r->n_warned)
        fprintf(f, "warnings: %llu answers name parts of their request that have no effect\n",
                (unsigned long long)r->n_warned);
    print_end(f, s);
    print_second_runs(f, r);
    warn_of_changes(r);
    if (r->config->grade != CN_OPT_GRADE_NONE && r->n_answered && !r->totals.graded)
        cn_log(CN_LOG_WARN, "--answer-field %s: no line has this field, so nothing was graded",
               r->config->answer_field);
    if (r->config->grade != CN_OPT_GRADE_NONE)
        fprintf(f, "exact match %llu/%llu\n", (unsigned long long)r->totals.matched,
                (unsigned long long)r->totals.graded);
}

/* null: the run answers the whole input. */
static json_t *shard_of_run_json(const cn_config *c)
{
    if (c->shard_of == 0) return json_null();
    return json_pack("{s:I, s:I}", "index", (json_int_t)c->shard_index, "of",
                     (json_int_t)c->shard_of);
}

/* Without tokens, share and gap are null. */
static json_t *audit_json(const cn_batch_run *r)
{
    const cn_agreement *a = &r->agreement;
    if (r->config->audit_percent <= 0) return json_null();
    return json_pack("{s:I, s:I, s:o?, s:o?}", "outputs", (json_int_t)a->outputs, "tokens",
                     (json_int_t)a->tokens, "same_best_share", json_real(cn_agreement_share(a)),
                     "logprob_gap_per_token", json_real(cn_agreement_gap(a)));
}

static json_t *engines_of_run_json(const summary *s)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < cn_lanes_n(s->lanes); i++) {
        cn_stats one;
        const char *failed = cn_lanes_stats_of(s->lanes, i, &one);
        json_array_append_new(all, json_pack("{s:s, s:I, s:I, s:s?}", "device",
                                             cn_engine_device(cn_lanes_engine(s->lanes, i)),
                                             "output_tokens", (json_int_t)one.generation_tokens,
                                             "steps", (json_int_t)one.steps, "failed", failed));
    }
    return all;
}

static json_t *summary_json(const summary *s)
{
    const cn_batch_run *r = s->run;
    const cn_stats *e = &s->stats;
    const bool graded = r->config->grade != CN_OPT_GRADE_NONE;
    json_t *match = graded ? json_pack("{s:I, s:I}", "matched", (json_int_t)r->totals.matched, "of",
                                       (json_int_t)r->totals.graded)
                           : json_null();
    json_t *file = json_pack("{s:I, s:I, s:I, s:I}", "answered", (json_int_t)r->totals.answered,
                             "errors", (json_int_t)r->totals.errors, "prompt_tokens",
                             (json_int_t)r->totals.prompt_tokens, "completion_tokens",
                             (json_int_t)r->totals.completion_tokens);
    json_t *kv = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I}",
        "preemptions",
        (json_int_t)e->preemptions,
        "recomputed_tokens", (json_int_t)e->recomputed_tokens, "compressions",
        (json_int_t)e->compressions, "evicted_tokens", (json_int_t)e->evicted_tokens, "freed_bytes",
        (json_int_t)e->freed_bytes, "selected_steps", (json_int_t)e->selected_steps,
        "selected_tokens", (json_int_t)e->selected_tokens, "candidate_tokens",
        (json_int_t)e->candidate_tokens, "exchanges", (json_int_t)e->exchanges, "fetched",
        (json_int_t)e->fetched_entries, "missed", (json_int_t)e->missed_entries, "fetched_bytes",
        (json_int_t)e->fetched_bytes, "put_bytes", (json_int_t)e->put_bytes, "stall_us",
        (json_int_t)(e->stall_s * 1e6), "auto_admissions",
        json_pack("{s:I, s:I, s:I}", "device", (json_int_t)e->auto_admissions[CN_HOME_DEVICE],
                  "peer", (json_int_t)e->auto_admissions[CN_HOME_PEER], "host",
                  (json_int_t)e->auto_admissions[CN_HOME_HOST]),
        "auto_moves", (json_int_t)e->auto_moves);
    return json_pack(
        "{s:s, s:i, s:s?, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:o, s:o, s:I, "
        "s:I, s:o, s:o, s:o?}",
        "version", CINCH_VERSION, "exit_code", s->exit_code, "stopped",
        *r->why && !cn_batch_run_is_complete(r) ? r->why : NULL,
        "elapsed_s", s->elapsed_s, "answered", (json_int_t)r->n_answered, "errors",
        (json_int_t)r->n_errors, "skipped", (json_int_t)r->n_skipped, "changed",
        (json_int_t)r->n_changed, "prompt_tokens", (json_int_t)e->prompt_tokens, "cached_tokens",
        (json_int_t)e->cached_tokens, "completion_tokens", (json_int_t)e->generation_tokens,
        "requests_per_s", per_second(s, r->n_answered),
        "output_tokens_per_s", per_second(s, e->generation_tokens), "kv", kv, "file", file,
        "exact_match", match, "warnings", (json_int_t)r->n_warned,
        "loop_rescues", (json_int_t)r->n_rescued, "audit", audit_json(r), "shard",
        shard_of_run_json(r->config), "engines", engines_of_run_json(s));
}

static cn_status write_summary(const summary *s)
{
    const cn_config *c = s->run->config;
    const bool to_stdout = strcmp(c->output_file, "-") != 0;
    const cn_status text = to_stdout ? cn_flush_standard_output() : CN_OK;
    if (text != CN_OK) cn_log(CN_LOG_ERROR, "the summary: %s", cn_last_error());
    const cn_status json = c->summary_json ? cn_json_write_file(summary_json(s), c->summary_json)
                                           : CN_OK;
    if (json != CN_OK) cn_log(CN_LOG_ERROR, "the summary: %s", cn_last_error());
    return json != CN_OK ? json : text;
}

/* synced: the disk has taken all answers. If not, --resume repeats the missing ones. */
static int exit_code_of(const cn_batch_run *r, bool synced)
{
    const bool empty = r->totals.answered + r->totals.errors == 0;
    const bool stopped = *r->why && !cn_batch_run_is_complete(r);
    const bool resumable = !r->failed || (cn_batch_output_is_file(r->output) &&
                                          (!empty || r->engine_failed));
    if (stopped) return resumable ? CN_EXIT_RESUMABLE : CN_EXIT_FAILED;
    if (!synced) return CN_EXIT_RESUMABLE;
    return r->totals.errors && !r->config->ok_with_errors ? CN_EXIT_SOME_ERRORS : CN_EXIT_OK;
}

/* ---- the command ---- */

/* A run that did nothing leaves no files. */
static void remove_files(cn_batch_run *run)
{
    cn_batch_output *o = run->output;
    if (!o || !cn_batch_output_is_file(o) || cn_batch_output_bytes(o) > 0) return;
    cn_run_record_remove(run->config->output_file);
    cn_batch_output_discard(o);
}

/* Answers on a terminal would be mixed with a bar. */
static cn_opt_progress progress_mode(const cn_config *c)
{
    const bool mixed = strcmp(c->output_file, "-") == 0 && isatty(STDOUT_FILENO);
    return mixed && c->progress == CN_OPT_PROGRESS_AUTO ? CN_OPT_PROGRESS_PLAIN : c->progress;
}

static int run_command_batch(cn_batch_run *run, cn_batch_drive *drive)
{
    const cn_config *c = run->config;
    const bool to_file = cn_batch_output_is_file(run->output);
    if (!to_file)
        cn_log(CN_LOG_INFO,
               "--output-file %s is not a regular file: a stopped run cannot be resumed",
               c->output_file);
    cn_stop_signals_set(&stop_rule);
    drive->stop_asked = &stop_asked;
    cn_progress_begin(&drive->progress, progress_mode(c), stderr);
    const double started_s = cn_now_s();
    cn_batch_drive_all(drive, run);
    drive->hangs = !cn_lanes_stop(drive->lanes);
    const bool synced = cn_batch_output_sync(run->output) == CN_OK;
    if (!synced)
        cn_log(CN_LOG_ERROR,
               "%s: answers may be missing from the file: check the disk, "
               "then run again with --resume",
               cn_last_error());
    summary s = {
        .run = run,
        .lanes = drive->lanes,
        .elapsed_s = cn_now_s() - started_s,
        .exit_code = exit_code_of(run, synced),
    };
    cn_lanes_stats(drive->lanes, &s.stats);
    s.stats.prompt_tokens -= run->replayed.prompt_tokens;
    s.stats.cached_tokens -= run->replayed.cached_tokens;
    s.stats.generation_tokens -= run->replayed.completion_tokens;
    if (run->failed) cn_log(CN_LOG_ERROR, "%s", run->why);
    if (s.exit_code == CN_EXIT_FAILED) return s.exit_code;
    print_summary(strcmp(c->output_file, "-") == 0 ? stderr : stdout, &s);
    const bool written = write_summary(&s) == CN_OK;
    return written || s.exit_code == CN_EXIT_RESUMABLE ? s.exit_code : CN_EXIT_FAILED;
}

int cn_cmd_run_batch(int argc, char **argv)
{
    int exit_code;
    cn_config *c = cn_command_begin(argc, argv, NULL, &exit_code);
    if (!c) return exit_code;
    cn_ignore_write_signals();
    /* Replays and rescues use full KV, which needs no extra memory. */
    if (c->audit_percent > 0 || c->loop_rescue == CN_OPT_RESCUE_FULL)
        c->kv_policies |= 1U << CN_KV_FULL;
    cn_batch_run run = {.config = c};
    cn_batch_drive drive = {0};
    cn_lane_engines engines = {0};
    if (open_run(&run, &drive, &engines, c) == CN_OK) {
        exit_code = run_command_batch(&run, &drive);
    } else {
        cn_log(CN_LOG_ERROR, "cinch run-batch: %s", cn_last_error());
        exit_code = CN_EXIT_FAILED;
        if (drive.lanes) drive.hangs = !cn_lanes_stop(drive.lanes);
    }
    if (exit_code == CN_EXIT_FAILED) remove_files(&run);
    if (drive.hangs) cn_end_now(exit_code);
    cn_lanes_free(drive.lanes);
    cn_lane_engines_free(&engines);
    cn_batch_run_end(&run);
    cn_batch_output_close(run.output);
    cn_line_reader_close(run.input);
    cn_config_free(c);
    return exit_code;
}
