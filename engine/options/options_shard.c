/* options_shard.c - which shard of the input a run answers: from --shard, or from what Slurm,
 * Kubernetes and others tell their tasks in the environment; and the files that its name expands
 * to. See options.h. */
#include <stdlib.h>
#include <sys/stat.h>

#include "engine/options/option_value.h"

typedef struct shard {
    uint32_t index, of;
    char source[64]; /* the variable or the option, for messages */
} shard;

/* ---- numbers ---- */

/* Reads a number from the beginning of the text; returns what follows, or NULL. */
static const char *read_shard_number(const char *text, uint32_t *out)
{
    const size_t n = strspn(text, "0123456789");
    if (n == 0 || n > 9) return NULL;
    *out = (uint32_t)strtoul(text, NULL, 10);
    return text + n;
}

/* "3/64" */
static cn_status read_pair(shard *out, const char *what, const char *text)
{
    const char *rest = read_shard_number(text, &out->index);
    rest = rest && *rest == '/' ? read_shard_number(rest + 1, &out->of) : NULL;
    if (!rest || *rest)
        return cn_fail(CN_ERR_ARG, "%s %s: expected I/N, as 3/64 for the fourth of 64 shards%s",
                       what, text, strcmp(what, "--shard") == 0 ? ", or auto" : "");
    return CN_OK;
}

static cn_status check_shard_number(const shard *s, const char *what)
{
    if (s->of == 0 || s->of > CN_MAX_SHARDS)
        return cn_fail(CN_ERR_ARG, "%s: %u shards: expected 1 to %d", what, s->of,
                       (int)CN_MAX_SHARDS);
    if (s->index >= s->of)
        return cn_fail(CN_ERR_ARG, "%s: shard %u of %u: the shards are 0 to %u", what, s->index,
                       s->of, s->of - 1);
    return CN_OK;
}

/* Sets *found and *out if the variable is set. */
static cn_status read_variable(const char *name, uint32_t *out, bool *found)
{
    const char *text = cn_environment(name);
    *found = text != NULL;
    if (!text) return CN_OK;
    const char *rest = read_shard_number(text, out);
    if (rest && !*rest) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--shard auto: %s is \"%s\": expected a number", name, text);
}

/* ---- Slurm ---- */

/* Position and size of this task in an array that has no gaps and begins with 0. */
static cn_status read_whole_array(shard *s)
{
    uint32_t count = 0, least = 0, most = 0, step = 1;
    bool has_count, has_least, has_most, has_step;
    CN_TRY(read_variable("SLURM_ARRAY_TASK_COUNT", &count, &has_count));
    CN_TRY(read_variable("SLURM_ARRAY_TASK_MIN", &least, &has_least));
    CN_TRY(read_variable("SLURM_ARRAY_TASK_MAX", &most, &has_most));
    CN_TRY(read_variable("SLURM_ARRAY_TASK_STEP", &step, &has_step));
    if (!has_count || !has_most || step == 0)
        return cn_fail(CN_ERR_ARG, "--shard auto: SLURM_ARRAY_TASK_ID is set, but not "
                                   "SLURM_ARRAY_TASK_COUNT and SLURM_ARRAY_TASK_MAX: set "
                                   "CINCH_SHARD_COUNT to the number of shards");
    if (least != 0 || (uint64_t)most - least + step != (uint64_t)count * step)
        return cn_fail(CN_ERR_ARG,
                       "--shard auto: this array has gaps: it has %u tasks from %u to %u: set "
                       "CINCH_SHARD_COUNT to the N of the first submission",
                       count, least, most);
    s->index = (s->index - least) / step;
    s->of = count;
    return CN_OK;
}

/* Inside srun each task of a step is a shard. Outside, a batch script has the same variables. */
static cn_status read_shard_step(uint32_t *rank, uint32_t *n_ranks, bool *found)
{
    bool has_rank, has_count;
    *found = false;
    if (!cn_environment("SLURM_STEP_ID")) return CN_OK;
    CN_TRY(read_variable("SLURM_PROCID", rank, &has_rank));
    CN_TRY(read_variable("SLURM_NTASKS", n_ranks, &has_count));
    *found = has_rank && has_count && *n_ranks > 0;
    return CN_OK;
}

/* total: of CINCH_SHARD_COUNT, which counts all shards, or 0. */
static cn_status read_slurm(shard *s, uint32_t total, bool *found)
{
    uint32_t rank = 0, n_ranks = 1;
    bool in_step;
    CN_TRY(read_variable("SLURM_ARRAY_TASK_ID", &s->index, found));
    CN_TRY(read_shard_step(&rank, &n_ranks, &in_step));
    snprintf(s->source, sizeof s->source, *found ? "SLURM_ARRAY_TASK_ID" : "SLURM_PROCID");
    if (!*found) {
        *found = in_step;
        s->index = rank;
        s->of = total ? total : n_ranks;
        return CN_OK;
    }
    if (!in_step) rank = 0, n_ranks = 1;
    if (total)
        s->of = total;
    else
        CN_TRY(read_whole_array(s));
    const uint64_t index = (uint64_t)s->index * n_ranks + rank;
    const uint64_t of = total ? total : (uint64_t)s->of * n_ranks;
    if (index > UINT32_MAX || of > UINT32_MAX)
        return cn_fail(CN_ERR_ARG, "--shard auto: SLURM_ARRAY_TASK_ID %u times SLURM_NTASKS %u is "
                                   "too large", s->index, n_ranks);
    s->index = (uint32_t)index;
    s->of = (uint32_t)of;
    return CN_OK;
}

/* ---- the environment ---- */

/* count NULL: the launcher tells only the index. */
static const struct {
    const char *index, *count;
} launchers[] = {
    {"JOB_COMPLETION_INDEX", NULL}, /* Kubernetes */
    {"SKYPILOT_JOB_RANK", "SKYPILOT_NUM_JOBS"},
    {"SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"},
    {"AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
    {"RANK", "WORLD_SIZE"},
};

static cn_status read_launchers(shard *s, uint32_t total, bool *found)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        bool has_index, has_count = false;
        CN_TRY(read_variable(launchers[i].index, &s->index, &has_index));
        if (!has_index) continue;
        s->of = total;
        if (!total && !launchers[i].count)
            return cn_fail(CN_ERR_ARG,
                           "--shard auto: %s is set, but Kubernetes does not tell the number of "
                           "shards: set CINCH_SHARD_COUNT to the completions of the Job",
                           launchers[i].index);
        if (!total) CN_TRY(read_variable(launchers[i].count, &s->of, &has_count));
        if (!total && !has_count) continue;
        snprintf(s->source, sizeof s->source, "%s", launchers[i].index);
        *found = true;
        return CN_OK;
    }
    return CN_OK;
}

/* The first complete pair: that of cinch, of Slurm, of the other launchers. */
static cn_status find_shard(shard *s)
{
    uint32_t total = 0;
    bool found, has_total;
    const char *pair = cn_environment("CINCH_SHARD");
    if (pair) {
        snprintf(s->source, sizeof s->source, "CINCH_SHARD");
        return read_pair(s, "--shard auto: CINCH_SHARD", pair);
    }
    CN_TRY(read_variable("CINCH_SHARD_COUNT", &total, &has_total));
    if (has_total && total == 0)
        return cn_fail(CN_ERR_ARG, "--shard auto: CINCH_SHARD_COUNT is 0: expected 1 to %d",
                       (int)CN_MAX_SHARDS);
    CN_TRY(read_variable("CINCH_SHARD_INDEX", &s->index, &found));
    if (found && total) {
        s->of = total;
        snprintf(s->source, sizeof s->source, "CINCH_SHARD_INDEX");
        return CN_OK;
    }
    CN_TRY(read_slurm(s, total, &found));
    if (!found) CN_TRY(read_launchers(s, total, &found));
    if (found) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "--shard auto: the environment tells no shard: set CINCH_SHARD=I/N or use "
                   "--shard I/N%s",
                   total ? " (CINCH_SHARD_COUNT is set, but no index such as CINCH_SHARD_INDEX or "
                           "SLURM_ARRAY_TASK_ID)"
                         : "");
}

/* ---- names ---- */

bool cn_shard_names_index(const char *pattern)
{
    for (const char *p = pattern; (p = strchr(p, '%')); p += p[1] ? 2 : 1)
        if (p[1] == 'i') return true;
    return false;
}

cn_status cn_shard_check_name(const char *option, const char *pattern)
{
    for (const char *p = pattern; (p = strchr(p, '%')); p += 2)
        if (!p[1] || !strchr("in%", p[1]))
            return cn_fail(CN_ERR_ARG, "--%s %s: with --shard, %%%.1s means nothing: %%i is the "
                                       "shard, %%n the number of shards, %%%% a percent sign",
                           option, pattern, p + 1);
    return CN_OK;
}

static cn_status expand(char **field, const shard *s)
{
    cn_buf out = {0};
    cn_status status = CN_OK;
    for (const char *p = *field; *p && status == CN_OK; p++) {
        if (*p != '%')
            status = cn_buf_add(&out, p, 1);
        else if (*++p == '%')
            status = cn_buf_add(&out, p, 1);
        else
            status = cn_buf_addf(&out, "%05u", *p == 'i' ? s->index : s->of);
    }
    if (status != CN_OK) {
        cn_buf_free(&out);
        return status;
    }
    cn_free(*field);
    *field = out.data;
    return CN_OK;
}

/* A directory stands for the file of the shard in it. */
static cn_status name_output(char **field, const shard *s)
{
    struct stat st;
    cn_buf out = {0};
    const size_t n = strlen(*field);
    const bool slash = n > 0 && (*field)[n - 1] == '/';
    if (stat(*field, &st) != 0 || !S_ISDIR(st.st_mode))
        return cn_fail(CN_ERR_ARG, "--output-file %s: each shard has its own output: write %%i in "
                                   "the name, as in out/%%i-of-%%n.jsonl, or name a directory that "
                                   "exists", *field);
    CN_TRY(cn_buf_addf(&out, "%s%spart-%05u-of-%05u.jsonl", *field, slash ? "" : "/", s->index,
                       s->of));
    cn_free(*field);
    *field = out.data;
    return CN_OK;
}

cn_status cn_config_find_shard(cn_config *c)
{
    shard s = {.source = "--shard"};
    const bool automatic = strcmp(c->shard, "auto") == 0;
    CN_TRY(automatic ? find_shard(&s) : read_pair(&s, "--shard", c->shard));
    CN_TRY(check_shard_number(&s, automatic ? s.source : "--shard"));
    const bool named = cn_shard_names_index(c->output_file);
    CN_TRY(expand(&c->output_file, &s));
    if (!named) CN_TRY(name_output(&c->output_file, &s));
    if (c->summary_json) CN_TRY(expand(&c->summary_json, &s));
    c->shard_index = s.index;
    c->shard_of = s.of;
    cn_log(CN_LOG_INFO, "shard %u of %u (%s), output %s", s.index, s.of, s.source, c->output_file);
    return CN_OK;
}
