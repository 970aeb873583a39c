/* cmd_merge.c - `cinch merge`: joins the outputs of shards, or of other runs over one input, into
 * one file, and prints what is missing.
 *
 * Exit codes as those of run-batch: 0 every line is answered, 2 some lines have an error, 3 lines
 * are missing, 1 nothing was done. */

#include "engine/cmd/command.h"
#include "engine/offline/merge.h"
#include "engine/offline/output_scan.h"

/* A pattern of outputs also matches their records. */
static uint32_t drop_records(char **files, int n)
{
    uint32_t n_outputs = 0;
    for (int i = 0; i < n; i++)
        if (!cn_output_is_beside(files[i])) files[n_outputs++] = files[i];
    return n_outputs;
}

static void print_missing(const cn_config *c, const cn_merge_report *r)
{
    printf("%llu lines are missing: ", (unsigned long long)r->n_missing);
    for (uint64_t i = 0; i < r->n_missing && i < CN_MERGE_IDS_SHOWN; i++)
        printf("%s%s", i ? ", " : "", r->missing[i]);
    printf("%s\n", r->n_missing > CN_MERGE_IDS_SHOWN ? ", ..." : "");
    if (r->missing_shards.len)
        printf("missing shards: %s\n", r->missing_shards.data);
    if (r->missing_shards.len && r->same_of)
        printf("run these shards of %u again with --resume\n", r->shard_of);
    else if (r->missing_shards.len)
        printf("these are shards of %u; other outputs are of other numbers of shards: run these "
               "again with --resume and --done for the others\n", r->shard_of);
    if (!r->written)
        printf("%s was not written: --allow-missing writes it without these lines\n",
               c->merge_output);
}

static void print_report(const cn_config *c, const cn_merge_report *r, double elapsed_s)
{
    printf("%llu lines: %llu answered, %llu errors, in %.1f s\n", (unsigned long long)r->n_lines,
           (unsigned long long)r->n_answered, (unsigned long long)r->n_errors, elapsed_s);
    if (r->n_duplicates)
        printf("%llu further lines for the same requests, %llu of them with another text\n",
               (unsigned long long)r->n_duplicates, (unsigned long long)r->n_different);
    if (r->n_flawed)
        printf("%llu incomplete or damaged lines were ignored\n", (unsigned long long)r->n_flawed);
    if (r->n_foreign)
        printf("%llu lines for requests that are not in %s were left out\n",
               (unsigned long long)r->n_foreign, c->merge_input);
    if (r->n_changed)
        cn_log(CN_LOG_WARN,
               "%s has changed since it was answered: of %llu lines that were compared, %llu are "
               "another request than their answer's",
               c->merge_input, (unsigned long long)r->n_compared,
               (unsigned long long)r->n_changed);
    if (r->graded)
        printf("exact match %llu/%llu\n", (unsigned long long)r->matched,
               (unsigned long long)r->graded);
    if (r->n_missing) print_missing(c, r);
}

static int merge_exit_code_of(const cn_merge_report *r)
{
    if (r->n_missing) return CN_EXIT_RESUMABLE;
    return r->n_errors ? CN_EXIT_SOME_ERRORS : CN_EXIT_OK;
}

int cn_cmd_merge(int argc, char **argv)
{
    int first, exit_code;
    cn_config *c = cn_command_begin(argc, argv, &first, &exit_code);
    if (!c) return exit_code;
    cn_ignore_write_signals();
    const uint32_t n = drop_records(argv + first, argc - first);
    const double started_s = cn_now_s();
    cn_merge_report r = {0};
    cn_status status = n > 0 ? cn_merge(c, argv + first, n, &r)
                             : cn_fail(CN_ERR_ARG, "no output is named: give those of the runs, as "
                                                   "in cinch merge -i in.jsonl -o all.jsonl "
                                                   "out/*.jsonl");
    if (status == CN_OK) print_report(c, &r, cn_now_s() - started_s);
    exit_code = cn_command_end("merge", status);
    if (exit_code == CN_EXIT_OK) exit_code = merge_exit_code_of(&r);
    cn_merge_report_free(&r);
    cn_config_free(c);
    return exit_code;
}
