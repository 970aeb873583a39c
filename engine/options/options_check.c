/* options_check.c - the checks that involve several options: options that need another one, options
 * that exclude each other, and values that must fit together. See options.h. */

#include "compress/away.h"
#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/options/option_value.h"

/* ---- options with a form ---- */

/* Parts without a comma, none of them empty. */
static cn_status check_list(const char *option, const char *text, uint32_t max_parts)
{
    uint32_t n = 1;
    for (const char *p = text; (p = strchr(p, ',')); p++) n++;
    if (*text == ',' || text[strlen(text) - 1] == ',' || strstr(text, ",,"))
        return cn_fail(CN_ERR_ARG, "--%s \"%s\": expected values separated by commas", option,
                       text);
    if (n > max_parts)
        return cn_fail(CN_ERR_ARG, "--%s: expected at most %u values, got %u", option, max_parts,
                       n);
    return CN_OK;
}

static cn_status check_option_forms(const cn_config *c)
{
    static const char path_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789/-_.~";
    const char *root = c->root_path;
    if (c->served_model_name)
        CN_TRY(check_list("served-model-name", c->served_model_name, CN_MAX_SERVED_NAMES));
    if (c->allowed_origins) CN_TRY(check_list("allowed-origins", c->allowed_origins, UINT32_MAX));
    if (root && (*root != '/' || root[strspn(root, path_chars)] || root[strlen(root) - 1] == '/'))
        return cn_fail(CN_ERR_ARG, "--root-path \"%s\": expected a path such as /llm, without a "
                       "slash at its end", root);
    return CN_OK;
}

/* ---- options that need other options ---- */

static cn_status check_required(const cn_config *c, uint32_t sections)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++)
        if (o[i].section & sections && o[i].flags & CN_OPTION_REQUIRED && !c->given[i])
            return cn_fail(CN_ERR_ARG, "--%s is missing: %s", o[i].name, o[i].help);
    return CN_OK;
}

/* Whether the user set the option; a switch must also be on, and an enumerated option must not have
 * its first value, which is the default. */
static bool is_asked_for(const cn_config *c, const cn_option *o)
{
    const void *field = cn_option_field(o, c);
    bool on = true;
    if (o->type == CN_OPTION_BOOL) on = *(const bool *)field;
    if (o->type == CN_OPTION_ENUM) on = *(const int *)field != 0;
    return on && cn_config_is_given(c, field);
}

/* Whether the option is in force: asked for, and not turned off by a 0. */
static bool is_on(const cn_config *c, const cn_option *o)
{
    const bool zero = o->type == CN_OPTION_U32 && *(const uint32_t *)cn_option_field(o, c) == 0;
    return is_asked_for(c, o) && !zero;
}

/* Checks options that only have an effect together with another option. */
static cn_status check_needed_options(const cn_config *c, uint32_t sections)
{
    static const struct {
        const char *name, *needs;
    } rules[] = {
        {"id-field", "prompt-field"},     {"retry-errors", "resume"},
        {"warmup-steps", "steady-steps"}, {"batches", "resident"},
        {"decode-steps", "resident"},     {"timeline-interval", "timeline"},
        {"save-detailed", "output-json"}, {"render", "chat"},
        {"enable-thinking", "chat"},      {"continue-field", "prompt-field"},
        {"select-probe", "continue-field"}, {"max-files", "spool"},
        {"max-file-bytes", "spool"},        {"max-spool-bytes", "spool"},
        {"max-batch-lines", "spool"},       {"max-batches", "spool"},
        {"max-batch-inflight", "spool"},    {"select-churn", "resident"},
        {"loop-rescue", "repetition-max-pattern-size"},
        {"shard-by", "shard"},              {"lengths", "lines"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const cn_option *o = cn_option_find_in(rules[i].name, sections);
        const cn_option *other = cn_option_find_in(rules[i].needs, sections);
        if (o->section & sections && is_asked_for(c, o) && !is_on(c, other))
            return cn_fail(CN_ERR_ARG, "--%s needs --%s", o->name, other->name);
    }
    return CN_OK;
}

/* ---- options that a policy or a selector reads ---- */

enum { READERS_BYTES = 128 };

const char *cn_option_kv_key(const cn_option *o)
{
    static const char prefix[] = "kv.";
    const bool has = o->json && strncmp(o->json, prefix, sizeof prefix - 1) == 0;
    return has ? o->json + sizeof prefix - 1 : NULL;
}

/* Whether the row's key of a kv object is among `params`, the list of a policy or selector. */
static bool is_read(const cn_option *o, const char *params)
{
    const char *key = cn_option_kv_key(o);
    return key && cn_option_is_word(params, key);
}

/* The policies or selectors that read an option: "window or zip". */
static void list_readers(char *text, uint32_t set, const char *(*name)(uint32_t))
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; set >> i && used < READERS_BYTES; i++) {
        if (!(set >> i & 1)) continue;
        const char *before = !used ? "" : set >> i == 1 ? " or " : ", ";
        used += (size_t)snprintf(text + used, READERS_BYTES - used, "%s%s", before, name(i));
    }
}

static const char *policy_name(uint32_t i) { return cn_kv_policy_name((cn_kv_policy)i); }
static const char *rule_name(uint32_t i) { return cn_rule_of((cn_kv_rule)i)->name; }
static const char *selector_name(uint32_t i) { return cn_kv_select_name((cn_kv_select)i); }

/* Bits of the policies and of the selectors that read the option; away: of the selectors that read
 * it for requests whose home is not the device; rules: of the rules with which policies that score
 * read it. */
typedef struct readers {
    uint32_t policies, selectors, away, rules;
} readers;

/* Returns whether the option is read for requests with this selector and a home that is not the
 * device. */
static bool is_read_away(const cn_option *o, cn_kv_select select)
{
    cn_kv_params kv = {.home = CN_HOME_PEER, .select = select};
    bool reads = false;
    for (uint32_t i = 0; i <= CN_QUERY_PREDICTED; i++) {
        kv.select_query = (cn_select_query)i;
        reads |= is_read(o, cn_away_params(&kv));
    }
    return reads;
}

static readers readers_of(const cn_config *c, const cn_option *o)
{
    const void *field = cn_option_field(o, c);
    readers r = {0};
    const bool events = field == &c->sync_compression || field == &c->hybrid_scheduling;
    for (uint32_t i = 0; i < CN_N_POLICIES; i++) {
        const cn_policy *p = cn_policy_of((cn_kv_policy)i);
        const bool reads = events ? p->keep != CN_KEEP_ALL : is_read(o, p->params);
        r.policies |= (uint32_t)reads << i;
    }
    for (uint32_t i = CN_SELECT_NONE + 1; i < CN_N_SELECTORS; i++) {
        const cn_selector *s = cn_selector_of((cn_kv_select)i);
        const bool reads =
            field == &c->select_dense_layers || is_read(o, s->params);
        r.selectors |= (uint32_t)reads << i;
        const bool away = s->away && field != &c->kv.home && is_read_away(o, (cn_kv_select)i);
        r.away |= (uint32_t)away << i;
    }
    for (uint32_t i = 0; i < CN_N_RULES; i++)
        r.rules |= (uint32_t)is_read(o, cn_rule_of((cn_kv_rule)i)->params) << i;
    return r;
}

/* Whether requests may have a policy, with one of these rules, or a selector and home, that reads
 * the option. */
static bool has_reader(const cn_config *c, const readers *r, uint32_t rules)
{
    const uint32_t selectors = cn_config_selectors(c), policies = cn_config_policies(c);
    for (uint32_t i = 0; i < CN_N_POLICIES; i++) {
        const bool reads = !cn_policy_ranks((cn_kv_policy)i) || !r->rules || r->rules & rules;
        if (r->policies & policies & 1U << i && reads) return true;
    }
    return r->selectors & selectors || (cn_config_away(c) && r->away & selectors);
}

bool cn_config_reads_kv(const cn_config *c, const cn_option *o)
{
    const readers r = readers_of(c, o);
    const bool chooses = !r.policies && !r.selectors && !r.away;
    return chooses || has_reader(c, &r, UINT32_MAX);
}

static cn_status refuse_away_option(const cn_config *c, const cn_option *o, const readers *r)
{
    char selectors[READERS_BYTES];
    list_readers(selectors, r->away, selector_name);
    if (c->arms || c->decode_arms)
        return cn_fail(CN_ERR_ARG, "--%s needs an arm of --arms that reads it: %s, with home=peer "
                                   "or home=host", o->name, selectors);
    return cn_fail(CN_ERR_ARG, "--%s needs --kv-home peer or host, with --kv-select %s", o->name,
                   selectors);
}

/* For an option that some policy, selector or rule reads, but none that a request may have. */
static cn_status refuse_unread(const cn_config *c, const cn_option *o, const readers *r)
{
    char policies[READERS_BYTES], selectors[READERS_BYTES], rules[READERS_BYTES];
    list_readers(policies, r->policies, policy_name);
    list_readers(selectors, r->selectors, selector_name);
    list_readers(rules, r->rules, rule_name);
    const bool arms = c->arms || c->decode_arms;
    if (!r->policies && !r->selectors) return refuse_away_option(c, o, r);
    if (has_reader(c, r, UINT32_MAX))
        return cn_fail(CN_ERR_ARG, "--%s needs %s %s, which reads it", o->name,
                       arms ? "an arm of --arms with rule" : "--kv-rule", rules);
    if (arms)
        return cn_fail(CN_ERR_ARG, "--%s needs an arm of --arms that reads it: %s%s%s", o->name,
                       policies, *policies && *selectors ? ", " : "", selectors);
    return cn_fail(CN_ERR_ARG, "--%s needs %s%s%s%s%s", o->name, *policies ? "--kv-policy " : "",
                   policies, *policies && *selectors ? ", or " : "",
                   *selectors ? "--kv-select " : "", selectors);
}

/* For an option without effect beside another one, which only a request's body may change. A
 * resumed run keeps the options that it began with. */
static cn_status report_silenced(const cn_config *c, const cn_option *o, bool has_bodies)
{
    const char *key = cn_option_kv_key(o);
    cn_kv_params zip = c->kv; /* the policy that reads such options */
    zip.policy = CN_KV_ZIP;
    const char *silencer = key ? cn_kv_silencer(&zip, key) : NULL;
    if (!silencer) return CN_OK;
    if (!has_bodies && !c->resume)
        return cn_fail(CN_ERR_ARG, "--%s: no effect with kv %s; leave one of them out", o->name,
                       silencer);
    cn_log(CN_LOG_WARN, "--%s: no effect with kv %s; it is for %s", o->name, silencer,
           has_bodies ? "requests that change this" : "a run that began with it");
    return CN_OK;
}

cn_status cn_config_check_kv_readers(const cn_config *c, uint32_t rules)
{
    const bool arms = c->arms || c->decode_arms; /* their own members count */
    const char *rule = cn_rule_of(c->kv.rule)->name;
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (o[i].section != CN_SECTION_KV || !c->given[i]) continue;
        const readers r = readers_of(c, &o[i]);
        const bool chooses = !r.policies && !r.selectors && !r.away;
        if (chooses) continue;
        if (!has_reader(c, &r, rules)) return refuse_unread(c, &o[i], &r);
        if (rules == CN_ANY_RULE && !has_reader(c, &r, 1U << c->kv.rule))
            cn_log(CN_LOG_WARN,
                   "--%s: rule %s does not read it; it is for requests with another kv.rule",
                   o[i].name, rule);
        else if (!arms)
            CN_TRY(report_silenced(c, &o[i], rules == CN_ANY_RULE));
    }
    return CN_OK;
}

/* ---- values that must fit together ---- */

static cn_status check_engine(const cn_config *c)
{
    if (cn_config_is_given(c, &c->gpu_memory_utilization) && strcmp(c->device, "cpu") == 0)
        return cn_fail(CN_ERR_ARG, "--gpu-memory-utilization has no effect with --device cpu: set "
                                   "--kv-cache-memory-bytes");
    if (c->max_num_batched_tokens < c->max_num_seqs)
        return cn_fail(CN_ERR_ARG,
                       "--max-num-batched-tokens %u is below --max-num-seqs %u, but every running "
                       "request needs one token per step: raise the first or lower the second",
                       c->max_num_batched_tokens, c->max_num_seqs);
    if (!c->enable_chunked_prefill && c->max_num_batched_tokens < c->max_model_len)
        return cn_fail(CN_ERR_ARG,
                       "--max-num-batched-tokens %u is below --max-model-len %u: raise it or use "
                       "--enable-chunked-prefill",
                       c->max_num_batched_tokens, c->max_model_len);
    return CN_OK;
}

/* Whether a request's body may set what the options leave open. */
static bool has_bodies(const cn_config *c, uint32_t sections)
{
    return sections & CN_SECTION_SERVE || (sections & CN_SECTION_RUN_BATCH && !c->prompt_field);
}

/* Bit i: requests may have rule i. A plan is one for a server too. */
static uint32_t rules_of(const cn_config *c, uint32_t sections)
{
    return has_bodies(c, sections) || sections & CN_SECTION_PLAN ? CN_ANY_RULE : 1U << c->kv.rule;
}

/* The sizes of a loop only have a meaning while loops are detected. */
static cn_status check_detection(const cn_config *c)
{
    const bool count = cn_config_is_given(c, &c->sampling.repetition_min_count);
    const bool size = cn_config_is_given(c, &c->sampling.repetition_min_pattern_size);
    if ((!count && !size) || c->sampling.repetition_max_pattern_size) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--%s needs --repetition-max-pattern-size",
                   count ? "repetition-min-count" : "repetition-min-pattern-size");
}

/* Requests without n of their own would all be refused. Another engine answers `bench serve`. */
static cn_status check_option_samples(const cn_config *c, uint32_t sections)
{
    const bool serves = sections & CN_SECTION_SERVE;
    const struct {
        const char *name;
        uint32_t most; /* 0: no limit */
    } limits[] = {{"max-n", c->max_n},
                  {"max-queue", c->max_queue},
                  {"max-requests-per-key", serves ? c->max_requests_per_key : 0}};
    if (!serves && !(sections & CN_SECTION_RUN_BATCH)) return CN_OK;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].most > 0 && c->sampling.n > limits[i].most)
            return cn_fail(CN_ERR_ARG,
                           "--n %u exceeds --%s %u: raise the second or lower the first",
                           c->sampling.n, limits[i].name, limits[i].most);
    return CN_OK;
}

static cn_status check_sampling(const cn_sampling *s)
{
    if (s->max_tokens && s->min_tokens > s->max_tokens)
        return cn_fail(CN_ERR_ARG, "--min-tokens %u exceeds --max-tokens %u", s->min_tokens,
                       s->max_tokens);
    if (s->repetition_min_pattern_size > s->repetition_max_pattern_size)
        return cn_fail(CN_ERR_ARG,
                       "--repetition-min-pattern-size %u exceeds --repetition-max-pattern-size %u",
                       s->repetition_min_pattern_size, s->repetition_max_pattern_size);
    if (s->repetition_max_pattern_size && s->repetition_min_count < 2)
        return cn_fail(CN_ERR_ARG,
                       "--repetition-min-count %u: expected at least 2 repeats of a pattern",
                       s->repetition_min_count);
    return CN_OK;
}

/* Limits between options that a declared policy reads together. */
static cn_status check_kv_options(const cn_config *c)
{
    const cn_kv_params *kv = &c->kv;
    const uint32_t policies = cn_config_policies(c);
    if (cn_policies_need(policies).slots && kv->window_tokens > kv->budget_tokens)
        return cn_fail(CN_ERR_ARG, "--kv-window %u exceeds --kv-budget %u", kv->window_tokens,
                       kv->budget_tokens);
    return policies >> CN_KV_WINDOW & 1 ? cn_policy_check_sinks(kv) : CN_OK;
}

static cn_status check_prompts(const cn_config *c)
{
    if (c->grade != CN_OPT_GRADE_NONE && !c->answer_field)
        return cn_fail(CN_ERR_ARG,
                       "--grade needs --answer-field, the field with the reference answer");
    return CN_OK;
}

static cn_status check_rescue(const cn_config *c)
{
    /* Not cn_config_policies, which adds what homes do to requests without compression. */
    const uint32_t policies = c->kv_policies | 1U << c->kv.policy;
    if (c->loop_rescue == CN_OPT_RESCUE_OFF || cn_policies_need(policies).capped) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--loop-rescue needs --kv-policy window or zip: only compressed "
                               "requests are run once more");
}

static cn_status check_shard(const cn_config *c)
{
    if (!c->shard) return CN_OK;
    if (strcmp(c->output_file, "-") == 0)
        return cn_fail(CN_ERR_ARG, "--shard needs an output file for cinch merge: name one with "
                                   "%%i in it, or a directory, instead of --output-file -");
    CN_TRY(cn_shard_check_name("output-file", c->output_file));
    if (c->shard_by == CN_OPT_SHARD_BY_BYTES && strcmp(c->input_file, "-") == 0)
        return cn_fail(CN_ERR_ARG, "--shard-by bytes needs a file: standard input has no parts");
    if (!c->summary_json) return CN_OK;
    CN_TRY(cn_shard_check_name("summary-json", c->summary_json));
    if (cn_shard_names_index(c->summary_json)) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--summary-json %s: each shard has its own summary: write %%i in "
                               "the name", c->summary_json);
}

static cn_status check_run_batch(const cn_config *c)
{
    CN_TRY(check_rescue(c));
    CN_TRY(check_shard(c));
    if (c->answer_field && c->grade == CN_OPT_GRADE_NONE)
        return cn_fail(CN_ERR_ARG, "--answer-field %s needs --grade", c->answer_field);
    bool to_stdout = strcmp(c->output_file, "-") == 0;
    if (c->resume && to_stdout)
        return cn_fail(CN_ERR_ARG,
                       "--resume needs an output file: standard output cannot be read back");
    if (!to_stdout && strcmp(c->input_file, c->output_file) == 0)
        return cn_fail(CN_ERR_ARG, "--input-file and --output-file are both %s: use two files",
                       c->input_file);
    return CN_OK;
}

/* "*", "null", which is that of local files, or SCHEME://HOST[:PORT], as browsers send it. */
static bool is_origin(const char *text, size_t n)
{
    const size_t n_scheme = strcspn(text, ":/ \t,");
    if ((n == 1 && *text == '*') || (n == 4 && strncmp(text, "null", n) == 0)) return true;
    if (n_scheme == 0 || n_scheme + 3 >= n || strncmp(text + n_scheme, "://", 3) != 0) return false;
    return strcspn(text + n_scheme + 3, "/ \t,") == n - n_scheme - 3;
}

static cn_status check_origins(const char *list)
{
    for (const char *p = list; p && *p;) {
        const size_t n = strcspn(p, ",");
        if (!is_origin(p, n))
            return cn_fail(CN_ERR_ARG,
                           "--allowed-origins %.*s: expected an origin such as "
                           "https://app.example or http://localhost:3000, or *",
                           (int)n, p);
        p += n + (p[n] == ',');
    }
    return CN_OK;
}

static cn_status check_serve(const cn_config *c)
{
    CN_TRY(check_origins(c->allowed_origins));
    const bool port = cn_config_is_given(c, &c->port);
    if (c->uds && (port || cn_config_is_given(c, &c->host)))
        return cn_fail(CN_ERR_ARG, "--uds %s replaces --host and --port: leave out --%s", c->uds,
                       port ? "port" : "host");
    return CN_OK;
}

/* Refuses the options of a dataset for the measurements that have none. */
static cn_status check_bench_mode(const cn_config *c)
{
    const char *mode = c->resident ? "resident" : c->prefill ? "prefill" : "steady-steps";
    const bool steps = c->resident || c->prefill;
    const char *unused = NULL;
    if (!steps && !c->steady_steps) return CN_OK;
    if (cn_config_is_given(c, &c->num_prompts)) unused = "num-prompts";
    if (cn_config_is_given(c, &c->random_range_ratio)) unused = "random-range-ratio";
    if (steps && cn_config_is_given(c, &c->input_len)) unused = "input-len";
    if (steps && cn_config_is_given(c, &c->output_len)) unused = "output-len";
    if (unused)
        return cn_fail(CN_ERR_ARG, "--%s has no effect with --%s: leave it out", unused, mode);
    if (!steps && cn_kv_is_away(&c->kv))
        return cn_fail(CN_ERR_ARG,
                       "--steady-steps with --kv-home %s: its requests of every age have all their "
                       "KV on the device; use --kv-home device, or measure with --resident",
                       cn_kv_home_kind(&c->kv)->name);
    return CN_OK;
}

static cn_status check_bench(const cn_config *c)
{
    if (c->decode_arms) CN_TRY(cn_config_check_mode(c, CN_MODE_BENCH_ARMS));
    CN_TRY(check_bench_mode(c));
    bool random = c->dataset_name == CN_OPT_DATASET_RANDOM;
    bool input_len = cn_config_is_given(c, &c->input_len);
    bool steps = c->resident || c->prefill;
    if ((c->workload != NULL) + (c->steady_steps > 0) + steps + !random > 1)
        return cn_fail(CN_ERR_ARG, "--workload, --steady-steps, --resident or --prefill, and "
                                   "--dataset-name are different measurements: choose one");
    if (c->workload && (input_len || cn_config_is_given(c, &c->output_len) ||
                        cn_config_is_given(c, &c->random_range_ratio)))
        return cn_fail(CN_ERR_ARG,
                       "--workload %s has its own lengths: leave out --input-len, --output-len and "
                       "--random-range-ratio",
                       c->workload);
    if (!random && !c->dataset_path)
        return cn_fail(CN_ERR_ARG, "--dataset-name needs --dataset-path, unless it is random");
    if (random && c->dataset_path)
        return cn_fail(CN_ERR_ARG, "--dataset-path %s needs --dataset-name custom",
                       c->dataset_path);
    if (!random && (input_len || c->random_range_ratio > 0))
        return cn_fail(CN_ERR_ARG,
                       "--input-len and --random-range-ratio apply only to random requests: a "
                       "dataset has its own lengths");
    return CN_OK;
}

static cn_status check_plan(const cn_config *c)
{
    CN_TRY(cn_config_check_mode(c, CN_MODE_PLAN));
    if (c->gpu_memory == 0) return CN_OK;
    if (cn_config_is_given(c, &c->device))
        return cn_fail(CN_ERR_ARG, "--gpu-memory plans for a GPU, wherever it is: leave out "
                                   "--device %s", c->device);
    if (c->dtype == CN_OPT_DTYPE_FLOAT32)
        return cn_fail(CN_ERR_ARG, "--dtype float32 does not run on a GPU: leave it out, or leave "
                                   "out --gpu-memory");
    return CN_OK;
}

static cn_status check_tokenize(const cn_config *c)
{
    if (!c->chat) CN_TRY(cn_config_check_mode(c, CN_MODE_TOKENIZE_TEXT));
    if (c->text && cn_config_is_given(c, &c->file))
        return cn_fail(CN_ERR_ARG, "--text and --file %s both set the input: choose one", c->file);
    if (c->decode && (c->chat || c->pieces))
        return cn_fail(CN_ERR_ARG, "--decode converts ids to text, --%s text to ids: choose one",
                       c->chat ? "chat" : "pieces");
    if (c->render && c->pieces)
        return cn_fail(CN_ERR_ARG, "--render prints the prompt, --pieces its tokens: choose one");
    return CN_OK;
}

static cn_status check_calibrate(const cn_config *c)
{
    if (!cn_config_is_given(c, &c->chat_template)) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--chat-template has no effect on a text file: write rendered chats "
                               "into it with cinch tokenize --chat --render");
}

cn_status cn_config_validate(const cn_config *c, uint32_t sections)
{
    CN_TRY(check_required(c, sections));
    CN_TRY(check_option_forms(c));
    CN_TRY(check_needed_options(c, sections));
    if (sections & CN_SECTION_ENGINE) CN_TRY(check_engine(c));
    if (sections & CN_SECTION_ENGINE) CN_TRY(cn_config_check_ranks(c));
    if (c->n_ranks > 1 && !(sections & (CN_SECTION_RUN_BATCH | CN_SECTION_SERVE)))
        return cn_fail(CN_ERR_ARG, "--tensor-parallel-size %u is for run-batch and serve; this "
                                   "command does not split a model", c->n_ranks);
    if (sections & CN_SECTION_SAMPLING) {
        if (!has_bodies(c, sections)) CN_TRY(check_detection(c));
        CN_TRY(check_option_samples(c, sections));
        CN_TRY(check_sampling(&c->sampling));
    }
    if (sections & CN_SECTION_COMPARE) CN_TRY(cn_config_check_mode(c, CN_MODE_COMPARE));
    else if (sections & CN_SECTION_ENGINE && sections & CN_SECTION_KV && !c->decode_arms)
        CN_TRY(cn_config_check_kv_readers(c, rules_of(c, sections))); /* arms are not known yet */
    if (sections & CN_SECTION_KV) CN_TRY(check_kv_options(c));
    if (sections & CN_SECTION_PROMPTS) CN_TRY(check_prompts(c));
    if (sections & CN_SECTION_COMPARE && c->continue_field)
        CN_TRY(cn_config_check_mode(c, CN_MODE_FORCED));
    if (sections & CN_SECTION_LANES) CN_TRY(cn_config_check_lanes(c));
    if (sections & CN_SECTION_RUN_BATCH) CN_TRY(check_run_batch(c));
    if (sections & CN_SECTION_SERVE) CN_TRY(check_serve(c));
    if (sections & CN_SECTION_BENCH) CN_TRY(check_bench(c));
    if (sections & CN_SECTION_PLAN) CN_TRY(check_plan(c));
    if (sections & CN_SECTION_TOKENIZE) CN_TRY(check_tokenize(c));
    if (sections & CN_SECTION_CALIBRATE) CN_TRY(check_calibrate(c));
    return CN_OK;
}

