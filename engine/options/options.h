/* options.h - every option of cinch, defined once. A row of the table (option_table.c) gives the
 * command line flag, the key in a request's JSON, bounds, default, --help, docs/CONFIG.md and the
 * manual page. No other code parses flags or reads the environment.
 *
 * Owner: the creator of the cn_config. Thread: any, one at a time; the table is constant.
 * Stage: before a request exists (configuration), and stage 1 (fields of a request). */
#pragma once

#include <jansson.h>

#include "compress/away.h"
#include "engine/base/base.h"

/* ---- values of the enumerated options, in the order of their names in the table ---- */
typedef enum cn_opt_load_format {
    CN_OPT_LOAD_AUTO, /* safetensors */
    CN_OPT_LOAD_SAFETENSORS,
    CN_OPT_LOAD_DUMMY /* seeded random weights from config.json alone */
} cn_opt_load_format;
typedef enum cn_opt_dtype { CN_OPT_DTYPE_AUTO, CN_OPT_DTYPE_FLOAT32 } cn_opt_dtype;
typedef enum cn_opt_quantization {
    CN_OPT_QUANT_AUTO, /* weights as in the files */
    CN_OPT_QUANT_FP8
} cn_opt_quantization;
typedef enum cn_opt_generation_config {
    CN_OPT_GENERATION_AUTO, /* the checkpoint's generation_config.json */
    CN_OPT_GENERATION_VLLM  /* vLLM's defaults; the file is ignored */
} cn_opt_generation_config;
typedef enum cn_opt_reasoning_parser {
    CN_OPT_REASONING_NONE,
    CN_OPT_REASONING_AUTO, /* on when the vocabulary has <think> and </think> */
    CN_OPT_REASONING_QWEN3,
    CN_OPT_REASONING_DEEPSEEK_R1
} cn_opt_reasoning_parser;
typedef enum cn_opt_tool_parser {
    CN_OPT_TOOLS_NONE,
    CN_OPT_TOOLS_HERMES,
    CN_OPT_TOOLS_QWEN3_CODER,
    CN_OPT_TOOLS_GLM45,
    CN_OPT_TOOLS_MISTRAL,
    CN_OPT_TOOLS_LLAMA3_JSON,
    CN_OPT_TOOLS_PYTHONIC
} cn_opt_tool_parser;
typedef enum cn_opt_async { CN_OPT_ASYNC_AUTO, CN_OPT_ASYNC_ON, CN_OPT_ASYNC_OFF } cn_opt_async;
typedef enum cn_opt_kv_dtype {
    CN_OPT_KV_AUTO,
    CN_OPT_KV_FP8,
    CN_OPT_KV_FP8_E4M3 /* the same */
} cn_opt_kv_dtype;
typedef enum cn_opt_scheduling {
    CN_OPT_SCHEDULING_FCFS,
    CN_OPT_SCHEDULING_PRIORITY
} cn_opt_scheduling;
typedef enum cn_opt_grade {
    CN_OPT_GRADE_NONE,
    CN_OPT_GRADE_EXACT,      /* the answer, trimmed, equals the reference */
    CN_OPT_GRADE_BOXED,      /* the last \boxed{...} equals the reference */
    CN_OPT_GRADE_LAST_NUMBER /* the last number equals the reference */
} cn_opt_grade;
typedef enum cn_opt_rescue {
    CN_OPT_RESCUE_OFF,
    CN_OPT_RESCUE_BUDGET, /* run again with four times the budget */
    CN_OPT_RESCUE_FULL    /* run again with full KV */
} cn_opt_rescue;
typedef enum cn_opt_progress {
    CN_OPT_PROGRESS_AUTO, /* a bar on a terminal, plain lines otherwise */
    CN_OPT_PROGRESS_BAR,
    CN_OPT_PROGRESS_PLAIN,
    CN_OPT_PROGRESS_NONE
} cn_opt_progress;
typedef enum cn_opt_shard_by {
    CN_OPT_SHARD_BY_LINE, /* every N-th line */
    CN_OPT_SHARD_BY_BYTES /* the lines that begin in the I-th part of the file */
} cn_opt_shard_by;
typedef enum cn_opt_order { CN_OPT_ORDER_INPUT, CN_OPT_ORDER_ANY } cn_opt_order;
typedef enum cn_opt_dataset {
    CN_OPT_DATASET_RANDOM, /* seeded random token ids */
    CN_OPT_DATASET_CUSTOM  /* JSONL with a "prompt" field */
} cn_opt_dataset;

typedef enum cn_opt_thinking {
    CN_OPT_THINKING_AUTO, /* the default of the chat template */
    CN_OPT_THINKING_OFF,
    CN_OPT_THINKING_ON
} cn_opt_thinking;

typedef enum cn_opt_json_whitespace {
    CN_OPT_JSON_WHITESPACE_NONE,
    CN_OPT_JSON_WHITESPACE_ANY /* CN_JSON_WHITESPACE_ANY */
} cn_opt_json_whitespace;

typedef enum cn_opt_unknown { CN_OPT_UNKNOWN_WARN, CN_OPT_UNKNOWN_REFUSE } cn_opt_unknown;

enum { CN_OPTION_MAX = 256, CN_MAX_PACKS = 64, CN_MAX_SHARDS = 1000000 };

/* ---- the configuration: one field per row, defaults from cn_config_create() ---- */
struct cn_config {
    bool help;     /* --help or --help-all was among the arguments */
    bool help_all;

    /* general */
    cn_log_lvl log_level;

    /* debug */
    char *dump; /* "name:layer:step" or NULL */
    bool check_invariants;

    /* checkpoint */
    char *model;     /* directory */
    char *tokenizer; /* directory; NULL = model */
    char *chat_template; /* "auto", a family or a file */

    /* model */
    cn_opt_load_format load_format;
    cn_opt_dtype dtype;
    cn_opt_quantization quantization;
    bool fp8_activations;
    uint32_t max_model_len; /* 0 = from config.json */
    uint64_t seed;
    char *served_model_name; /* names, separated by commas; NULL = of the model's directory */
    cn_opt_generation_config generation_config;
    cn_opt_reasoning_parser reasoning_parser;
    cn_opt_tool_parser tool_call_parser;

    /* engine */
    char *device;                   /* "auto", "cpu", "cuda" or "cuda:N" */
    float gpu_memory_utilization;   /* fraction of GPU memory */
    bool batch_invariant;
    uint32_t n_threads;             /* 0 = cores */
    cn_opt_kv_dtype kv_cache_dtype;
    uint32_t block_tokens;          /* 0 = the backend's default */
    uint64_t kv_cache_memory_bytes; /* 0 = auto */
    uint32_t n_blocks_override;     /* 0 = computed from the memory */
    uint32_t max_num_seqs;
    uint32_t max_num_batched_tokens;
    bool enable_prefix_caching;
    bool share_prefix_cache; /* between API keys */
    bool enable_chunked_prefill;
    cn_opt_scheduling scheduling_policy;
    cn_opt_async async_scheduling;
    bool enforce_eager;
    uint32_t max_queue; /* waiting samples of a class; beyond it a submit returns CN_ERR_BUSY */
    uint32_t max_n;     /* samples of a request */
    uint32_t batch_floor; /* interactive admissions past a waiting batch request; 0 = no limit */
    float swap_space_gib; /* host memory for the KV of compressed batch requests; 0 = none */
    float host_memory_gib; /* memory of the machine; 0 = what the kernel and its cgroup say */

    /* kv */
    cn_kv_params kv;      /* of requests without a kv object */
    uint32_t kv_policies; /* bit 1 << cn_kv_policy: policies allowed besides kv.policy */
    uint32_t kv_selectors; /* bit 1 << cn_kv_select: selectors allowed besides kv.select */
    uint32_t select_dense_layers;
    uint32_t kv_homes;    /* bit 1 << cn_kv_home: homes allowed besides kv.home */
    float home_space_gib; /* memory of each declared home besides the device */
    float host_space_gib; /* memory of kv home host; 0 = home_space_gib */
    char *cache_device;   /* of kv home peer, or NULL */
    uint32_t n_packs;
    bool hybrid_scheduling;
    bool sync_compression;

    /* sampling: vLLM's defaults and the options that were given (cn_config_is_given) */
    cn_sampling sampling;

    /* bodies */
    cn_opt_unknown unknown_fields;
    cn_opt_json_whitespace json_whitespace;
    bool cap_max_tokens; /* also those that a request sets */

    /* prompts */
    char *input_file; /* "-" = standard input */
    char *prompt_field, *id_field, *answer_field;
    cn_opt_grade grade;

    /* progress */
    cn_opt_progress progress;

    /* run-batch */
    char *output_file; /* "-" = standard output */
    bool resume, retry_errors, strict;
    int32_t until_minutes; /* local time of day, minutes after midnight; -1 = never */
    uint32_t max_inflight;
    char *summary_json; /* path or NULL */
    float audit_percent;
    cn_opt_rescue loop_rescue;
    char *shard; /* "3/64" or "auto"; NULL = the whole input */
    cn_opt_shard_by shard_by;
    uint32_t shard_index, shard_of; /* set by cn_config_find_shard; of 0 = the whole input */
    char *done;                     /* patterns of output files, one per line */
    uint32_t drain_timeout_s;       /* 0 = none */
    bool ok_with_errors, check_options;

    /* merge */
    char *merge_input, *merge_output;
    char *merge_errors; /* path of the error lines, or NULL: in the output */
    cn_opt_order order;
    bool allow_missing;

    /* serve */
    char *host;
    uint32_t port; /* 0 = any free port */
    char *uds;     /* path of a unix socket instead of host and port, or NULL */
    char *api_keys, *api_key_file;
    char *allowed_hosts; /* comma-separated, or NULL */
    uint32_t max_connections, max_requests_per_key;
    uint64_t max_header_bytes, max_body_bytes, max_buffered_bytes, max_reply_bytes;
    uint64_t max_tokenize_bytes;
    uint32_t request_timeout_s, idle_timeout_s, shutdown_timeout_s;
    uint32_t health_stall_s; /* 0: never; on a CPU the default counts as 0 */
    char *allowed_origins;   /* separated by commas, or "*"; NULL = none */
    char *root_path;         /* "/llm"; NULL = none */
    char *access_log;        /* "-" = standard output, "off" */
    char *spool;             /* directory of files and batches; NULL = no files and batches */
    uint32_t max_files, max_batches, max_batch_inflight;
    uint64_t max_file_bytes, max_spool_bytes, max_batch_lines;

    /* lanes */
    uint32_t n_lanes; /* engines, if devices is NULL */
    char *devices;    /* as for cn_devices_parse, one for each engine; NULL = the first GPUs */
    uint32_t n_ranks; /* of each engine: 1, 2, 4 or 8 */
    uint32_t collective_timeout_s;

    /* compare */
    char *arms;
    bool window_baseline; /* an arm window of the same budget beside each zip arm */
    char *continue_field;
    uint32_t select_probe; /* probe steps at multiples of this position; 0 = none */
    uint32_t limit; /* lines of each file; 0 = all */
    float compare_audit_percent;
    char *compare_json; /* path or NULL */
    bool wide;

    /* bench */
    char *base_url, *bench_api_key;
    float request_rate;       /* 0 = all at once */
    uint32_t max_concurrency; /* 0 = no limit */
    bool save_detailed;
    cn_opt_dataset dataset_name;
    char *dataset_path;
    uint32_t input_len, output_len, num_prompts;
    float random_range_ratio;
    char *workload;                      /* path or NULL */
    uint32_t steady_steps, warmup_steps; /* steady_steps 0 = off */
    uint32_t resident, decode_steps;     /* resident 0 = off */
    char *select_churn;                  /* shares; NULL: scores decide */
    char *batches, *prefill;             /* lists of numbers; prefill NULL = off */
    char *decode_arms;                   /* as arms; NULL = the configured kv */
    char *timeline;                      /* path or NULL */
    float timeline_interval;
    char *output_json;

    /* tokenize */
    char *text; /* NULL = read `file` */
    char *file; /* "-" = standard input */
    bool jsonl, decode, chat, render, special, pieces;
    cn_opt_thinking thinking;

    /* plan */
    bool json;
    uint64_t plan_lines; /* 0 = unset */
    char *plan_lengths;
    uint64_t gpu_memory; /* bytes of a GPU to plan for; 0: this machine */

    /* calibrate */
    char *calibrate_text;
    char *calibrate_output; /* NULL = select.safetensors in the directory of the model */
    uint32_t calibrate_len;

    bool given[CN_OPTION_MAX]; /* by row: whether the user set the option */
};

/* Homes that requests may have: bit i is cn_kv_home i. */
static inline uint32_t cn_config_homes(const cn_config *c)
{
    /* With `auto` a request is at home on the device where it fits. */
    return c->kv_homes | cn_kv_homes(&c->kv, 1U << CN_HOME_DEVICE);
}

/* The declared homes besides the device. */
static inline uint32_t cn_config_away(const cn_config *c)
{
    return cn_config_homes(c) & ~(1U << CN_HOME_DEVICE);
}

/* Whether --host-space sets the size of this home, which is not the device; else --home-space. */
static inline bool cn_config_has_host_space(const cn_config *c, cn_kv_home home)
{
    return !cn_home_kind_of(home)->has_device && c->host_space_gib > 0;
}

/* GiB for the KV of requests with this home. */
static inline float cn_config_home_gib(const cn_config *c, cn_kv_home home)
{
    return cn_config_has_host_space(c, home) ? c->host_space_gib : c->home_space_gib;
}

/* The option that sets this size, without dashes. */
static inline const char *cn_config_home_option(const cn_config *c, cn_kv_home home)
{
    return cn_config_has_host_space(c, home) ? "host-space" : "home-space";
}

/* Whether the cache device is certainly the CPU, whose memory is that of the host. */
bool cn_config_cache_is_cpu(const cn_config *c);

/* Policies that requests may use: bit i is cn_kv_policy i. */
static inline uint32_t cn_config_policies(const cn_config *c)
{
    /* Away from the device the policy `full` becomes `window`. */
    const uint32_t away = cn_config_away(c) ? 1U << CN_KV_WINDOW : 0;
    return c->kv_policies | 1U << c->kv.policy | away;
}

/* Selectors that requests may have: bit i is cn_kv_select i. `none` needs no memory. */
static inline uint32_t cn_config_selectors(const cn_config *c)
{
    return c->kv_selectors | 1U << c->kv.select | 1U << CN_SELECT_NONE;
}

/* Selectors that select on the device: those of requests with home `device`, `tls`, which ranks the
 * labels of the tiles that came back from its home, and `spec`, whose keys lie there. */
static inline uint32_t cn_config_local_selectors(const cn_config *c)
{
    const bool local = cn_config_homes(c) >> CN_HOME_DEVICE & 1;
    const uint32_t away =
        1U << CN_SELECT_NONE | 1U << CN_SELECT_TLS | 1U << CN_SELECT_SPEC;
    return cn_config_selectors(c) & (local ? UINT32_MAX : away);
}

/* ---- the table ---- */
typedef enum cn_option_type {
    CN_OPTION_BOOL,  /* bool; --name, --no-name, or --name=true|false */
    CN_OPTION_U32,   /* uint32_t */
    CN_OPTION_I32,   /* int32_t */
    CN_OPTION_U64,   /* uint64_t */
    CN_OPTION_F32,   /* float */
    CN_OPTION_BYTES, /* uint64_t; "2G" = 2 * 1024^3, "2g" = 2 * 1000^3 */
    CN_OPTION_ENUM,  /* a C enum: the index of the name in `values` */
    CN_OPTION_SET,   /* uint32_t: bit 1 << index for each name of a comma-separated list */
    CN_OPTION_TIME,  /* int32_t: HH:MM as minutes after midnight */
    CN_OPTION_STRING /* char *, owned, not empty; NULL = unset */
} cn_option_type;

/* A subcommand accepts whole sections. They are bits, so that a command can combine them. */
typedef enum cn_option_section {
    CN_SECTION_GENERAL = 1 << 0,
    CN_SECTION_CHECKPOINT = 1 << 1,
    CN_SECTION_MODEL = 1 << 2,
    CN_SECTION_ENGINE = 1 << 3,
    CN_SECTION_KV = 1 << 4,
    CN_SECTION_SAMPLING = 1 << 5,
    CN_SECTION_PROMPTS = 1 << 6,
    CN_SECTION_RUN_BATCH = 1 << 7,
    CN_SECTION_COMPARE = 1 << 8,
    CN_SECTION_BENCH = 1 << 9,
    CN_SECTION_BENCH_THROUGHPUT = 1 << 10,
    CN_SECTION_BENCH_SERVE = 1 << 11,
    CN_SECTION_TOKENIZE = 1 << 12,
    CN_SECTION_PLAN = 1 << 13,
    CN_SECTION_DEBUG = 1 << 14,
    CN_SECTION_SERVE = 1 << 15,
    CN_SECTION_SHARING = 1 << 16,
    CN_SECTION_CALIBRATE = 1 << 17,
    CN_SECTION_PROGRESS = 1 << 18,
    CN_SECTION_BODIES = 1 << 19,
    CN_SECTION_MERGE = 1 << 20,
    CN_SECTION_LANES = 1 << 21,
    CN_SECTION_PROCESS = 1 << 22
} cn_option_section;
enum { CN_N_SECTIONS = 23 };
const char *cn_section_name(cn_option_section s);  /* "run-batch" */
const char *cn_section_intro(cn_option_section s); /* a sentence for docs/CONFIG.md */

/* The sections that cn_config_set accepts: the options of the engine. */
enum {
    CN_SECTIONS_LIBRARY = CN_SECTION_GENERAL | CN_SECTION_CHECKPOINT | CN_SECTION_MODEL |
                          CN_SECTION_ENGINE | CN_SECTION_KV | CN_SECTION_SAMPLING |
                          CN_SECTION_DEBUG | CN_SECTION_SHARING
};

enum {
    CN_OPTION_RESULT = 1 << 0,     /* changes the answer to a request */
    CN_OPTION_ZERO_OK = 1 << 1,    /* 0 is allowed below min; the help says what it means */
    CN_OPTION_ABOVE_MIN = 1 << 2,  /* min itself is excluded */
    CN_OPTION_POW2 = 1 << 3,       /* a power of two (or an allowed 0) */
    CN_OPTION_FROM_MODEL = 1 << 4, /* generation_config.json overrides the default */
    CN_OPTION_REQUIRED = 1 << 5,
    CN_OPTION_PERCENT = 1 << 6,    /* F32: a % may follow the number */
    CN_OPTION_WRITTEN = 1 << 7,    /* STRING: a file that the command writes */
    CN_OPTION_USUAL = 1 << 8,      /* --help prints it; --help-all prints all options */
    CN_OPTION_READ = 1 << 9,       /* STRING: a file that the command reads */
    CN_OPTION_SHARE = 1 << 10,     /* F32: N% is N / 100, below 1 */
    CN_OPTION_REPEATED = 1 << 11   /* STRING: may be given many times; a line for each value */
};

typedef struct cn_option {
    const char *name; /* the flag without its dashes */
    char short_name;  /* 'i' for -i, or 0 */
    cn_option_type type;
    cn_option_section section;
    uint32_t flags;
    size_t offset;        /* in cn_config */
    const char *fallback; /* the default as text; NULL: unset (all bits zero) */
    /* RESULT rows only: the value that answers as cinch did before the option existed, or before
     * its default changed. NULL: the default. A run that is resumed keeps it (resume.h). */
    const char *before;
    double min, max;      /* numbers only */
    const char *values;   /* ENUM and SET: "full|window|zip", in the order of the C enum */
    const char *json;     /* key in a request's body; "kv.budget" is budget in its kv object */
    const char *help;
} cn_option;

const cn_option *cn_options(size_t *n);
/* Finds an option by name; '_' equals '-'. NULL when unknown. Two sections may have options of the
 * same name or short name if no command accepts both. cn_option_find returns the first;
 * cn_option_find_in returns the one in `sections`, else the first. */
const cn_option *cn_option_find(const char *name);
const cn_option *cn_option_find_in(const char *name, uint32_t sections);

/* An option that no longer exists. cinch now does what it did by default, so this value is ignored,
 * and any other is refused by name. */
typedef struct cn_removed_option {
    const char *name;
    const char *fallback; /* the default as text; NULL: it was unset */
    bool is_switch;       /* --name and --no-name, without a value */
    const char *instead;  /* for the error: what to do. NULL: leave it out */
} cn_removed_option;

const cn_removed_option *cn_removed_options(size_t *n);
/* As cn_option_find. */
const cn_removed_option *cn_removed_option_find(const char *name);
/* CN_ERR_ARG: the value is not what cinch does now. An unset value is an empty text. */
cn_status cn_removed_option_check(const cn_removed_option *o, const char *value);

/* Appends the option's value in c as text that the parser accepts; nothing when unset. */
cn_status cn_option_format(const cn_option *o, const cn_config *c, cn_buf *out);

/* Deep copy; free it with cn_config_free. */
cn_status cn_config_copy(cn_config **out, const cn_config *c);

/* ---- command line ----
 * Parses argv[1 .. argc) into c. Flags: --name value, --name=value, --bool, --no-bool, and -x value
 * for rows with a short name. Options and positional arguments may be mixed; "--" ends the options.
 * On return argv is reordered so that argv[*first_positional .. argc) are the positional arguments.
 * If first_positional is NULL, a positional argument is an error.
 * CN_ERR_ARG names an unknown option and the most similar known one, an option of a section outside
 * `sections`, or an invalid value with its bounds. --help and --help-all set c->help and end
 * parsing. */
cn_status cn_config_parse_args(cn_config *c, uint32_t sections, int argc, char **argv,
                               int *first_positional);

/* Levenshtein distance of two names; UINT32_MAX if one is too long to be a name. */
uint32_t cn_edit_distance(const char *a, const char *b);

/* Checks options that depend on each other, and that the required options of `sections` are given.
 * CN_ERR_ARG has the numbers and the option to change. */
cn_status cn_config_validate(const cn_config *c, uint32_t sections);

/* Commands and modes that do not read all options of the sections that they take. */
typedef enum cn_config_mode {
    CN_MODE_COMPARE,
    CN_MODE_BENCH_ARMS, /* bench throughput with --arms */
    CN_MODE_FORCED,     /* compare with --continue-field */
    CN_MODE_BENCH_THROUGHPUT,
    CN_MODE_BENCH_SERVE,
    CN_MODE_PLAN,
    CN_MODE_TOKENIZE_TEXT, /* tokenize without --chat */
    CN_N_MODES
} cn_config_mode;

/* Checks that no given option is without effect in the mode. CN_ERR_ARG names the first one and the
 * reason. cn_config_validate does this, except for the two words of `cinch bench`, which are
 * positional arguments. */
cn_status cn_config_check_mode(const cn_config *c, cn_config_mode mode);

/* Checks that each given option of the kv section is read by a policy, with one of these rules, or
 * by a selector that requests may use. Bit i of rules is cn_kv_rule i; CN_ANY_RULE: a request may
 * choose any, and a warning names an option that --kv-rule does not read. cn_config_validate does
 * this, except for `cinch compare`, whose arms are read later. CN_ERR_ARG names the option that is
 * missing. */
#define CN_ANY_RULE UINT32_MAX
cn_status cn_config_check_kv_readers(const cn_config *c, uint32_t rules);
/* Whether a request can have a policy, selector or home that reads this option of section KV. */
bool cn_config_reads_kv(const cn_config *c, const cn_option *o);

/* Replaces --model and --tokenizer of the form org/name, if no directory has that name, by the
 * snapshot in the Hugging Face cache. CN_ERR_IO: the cache has none, and the text has the command
 * that downloads it; or --tokenizer is not a directory. */
cn_status cn_config_find_models(cn_config *c);

/* Sets the shard of --shard, which is given: from the environment if it is auto. Expands %i, %n and
 * %% in the names of its files. CN_ERR_ARG: no shard can be told, and the text has the way out. */
cn_status cn_config_find_shard(cn_config *c);

/* ---- several engines in a process ---- */

enum { CN_MAX_DEVICES = 64 };

typedef struct cn_devices {
    uint32_t n;
    uint32_t ordinals[CN_MAX_DEVICES]; /* of GPUs, none twice */
} cn_devices;

/* Reads "cuda:0-3" or "cuda:0,2". CN_ERR_ARG says what is wrong. */
cn_status cn_devices_parse(cn_devices *out, const char *text);
cn_status cn_config_check_lanes(const cn_config *c);
/* CN_ERR_ARG names an option that a split model does not support. */
cn_status cn_config_check_ranks(const cn_config *c);

/* The model's names in requests and responses, the first of which responses have: those of
 * --served-model-name, or the name of the model's directory. CN_ERR_MEMORY. */
enum { CN_MAX_SERVED_NAMES = 16 };
typedef struct cn_served_names {
    char *text; /* of all names */
    const char *names[CN_MAX_SERVED_NAMES];
    uint32_t n;
} cn_served_names;
cn_status cn_served_names_make(cn_served_names *out, const cn_config *c);
void cn_served_names_free(cn_served_names *s); /* leaves *s empty */
bool cn_served_names_have(const cn_served_names *s, const char *name);

/* Whether the user set the option of this field of c. */
bool cn_config_is_given(const cn_config *c, const void *field);

/* Overwrites *io with the sampling options that the user set. The defaults of an engine are
 * c->sampling, overwritten by the checkpoint's generation_config.json, then by this. */
void cn_config_overlay_sampling(const cn_config *c, cn_sampling *io);

/* Appends "name=value" lines of the options that change results, in table order. A resumed run must
 * have the same lines as the run it continues. Paths of the checkpoint are not included; the caller
 * adds the checkpoint's fingerprint. */
cn_status cn_config_result_text(const cn_config *c, cn_buf *out);

/* Returns the member of kv, such as "redundancy none", that leaves the member `key` of a policy's
 * rule without effect; NULL: none does. */
const char *cn_kv_silencer(const cn_kv_params *kv, const char *key);

/* Whether a request with these parameters reads the member `key` of its kv object: its policy, its
 * selector or its home does, and no other member silences it, or it chooses one of them. */
bool cn_kv_reads(const cn_kv_params *kv, const char *key);

/* ---- a request's JSON ----
 * Sets the field of *s or *kv that `key` of a body names, if its row is in `sections` (sampling,
 * kv). The row's bounds apply. null leaves the field unchanged. An object sets its members
 * ("kv": {...}); an unknown member is an error. *known: whether a row has this key; if not, nothing
 * has changed. */
cn_status cn_request_set_json(cn_sampling *s, cn_kv_params *kv, uint32_t sections, const char *key,
                              json_t *value, bool *known);

/* Gives members of *io that have another default with each rule (CN_RULE_DEFAULTS) the default of
 * io->rule, unless their options were given in c (NULL: none was) or `object`, a kv object whose
 * members *io has, sets them (NULL: none). With an object the window is at most what the engine of
 * c keeps queries for. Setting --kv-rule or --kv-budget does this for the options themselves. */
void cn_config_follow_rule(const cn_config *c, const json_t *object, cn_kv_params *io);

/* Returns a kv object with "policy" and the members that this policy reads; a new reference. */
json_t *cn_kv_params_json(const cn_kv_params *kv);

/* ---- places ---- */
/* Appends the folder for data that can be recomputed: "cinch" under XDG_CACHE_HOME or ~/.cache.
 * Appends nothing if the environment sets neither XDG_CACHE_HOME nor HOME. */
cn_status cn_cache_dir(cn_buf *out);

/* Appends the folder of the Hugging Face cache: HF_HUB_CACHE, or "hub" under HF_HOME, which is
 * "huggingface" under XDG_CACHE_HOME or ~/.cache when unset. Appends nothing if nothing is set. */
cn_status cn_hub_cache_dir(cn_buf *out);

/* ---- printing ---- */
/* The options of `sections`: all, or those that people use. If these are few, all are printed.
 * Returns the number of options that were left out. */
uint32_t cn_config_help(FILE *f, uint32_t sections, bool all);
