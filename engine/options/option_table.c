/* option_table.c - one row per option: every option of every subcommand, and every scalar field of
 * a request's JSON that has an option. To add an option: a field in struct cn_config, a row here,
 * and `make docs`. See options.h. */
#include "compress/away.h"
#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/options/options.h"

#define ROW(section_, name_, type_, field_, fallback_, ...)                              \
    {                                                                                    \
        .section = CN_SECTION_##section_, .name = name_, .type = CN_OPTION_##type_,      \
        .offset = offsetof(struct cn_config, field_), .fallback = fallback_, __VA_ARGS__ \
    }

#define RESULT CN_OPTION_RESULT
#define ZERO_OK CN_OPTION_ZERO_OK
#define ABOVE_MIN CN_OPTION_ABOVE_MIN
#define POW2 CN_OPTION_POW2
#define FROM_MODEL CN_OPTION_FROM_MODEL
#define REQUIRED CN_OPTION_REQUIRED
#define PERCENT CN_OPTION_PERCENT
#define SHARE CN_OPTION_SHARE
#define WRITTEN CN_OPTION_WRITTEN
#define USUAL CN_OPTION_USUAL
#define READ CN_OPTION_READ
#define REPEATED CN_OPTION_REPEATED

#define U64_MAX_AS_DOUBLE 18446744073709551615.0
#define TOKENS_MAX 1073741824.0 /* 2^30, so that lengths and budgets cannot overflow */

static const cn_option options[] = {
    ROW(GENERAL, "log-level", ENUM, log_level, "info", .values = "error|warning|info|debug",
        .help = "most detailed log messages to print on standard error"),

    ROW(DEBUG, "dump", STRING, dump, NULL,
        .help = "write tensors to ./cinch-dump: name:layer:step, where * matches any"),
    ROW(DEBUG, "check-invariants", BOOL, check_invariants, "false",
        .help = "check the scheduler's whole state at every step"),

    ROW(CHECKPOINT, "model", STRING, model, NULL, .flags = REQUIRED | USUAL,
        .help = "checkpoint directory in the Hugging Face layout, or org/name of a checkpoint in "
                "the Hugging Face cache"),
    ROW(CHECKPOINT, "tokenizer", STRING, tokenizer, NULL,
        .help = "directory of tokenizer.json, if it is not that of --model"),
    ROW(CHECKPOINT, "chat-template", STRING, chat_template, "auto", .flags = RESULT | READ,
        .help = "chat template: auto for that of the checkpoint, a Jinja file, or one that comes "
                "with cinch: chatml, qwen2, qwen3, llama3, deepseek-r1, none"),

    ROW(MODEL, "load-format", ENUM, load_format, "auto", .values = "auto|safetensors|dummy",
        .flags = RESULT, .help = "auto means safetensors; dummy uses seeded random weights"),
    ROW(MODEL, "dtype", ENUM, dtype, "auto", .values = "auto|float32", .flags = RESULT,
        .help = "dtype of activations; auto is float32 on a CPU and bfloat16 on a GPU"),
    ROW(MODEL, "quantization", ENUM, quantization, "auto", .values = "auto|fp8", .flags = RESULT,
        .help = "weights of the layers: auto leaves them as in the checkpoint, FP8 or not; fp8 "
                "makes blocks of 128 x 128 in e4m3 from a checkpoint that is not FP8; on a "
                "CPU, or without experts on a GPU of compute capability 9.0"),
    ROW(MODEL, "fp8-activations", BOOL, fp8_activations, "true", .flags = RESULT,
        .help = "products with FP8 weights round their input to e4m3 too, as the checkpoint says; "
                "false: they do not"),
    ROW(MODEL, "max-model-len", U32, max_model_len, "0", .min = 1, .max = TOKENS_MAX,
        .flags = RESULT | ZERO_OK | USUAL,
        .help = "maximum tokens of prompt plus output; 0 takes it from config.json"),
    ROW(MODEL, "seed", U64, seed, "0", .min = 0, .max = U64_MAX_AS_DOUBLE, .flags = RESULT,
        .help = "seed of requests that set none, and of dummy weights"),
    ROW(MODEL, "served-model-name", STRING, served_model_name, NULL, .flags = RESULT,
        .help = "names of the model in requests, separated by commas; responses have the first; "
                "when unset, the name of its directory"),
    ROW(MODEL, "generation-config", ENUM, generation_config, "auto", .values = "auto|vllm",
        .flags = RESULT,
        .help = "sampling defaults: auto reads generation_config.json, vllm uses only vLLM's"),
    ROW(MODEL, "reasoning-parser", ENUM, reasoning_parser, "none",
        .values = "none|auto|qwen3|deepseek_r1", .flags = RESULT | USUAL,
        .help = "return the text inside <think> as reasoning_content; auto does so if the "
                "vocabulary has the tags"),

    ROW(MODEL, "tool-call-parser", ENUM, tool_call_parser, "none",
        .values = "none|hermes|qwen3_coder|glm45|mistral|llama3_json|pythonic", .flags = RESULT,
        .help = "accept tools, and return calls of them as tool_calls: hermes, qwen3_coder, glm45 "
                "and mistral read calls after a mark, as <tool_call>; llama3_json and pythonic "
                "also those without one"),

    ROW(ENGINE, "device", STRING, device, "auto", .flags = USUAL,
        .help = "device that runs the model: cpu, cuda or cuda:N; auto is the first GPU if it "
                "is usable, else the CPU"),
    ROW(ENGINE, "tensor-parallel-size", U32, n_ranks, "1", .min = 1, .max = 8,
        .flags = RESULT,
        .help = "ranks over which each engine splits the model: 1, 2, 4 or 8; only with --device "
                "cpu, where each has a thread"),
    ROW(ENGINE, "collective-timeout", U32, collective_timeout_s, "60", .min = 1, .max = 86400,
        .help = "seconds that the ranks of a split model wait for one that does not answer before "
                "the engine ends"),
    ROW(ENGINE, "gpu-memory-utilization", F32, gpu_memory_utilization, "0.92", .min = 0, .max = 1,
        .flags = ABOVE_MIN | USUAL,
        .help = "fraction of GPU memory to use, including memory other processes hold; ignored "
                "when --kv-cache-memory-bytes is set"),
    ROW(ENGINE, "batch-invariant", BOOL, batch_invariant, "false", .flags = RESULT,
        .help = "make results on a GPU independent of batch composition; slower"),
    ROW(ENGINE, "threads", U32, n_threads, "0", .min = 1, .max = 1024, .flags = ZERO_OK,
        .help = "CPU threads; 0 is one per core"),
    ROW(ENGINE, "block-size", U32, block_tokens, "0", .min = 16, .max = 256,
        .flags = RESULT | ZERO_OK | POW2,
        .help = "tokens per KV block; 0 is the device's default: 64 on a CPU, 256 on a GPU"),
    ROW(ENGINE, "kv-cache-dtype", ENUM, kv_cache_dtype, "auto", .values = "auto|fp8|fp8_e4m3",
        .flags = RESULT | USUAL,
        .help = "type of K and V in the cache: auto is that of activations; fp8 is e4m3 with a "
                "scale for each token and kv head, and holds almost twice the tokens of bfloat16; "
                "on a GPU not with selectors that can rank rows of K"),
    ROW(ENGINE, "kv-cache-memory-bytes", BYTES, kv_cache_memory_bytes, "0", .min = 1,
        .max = U64_MAX_AS_DOUBLE, .flags = ZERO_OK | USUAL,
        .help = "memory of the KV cache of each rank, such as 512M or 4G; 0 is 4G (at most a "
                "quarter of RAM for all) on a CPU, and what --gpu-memory-utilization leaves on a "
                "GPU"),
    ROW(ENGINE, "num-gpu-blocks-override", U32, n_blocks_override, "0", .min = 2, .max = TOKENS_MAX,
        .flags = ZERO_OK, .help = "number of KV blocks, regardless of memory; 0 computes it"),
    ROW(ENGINE, "max-num-seqs", U32, max_num_seqs, "256", .min = 1, .max = 65536, .flags = USUAL,
        .help = "maximum requests that run at once"),
    ROW(ENGINE, "max-num-batched-tokens", U32, max_num_batched_tokens, "2048", .min = 1,
        .max = 1048576, .help = "maximum tokens of one step, prompts and outputs together"),
    ROW(ENGINE, "enable-prefix-caching", BOOL, enable_prefix_caching, "true",
        .help = "share the KV blocks of equal prompt prefixes"),
    ROW(ENGINE, "enable-chunked-prefill", BOOL, enable_chunked_prefill, "true",
        .help = "split long prompts over several steps, so that other requests keep decoding"),
    ROW(ENGINE, "scheduling-policy", ENUM, scheduling_policy, "fcfs", .values = "fcfs|priority",
        .help = "order inside a class: arrival (fcfs), or the request's priority, lower first"),
    ROW(ENGINE, "async-scheduling", ENUM, async_scheduling, "auto", .values = "auto|on|off",
        .help = "launch a step before the tokens of the previous one are read; auto is on for a "
                "GPU"),
    ROW(ENGINE, "enforce-eager", BOOL, enforce_eager, "false",
        .help = "run every step op by op, without recorded graphs (for debugging)"),
    ROW(ENGINE, "max-queue", U32, max_queue, "4096", .min = 1, .max = 16777216,
        .help = "maximum waiting samples of a class; a request that would exceed it is refused as "
                "busy"),
    ROW(ENGINE, "max-n", U32, max_n, "128", .min = 1, .max = 1024,
        .help = "maximum samples of a request (n)"),

    ROW(SHARING, "batch-floor", U32, batch_floor, "8", .min = 1, .max = 65536, .flags = ZERO_OK,
        .help = "interactive requests that may be admitted past a waiting batch request; 0 is "
                "no limit"),
    ROW(SHARING, "share-prefix-cache", BOOL, share_prefix_cache, "false",
        .help = "share the KV blocks of equal prompt prefixes between API keys too; the latency "
                "and cached_tokens of a request then show whether another key has sent the same "
                "prompt"),
    ROW(SHARING, "swap-space", F32, swap_space_gib, "0", .min = 0, .max = 65536,
        .help = "GiB of host memory to which compressed batch requests are moved when "
                "interactive requests need their KV memory; with 0 interactive requests wait"),
    ROW(SHARING, "host-memory", F32, host_memory_gib, "0", .min = 0, .max = 65536,
        .help = "GiB of memory of the machine, of which swap space and homes take at most 70 %; "
                "0 is the smaller of physical memory and the limit of the cgroup, and what is free "
                "now is checked too"),

    ROW(KV, "kv-policy", ENUM, kv.policy, "full", .values = CN_POLICY_NAMES,
        .flags = RESULT | USUAL, .json = "kv.policy",
        .help = "KV kept for a request: full keeps all tokens, window the first and the newest, "
                "zip those with the best scores"),
    ROW(KV, "kv-budget", U32, kv.budget_tokens, "2048", .min = 1, .max = TOKENS_MAX,
        .flags = RESULT | USUAL, .json = "kv.budget",
        .help = "tokens kept per layer and kv head, rounded up to the block size"),
    ROW(KV, "kv-window", U32, kv.window_tokens, "16", .min = 1, .max = 4096, .flags = RESULT,
        .json = "kv.window",
        .help = "newest queries that score the cache; a request may set as many as this or "
                "--kv-observe; with rule peak the default is 64, or a quarter of --kv-budget but "
                "at least 16"),
    ROW(KV, "kv-rule", ENUM, kv.rule, "scaled", .values = CN_RULE_NAMES, .flags = RESULT,
        .json = "kv.rule", .before = "zipage",
        .help = "how zip scores tokens: zipage is the paper's rule; scaled brings the attention of "
                "each kv head to a constant sum before redundancy is subtracted; peak scores by "
                "the largest attention of any query, decayed, and has other defaults of "
                "--kv-window, --kv-alpha and --kv-pooling; with follow, attention also counts for "
                "the 128 tokens that come next, without redundancy or earlier scores"),
    ROW(KV, "kv-head-rule", ENUM, kv.head_rule, "max", .values = CN_HEAD_RULE_NAMES,
        .flags = RESULT, .json = "kv.head_rule",
        .help = "probability that counts for zip among those of the query heads of a kv head, or "
                "of all heads with latent attention: the largest, or the mean; mean on a CPU only"),
    ROW(KV, "kv-observe", U32, kv.observe_tokens, "0", .min = 0, .max = 4096, .flags = RESULT,
        .json = "kv.observe",
        .help = "queries before the first compression that count, and all that follow; memory for "
                "as many is reserved; 0 is those of --kv-window; for rules scaled and peak"),
    ROW(KV, "kv-sinks", U32, kv.sink_tokens, "4", .min = 0, .max = TOKENS_MAX, .flags = RESULT,
        .json = "kv.sinks",
        .help = "first tokens that policy window and every rule but zipage always keep (fewer "
                "than --kv-budget), and that a selector always attends to"),
    ROW(KV, "kv-recent", F32, kv.recent, "0.125", .min = 0, .max = TOKENS_MAX,
        .flags = RESULT | SHARE, .json = "kv.recent",
        .help = "newest tokens that every rule but zipage always keeps, at least --kv-window: a "
                "share of the budget, such as 0.125 or 12.5%, or a number of tokens from 1 on; "
                "with rule follow the default is 0.5; with --kv-move fill a share is at most a "
                "block"),
    ROW(KV, "kv-global", BOOL, kv.global_score, "true", .flags = RESULT, .json = "kv.global",
        .help = "carry a decayed score from one compression to the next"),
    ROW(KV, "kv-alpha", F32, kv.alpha, "0.8", .min = 0, .max = 1, .flags = RESULT,
        .json = "kv.alpha",
        .help = "decay of the global score from one compression to the next; with rule peak, in "
                "64 tokens, and the default is 0.841"),
    ROW(KV, "kv-pooling", ENUM, kv.pooling, "first", .values = "first|never|always",
        .flags = RESULT, .json = "kv.pooling",
        .help = "compressions of a request at which scores are max-pooled; with rule peak the "
                "default is never"),
    ROW(KV, "kv-redundancy", ENUM, kv.redundancy, "lightning", .values = "lightning|flash|none",
        .flags = RESULT, .json = "kv.redundancy",
        .help = "compare keys of the same block (lightning), all keys (flash), or none"),
    ROW(KV, "kv-p", F32, kv.redundancy_p, "0.5", .min = -1, .max = 1, .flags = RESULT,
        .json = "kv.p", .help = "cosine above which two keys are similar"),
    ROW(KV, "kv-tau", F32, kv.redundancy_tau, "0.4", .min = 0, .max = 100,
        .flags = RESULT | ABOVE_MIN, .json = "kv.tau",
        .help = "temperature of the redundancy softmax"),
    ROW(KV, "kv-lambda", F32, kv.lambda, "0.2", .min = 0, .max = 1, .flags = RESULT,
        .json = "kv.lambda", .help = "weight of attention against redundancy"),
    ROW(KV, "kv-combine", ENUM, kv.combine, "convex", .values = "convex|subtract", .flags = RESULT,
        .json = "kv.combine",
        .help = "score of a token: lambda*S - (1-lambda)*R (convex), or S - lambda*R (subtract)"),
    ROW(KV, "kv-move", ENUM, kv.move, "order", .values = "order|fill", .flags = RESULT,
        .json = "kv.move",
        .help = "order moves kept tokens to the front, in order; fill moves only those behind "
                "the budget, to the places of evicted tokens"),
    ROW(KV, "kv-policies", SET, kv_policies, "full", .values = CN_POLICY_NAMES,
        .help = "policies that requests may use besides --kv-policy; memory is reserved for them"),
    ROW(KV, "kv-select", ENUM, kv.select, "none", .values = CN_SELECTOR_NAMES, .flags = RESULT,
        .json = "kv.select",
        .help = "tokens that a decode step attends to, beside the first and the newest: none is "
                "all; ds and tls rank labels of keys, quest and tls bounds of pages and tiles, "
                "spade and last use past queries, spec asks a retrieval head once for all layers, "
                "oracle reads all keys, random draws"),
    ROW(KV, "kv-selectors", SET, kv_selectors, "none", .values = CN_SELECTOR_NAMES,
        .help = "selectors that requests may use besides --kv-select; memory is reserved for them"),
    ROW(KV, "select-tokens", U32, kv.select_tokens, "2048", .min = 1, .max = TOKENS_MAX,
        .flags = RESULT, .json = "kv.select_tokens",
        .help = "tokens that a selector chooses, rounded up to 16, or to the block size for spade "
                "and last; a request may set fewer"),
    ROW(KV, "select-tiles", U32, kv.select_tiles, "128", .min = 1, .max = TOKENS_MAX / 64,
        .flags = RESULT, .json = "kv.select_tiles",
        .help = "tiles of 64 tokens whose labels selector tls ranks; a request may set fewer"),
    ROW(KV, "select-keys", ENUM, kv.select_keys, "labels", .values = "labels|rows", .flags = RESULT,
        .json = "kv.select_keys",
        .help = "what spade and last rank: labels of the keys, or the keys"),
    ROW(KV, "select-group", ENUM, kv.select_group, "max", .values = "max|mean", .flags = RESULT,
        .json = "kv.select_group",
        .help = "score of a label for the query heads of a kv head: the largest attention share "
                "of any head, or the mean logit"),
    ROW(KV, "select-window", U32, kv.select_window, "16", .min = 1, .max = CN_MAX_SELECT_WINDOW,
        .flags = RESULT, .json = "kv.select_window",
        .help = "past queries from which spade, or tls with --select-query predicted, predicts "
                "the next; a request may set fewer"),
    ROW(KV, "select-weights", ENUM, kv.select_weights, "raw", .values = "softmax|raw",
        .flags = RESULT, .json = "kv.select_weights", .before = "softmax",
        .help = "weights of past queries in spade's prediction: raw are those of the ridge "
                "regression, softmax is AsyncSpade's"),
    ROW(KV, "select-rotate", BOOL, kv.select_rotate, "true", .flags = RESULT,
        .json = "kv.select_rotate", .help = "rotate past queries to the position of the step"),
    ROW(KV, "recent-tokens", U32, kv.recent_tokens, "64", .min = 0, .max = TOKENS_MAX,
        .flags = RESULT, .json = "kv.recent_tokens",
        .help = "newest tokens that every step attends to, rounded up to tiles of 64; spade and "
                "last attend to all tokens behind their candidates instead"),
    ROW(KV, "select-dense-layers", U32, select_dense_layers, "2", .min = 0, .max = 1024,
        .flags = RESULT, .help = "first layers that attend to all tokens, whatever the selector"),
    ROW(KV, "kv-home", ENUM, kv.home, "device", .values = CN_HOME_CHOICES, .flags = RESULT,
        .json = "kv.home",
        .help = "where all KV of a request with spade, last, tls or spec lies: on the device, on "
                "the cache device (peer), or in host memory (host); away from the device, the KV "
                "cache holds the newest tokens and those that the selector chose; auto is the "
                "first of these homes, if declared, where the request fits to its end, so results "
                "then depend on batch composition"),
    ROW(KV, "kv-homes", SET, kv_homes, "device", .values = CN_HOME_NAMES,
        .help = "homes that requests may use besides --kv-home"),
    ROW(KV, "select-cap", U32, kv.select_cap, "0", .min = 0, .max = TOKENS_MAX, .flags = RESULT,
        .json = "kv.select_cap",
        .help = "entries per layer and kv head that one step brings back from the home at most: "
                "tokens for spade and last, tiles for tls; 0 is an eighth of the selected tokens "
                "for peer, a 32nd for host, and 2 tiles for tls; a request may set fewer"),
    ROW(KV, "select-query", ENUM, kv.select_query, "last", .values = "last|predicted",
        .flags = RESULT, .json = "kv.select_query",
        .help = "query by which tls ranks tiles away from the device: the last, or the predicted"),
    ROW(KV, "home-space", F32, home_space_gib, "0", .min = 0, .max = 65536,
        .help = "GiB for the KV of requests with kv home peer, on the cache device, and as many "
                "for those with kv home host, in host memory"),
    ROW(KV, "host-space", F32, host_space_gib, "0", .min = 0, .max = 65536,
        .help = "GiB for the KV of requests with kv home host, where they differ from "
                "--home-space; 0 means --home-space"),
    ROW(KV, "cache-device", STRING, cache_device, NULL,
        .help = "device that holds the KV of kv home peer and ranks it: cuda:N; auto, the first "
                "GPU that is a peer of the model's; or cpu, a second CPU backend beside a model on "
                "the CPU; the model's own GPU may serve as both"),
    ROW(KV, "packs", U32, n_packs, "4", .min = 1, .max = CN_MAX_PACKS,
        .help = "groups of layers after which a step's exchange with the home begins"),
    ROW(KV, "hybrid-scheduling", BOOL, hybrid_scheduling, "true",
        .help = "admit requests before they have a query slot, until they need one"),
    ROW(KV, "sync-compression", BOOL, sync_compression, "false",
        .help = "run compressions inside the step instead of beside it"),

    ROW(SAMPLING, "n", U32, sampling.n, "1", .min = 1, .max = 1024, .flags = RESULT, .json = "n",
        .help = "samples per request"),
    ROW(SAMPLING, "temperature", F32, sampling.temperature, "1", .min = 0, .max = 100,
        .flags = RESULT | FROM_MODEL | USUAL, .json = "temperature",
        .help = "sampling temperature; 0 is greedy"),
    ROW(SAMPLING, "top-p", F32, sampling.top_p, "1", .min = 0, .max = 1,
        .flags = RESULT | FROM_MODEL | ABOVE_MIN, .json = "top_p",
        .help = "sample from the most likely tokens whose probabilities reach this sum; 1 is off"),
    ROW(SAMPLING, "top-k", I32, sampling.top_k, "0", .min = -1, .max = INT32_MAX,
        .flags = RESULT | FROM_MODEL, .json = "top_k",
        .help = "sample from this many of the most likely tokens; 0 or -1 is off"),
    ROW(SAMPLING, "min-p", F32, sampling.min_p, "0", .min = 0, .max = 1,
        .flags = RESULT | FROM_MODEL, .json = "min_p",
        .help = "minimum probability relative to that of the most likely token; 0 is off"),
    ROW(SAMPLING, "presence-penalty", F32, sampling.presence_penalty, "0", .min = -2, .max = 2,
        .flags = RESULT, .json = "presence_penalty",
        .help = "subtracted from the logit of every token in the output"),
    ROW(SAMPLING, "frequency-penalty", F32, sampling.frequency_penalty, "0", .min = -2, .max = 2,
        .flags = RESULT, .json = "frequency_penalty",
        .help = "subtracted from a token's logit for each occurrence in the output"),
    ROW(SAMPLING, "repetition-penalty", F32, sampling.repetition_penalty, "1", .min = 0, .max = 10,
        .flags = RESULT | FROM_MODEL | ABOVE_MIN, .json = "repetition_penalty",
        .help = "divides the logits of tokens in prompt or output; 1 is off"),
    ROW(SAMPLING, "max-tokens", U32, sampling.max_tokens, NULL, .min = 1, .max = TOKENS_MAX,
        .flags = RESULT | FROM_MODEL | USUAL, .json = "max_tokens",
        .help = "maximum tokens to generate; up to the context length, or the checkpoint's "
                "max_new_tokens, when unset"),
    ROW(SAMPLING, "min-tokens", U32, sampling.min_tokens, "0", .min = 0, .max = TOKENS_MAX,
        .flags = RESULT, .json = "min_tokens",
        .help = "minimum tokens to generate before a stop is allowed"),
    ROW(SAMPLING, "ignore-eos", BOOL, sampling.ignore_eos, "false", .flags = RESULT,
        .json = "ignore_eos", .help = "continue after the end-of-sequence token"),
    ROW(SAMPLING, "include-stop-str-in-output", BOOL, sampling.include_stop_str_in_output, "false",
        .flags = RESULT, .json = "include_stop_str_in_output",
        .help = "keep the stop string at the end of the text"),
    ROW(SAMPLING, "skip-special-tokens", BOOL, sampling.skip_special_tokens, "true",
        .flags = RESULT, .json = "skip_special_tokens",
        .help = "omit special tokens from the text"),
    ROW(SAMPLING, "thinking-token-budget", I32, sampling.thinking_token_budget, "-1", .min = -1,
        .max = TOKENS_MAX, .flags = RESULT, .json = "thinking_token_budget",
        .help = "maximum tokens inside <think> before it is closed; -1 is no limit"),
    ROW(SAMPLING, "repetition-max-pattern-size", U32, sampling.repetition_max_pattern_size, "0",
        .min = 0, .max = 1024, .flags = RESULT, .json = "repetition_detection.max_pattern_size",
        .help = "longest pattern of tokens that counts as a loop; 0 turns loop detection off"),
    ROW(SAMPLING, "repetition-min-pattern-size", U32, sampling.repetition_min_pattern_size, "0",
        .min = 0, .max = 1024, .flags = RESULT, .json = "repetition_detection.min_pattern_size",
        .help = "shortest pattern of tokens that counts as a loop"),
    ROW(SAMPLING, "repetition-min-count", U32, sampling.repetition_min_count, "0", .min = 0,
        .max = 65536, .flags = RESULT, .json = "repetition_detection.min_count",
        .help = "repeats of the pattern that end a request"),

    ROW(PROMPTS, "input-file", STRING, input_file, NULL, .short_name = 'i',
        .flags = REQUIRED | READ | USUAL,
        .help = "requests, one JSON object per line; - is standard input"),
    ROW(PROMPTS, "prompt-field", STRING, prompt_field, NULL, .flags = RESULT | USUAL,
        .help = "read any JSONL: the field with the prompt, sent as a user message"),
    ROW(PROMPTS, "id-field", STRING, id_field, NULL, .flags = RESULT | USUAL,
        .help = "with --prompt-field: the field with the id; the line number when unset"),
    ROW(PROMPTS, "answer-field", STRING, answer_field, NULL, .flags = RESULT | USUAL,
        .help = "field with the reference answer for grading; run-batch then needs a grade, "
                "compare grades exact by default"),
    ROW(PROMPTS, "grade", ENUM, grade, "none", .values = "none|exact|boxed|last-number",
        .flags = RESULT | USUAL,
        .help = "compare answers with the reference: the whole text, the last \\boxed{}, or the "
                "last number"),
    ROW(BODIES, "unknown-fields", ENUM, unknown_fields, "warn", .values = "warn|refuse",
        .help = "fields of a request that cinch does not know, and keys of kv that have no effect "
                "in it: warn ignores them and says so in the response; refuse makes them an "
                "error"),
    ROW(BODIES, "json-whitespace", ENUM, json_whitespace, "none", .values = "none|any",
        .flags = RESULT, .before = "any",
        .help = "white space between the values and marks of JSON that a request forces, unless "
                "it sets disable_any_whitespace or whitespace_pattern: none, or any that a model "
                "writes; --resume keeps that of the run"),
    ROW(BODIES, "cap-max-tokens", BOOL, cap_max_tokens, "false", .flags = RESULT,
        .help = "cut the max_tokens of a request to the room that its prompt leaves in the context "
                "instead of refusing it; a default is always cut"),

    ROW(PROGRESS, "progress", ENUM, progress, "auto", .values = "auto|bar|plain|none",
        .help = "auto is a bar on a terminal and plain lines otherwise"),

    ROW(LANES, "data-parallel-size", U32, n_lanes, "1", .min = 1, .max = CN_MAX_DEVICES,
        .flags = USUAL,
        .help = "engines in this process, on the first GPUs or with --device cpu on the CPU; they "
                "share the requests"),
    ROW(LANES, "devices", STRING, devices, NULL,
        .help = "GPUs of the engines, one for each, as CUDA numbers them: cuda:0-3 or cuda:0,2"),
    ROW(PROCESS, "check-options", BOOL, check_options, "false",
        .help = "check the options and exit; files and the environment are not looked at"),
    ROW(PROCESS, "health-stall", U32, health_stall_s, "60", .min = 0, .max = 86400,
        .help = "seconds after which a step that has not ended makes /health answer 503, or gives "
                "the requests of one of several engines to the others; 0 is never, which is the "
                "default on a CPU"),

    ROW(RUN_BATCH, "output-file", STRING, output_file, NULL, .short_name = 'o',
        .flags = REQUIRED | WRITTEN | USUAL,
        .help = "answers, appended as they finish; - is standard output; FILE.cinch-run stores "
                "the options, and the kind of device, that a resumed run must share"),
    ROW(RUN_BATCH, "resume", BOOL, resume, "false", .flags = USUAL,
        .help = "continue an output file: repair its last line and skip the requests it "
                "answers; a request that changed since keeps its old answer, and a warning "
                "counts these"),
    ROW(RUN_BATCH, "retry-errors", BOOL, retry_errors, "false",
        .help = "with --resume: run requests again that ended in an error"),
    ROW(RUN_BATCH, "strict", BOOL, strict, "false", .help = "stop at the first error line"),
    ROW(RUN_BATCH, "until", TIME, until_minutes, NULL,
        .help = "admit no request after this local time, finish the running ones, leave the "
                "rest for --resume"),
    ROW(RUN_BATCH, "max-inflight", U32, max_inflight, "0", .min = 1, .max = 16777216,
        .flags = ZERO_OK,
        .help = "maximum requests read ahead and not yet answered; 0 is the larger of 1024 and 4 "
                "times --max-num-seqs of all engines"),
    ROW(RUN_BATCH, "summary-json", STRING, summary_json, NULL, .flags = WRITTEN,
        .help = "also write the summary to this file"),
    ROW(RUN_BATCH, "audit", F32, audit_percent, "0", .min = 0, .max = 100, .flags = PERCENT,
        .help = "share of the answers that are replayed with full KV, teacher-forced"),
    ROW(RUN_BATCH, "loop-rescue", ENUM, loop_rescue, "off", .values = "off|budget|full",
        .flags = RESULT,
        .help = "run a compressed request once more if it ends in a loop: with four times the "
                "budget, or with full KV; needs --repetition-max-pattern-size"),
    ROW(RUN_BATCH, "shard", STRING, shard, NULL,
        .help = "answer only shard I of N, given as I/N; auto reads it from what Slurm, "
                "Kubernetes, SkyPilot, AWS Batch, MPI or torchrun tell a task, or from "
                "CINCH_SHARD; --output-file then is a directory or contains %i for the shard (and "
                "%n for N, %% for a percent sign)"),
    ROW(RUN_BATCH, "shard-by", ENUM, shard_by, "line", .values = "line|bytes",
        .help = "what a shard is: every N-th line, or the lines that begin in one of N equal parts "
                "of the file, of which only this part is read"),
    ROW(RUN_BATCH, "done", STRING, done, NULL, .flags = REPEATED,
        .help = "pattern of files, quoted, such as 'out/*.jsonl': requests that these outputs of "
                "other runs answer count as done; may be given many times"),
    ROW(RUN_BATCH, "drain-timeout", U32, drain_timeout_s, "0", .min = 1, .max = 86400,
        .flags = ZERO_OK,
        .help = "seconds that running requests have to finish after SIGTERM or --until; the rest "
                "is left for --resume; 0 is no limit"),
    ROW(RUN_BATCH, "ok-with-errors", BOOL, ok_with_errors, "false",
        .help = "exit with 0 instead of 2 when some lines have an error, for launchers that would "
                "run a failed task again"),
    ROW(MERGE, "input-file", STRING, merge_input, NULL, .short_name = 'i', .flags = REQUIRED | READ,
        .help = "the input of the runs"),
    ROW(MERGE, "output-file", STRING, merge_output, NULL, .short_name = 'o',
        .flags = REQUIRED | WRITTEN,
        .help = "the file to write, replaced when the merge is complete; with its record, so that "
                "run-batch --resume can continue it"),
    ROW(MERGE, "order", ENUM, order, "input", .values = "input|any",
        .help = "order of the lines: of the input, or any, which reads the outputs in one piece"),
    ROW(MERGE, "allow-missing", BOOL, allow_missing, "false",
        .help = "write the output also when lines are missing; the exit code is 3 all the same"),
    ROW(MERGE, "errors", STRING, merge_errors, NULL, .flags = WRITTEN,
        .help = "write error lines to this file instead"),

    ROW(SERVE, "host", STRING, host, "127.0.0.1", .flags = USUAL,
        .help = "address to listen on; set API keys if it is not 127.0.0.1"),
    ROW(SERVE, "port", U32, port, "8000", .min = 0, .max = 65535, .flags = USUAL,
        .help = "port to listen on; 0 picks a free one"),
    ROW(SERVE, "uds", STRING, uds, NULL,
        .help = "listen on a unix socket at this path instead of a port"),
    ROW(SERVE, "api-key", STRING, api_keys, NULL,
        .help = "accepted API keys, a comma-separated list of KEY or NAME:KEY; every user of "
                "the machine can see it, so prefer --api-key-file"),
    ROW(SERVE, "api-key-file", STRING, api_key_file, NULL, .flags = USUAL,
        .help = "file of accepted API keys, KEY or NAME:KEY, one per line"),
    ROW(SERVE, "allowed-hosts", STRING, allowed_hosts, NULL,
        .help = "names by which clients may address a server without API keys, comma-separated, "
                "besides localhost, IP addresses, the machine's name and --host; * allows any"),
    ROW(SERVE, "max-connections", U32, max_connections, "4096", .min = 1, .max = 1048576,
        .help = "maximum open connections; at the limit, a new one replaces the connection that "
                "has been slowest, for at least half a second, to read its reply or to send a "
                "whole request; requests in flight hold at most seven eighths; fewer if the "
                "system allows too few open files"),
    ROW(SERVE, "max-requests-per-key", U32, max_requests_per_key, "4096", .min = 1, .max = 1048576,
        .help = "maximum samples of one API key that run or wait at once"),
    ROW(SERVE, "max-header-bytes", BYTES, max_header_bytes, "16384", .min = 1024, .max = 1048576,
        .help = "maximum bytes of request line and header fields"),
    ROW(SERVE, "max-body-bytes", BYTES, max_body_bytes, "32M", .min = 1024, .max = 1073741824,
        .help = "maximum bytes of a JSON body"),
    ROW(SERVE, "max-tokenize-bytes", BYTES, max_tokenize_bytes, "1M", .min = 1024,
        .max = 1073741824, .help = "maximum bytes of a body of /tokenize or /detokenize"),
    ROW(SERVE, "max-buffered-bytes", BYTES, max_buffered_bytes, "512M", .min = 1024,
        .max = U64_MAX_AS_DOUBLE,
        .help = "maximum bytes of host memory for bodies and the requests made from them, all "
                "requests together"),
    ROW(SERVE, "max-reply-bytes", BYTES, max_reply_bytes, "256M", .min = 1024,
        .max = U64_MAX_AS_DOUBLE,
        .help = "maximum bytes of a response, about; of a stream, of the part that the client has "
                "not read"),
    ROW(SERVE, "request-timeout", U32, request_timeout_s, "30", .min = 1, .max = 86400,
        .help = "seconds that a client has to send a request, plus one per 64 KiB of it"),
    ROW(SERVE, "idle-timeout", U32, idle_timeout_s, "75", .min = 1, .max = 86400,
        .help = "seconds that a connection may be idle between requests, or that a client may "
                "read nothing of its response"),
    ROW(SERVE, "shutdown-timeout", U32, shutdown_timeout_s, "30", .min = 0, .max = 86400,
        .help = "seconds that running requests have to finish after SIGTERM"),
    ROW(SERVE, "allowed-origins", STRING, allowed_origins, NULL,
        .help = "origins of web pages that may use the server (CORS), separated by commas; * is "
                "every origin"),
    ROW(SERVE, "root-path", STRING, root_path, NULL,
        .help = "path under which a proxy publishes the server, for example /llm; requests may "
                "have it or not"),
    ROW(SERVE, "access-log", STRING, access_log, "-",
        .help = "file for one JSON line per request; - is standard output, off is none"),
    ROW(SERVE, "spool", STRING, spool, NULL, .flags = USUAL,
        .help = "directory of /v1/files and /v1/batches, created if missing; batches continue "
                "from it after a restart"),
    ROW(SERVE, "max-files", U32, max_files, "10000", .min = 1, .max = 1048576,
        .help = "maximum files in the spool"),
    ROW(SERVE, "max-file-bytes", BYTES, max_file_bytes, "200M", .min = 1, .max = 1099511627776,
        .help = "maximum bytes of an uploaded file"),
    ROW(SERVE, "max-spool-bytes", BYTES, max_spool_bytes, "16G", .min = 1, .max = U64_MAX_AS_DOUBLE,
        .help = "maximum bytes of files in the spool; uploads that would exceed it are refused"),
    ROW(SERVE, "max-batch-lines", U64, max_batch_lines, "50000", .min = 1, .max = 1099511627776,
        .help = "maximum requests of one batch"),
    ROW(SERVE, "max-batches", U32, max_batches, "100", .min = 1, .max = 10000,
        .help = "maximum batches that have not finished"),
    ROW(SERVE, "max-batch-inflight", U32, max_batch_inflight, "0", .min = 1, .max = 65536,
        .flags = ZERO_OK,
        .help = "maximum requests of all batches in the engines at once; each batch gets the same "
                "share; 0 is the larger of 1024 and 4 times --max-num-seqs of all engines"),

    ROW(COMPARE, "arms", STRING, arms, NULL, .flags = REQUIRED | USUAL,
        .help = "what to compare with full KV: a comma-separated list of "
                "policy[:budget[:key=value...]] and selector[:select_tokens[:key=value...]]; keys "
                "as in a request's kv object, a switch as key or no-key"),
    ROW(COMPARE, "window-baseline", BOOL, window_baseline, "true", .flags = USUAL,
        .help = "beside each zip arm, add an arm window of the same budget; not where --arms has "
                "one"),
    ROW(COMPARE, "continue-field", STRING, continue_field, NULL, .flags = USUAL,
        .help = "force the text of this field after the prompt under every arm and report its "
                "likelihood; prompts are then plain text, not chats"),
    ROW(COMPARE, "select-probe", U32, select_probe, "0", .min = 1, .max = TOKENS_MAX,
        .flags = ZERO_OK,
        .help = "with --continue-field: at every N-th position, measure the attention mass that "
                "selecting arms read, their overlap with oracle and the churn of their lists, on "
                "the CPU; 0 measures nothing"),
    ROW(COMPARE, "limit", U32, limit, "0", .min = 1, .max = TOKENS_MAX, .flags = ZERO_OK | USUAL,
        .help = "maximum lines to read of each file; 0 reads all"),
    ROW(COMPARE, "audit", F32, compare_audit_percent, "100", .min = 0, .max = 100, .flags = PERCENT,
        .help = "share of the outputs that are replayed with full KV, teacher-forced"),
    ROW(COMPARE, "json", STRING, compare_json, NULL, .flags = WRITTEN | USUAL,
        .help = "also write the results to this file"),
    ROW(COMPARE, "wide", BOOL, wide, "false", .flags = USUAL,
        .help = "print all columns of the table, also beyond 100 characters"),

    ROW(BENCH, "dataset-name", ENUM, dataset_name, "random", .values = "random|custom",
        .help = "random token ids, or JSONL with prompt and optional output_tokens"),
    ROW(BENCH, "dataset-path", STRING, dataset_path, NULL, .flags = READ,
        .help = "file of the dataset"),
    ROW(BENCH, "input-len", U32, input_len, "1024", .min = 1, .max = TOKENS_MAX, .flags = USUAL,
        .help = "prompt tokens of a random request"),
    ROW(BENCH, "output-len", U32, output_len, "128", .min = 1, .max = TOKENS_MAX, .flags = USUAL,
        .help = "tokens generated per request; when unset, a dataset's own lengths are used"),
    ROW(BENCH, "num-prompts", U32, num_prompts, "1000", .min = 1, .max = 16777216, .flags = USUAL,
        .help = "number of requests to run"),
    ROW(BENCH, "random-range-ratio", F32, random_range_ratio, "0", .min = 0, .max = 0.99,
        .help = "random lengths are uniform from length * (1 - ratio) to length * (1 + ratio)"),
    ROW(BENCH, "workload", STRING, workload, NULL, .flags = READ | USUAL,
        .help = "JSONL of lengths: prompt_tokens, output_tokens and, for a shared prefix, "
                "prefix and prefix_tokens; the tokens are random"),
    ROW(BENCH_THROUGHPUT, "steady-steps", U32, steady_steps, "0", .min = 1, .max = TOKENS_MAX,
        .flags = ZERO_OK,
        .help = "time this many steps of a steady state: requests of every age up to "
                "--output-len, replaced as they end; 0 is off"),
    ROW(BENCH_THROUGHPUT, "warmup-steps", U32, warmup_steps, "256", .min = 0, .max = TOKENS_MAX,
        .help = "steps of the steady state before timing starts"),
    ROW(BENCH_THROUGHPUT, "resident", U32, resident, "0", .min = 1, .max = TOKENS_MAX,
        .flags = ZERO_OK,
        .help = "time decode steps of requests with this many resident tokens each; 0 is off"),
    ROW(BENCH_THROUGHPUT, "batches", STRING, batches, "1,8,32",
        .help = "with --resident: batch sizes; 8x4096 is 8 requests with 4096 resident tokens "
                "each"),
    ROW(BENCH_THROUGHPUT, "arms", STRING, decode_arms, NULL,
        .help = "with --resident: time each batch with each of these, written as in cinch compare, "
                "and first with full KV; where that does not fit and is not named, it is left out"),
    ROW(BENCH_THROUGHPUT, "decode-steps", U32, decode_steps, "64", .min = 2, .max = TOKENS_MAX,
        .help = "with --resident: steps to time for each batch size"),
    ROW(BENCH_THROUGHPUT, "select-churn", STRING, select_churn, NULL,
        .help = "with --resident, for a home besides the device: the entries that an exchange "
                "wants advance by this share a step, whatever their scores; 0.01,0.1 times each "
                "batch with each share"),
    ROW(BENCH_THROUGHPUT, "prefill", STRING, prefill, NULL,
        .help = "time one prompt of each of these lengths, such as 4096,16384"),
    ROW(BENCH_THROUGHPUT, "timeline", STRING, timeline, NULL, .flags = WRITTEN,
        .help = "write running requests, waiting requests and output over time to this CSV file"),
    ROW(BENCH_THROUGHPUT, "timeline-interval", F32, timeline_interval, "0.25", .min = 0,
        .max = 3600, .flags = ABOVE_MIN, .help = "seconds between two rows of the timeline"),
    ROW(BENCH_SERVE, "base-url", STRING, base_url, "http://127.0.0.1:8000", .flags = USUAL,
        .help = "URL of the server to measure"),
    ROW(BENCH_SERVE, "api-key", STRING, bench_api_key, NULL,
        .help = "API key to send to the server"),
    ROW(BENCH_SERVE, "request-rate", F32, request_rate, "0", .min = 0, .max = 1e6, .flags = USUAL,
        .help = "requests per second on average, at random times (Poisson); 0 sends all at once"),
    ROW(BENCH_SERVE, "max-concurrency", U32, max_concurrency, "0", .min = 1, .max = 65536,
        .flags = ZERO_OK | USUAL, .help = "maximum requests in flight; 0 is no limit"),
    ROW(BENCH_SERVE, "save-detailed", BOOL, save_detailed, "false",
        .help = "also write lengths and times of every request"),
    ROW(BENCH, "output-json", STRING, output_json, NULL, .flags = WRITTEN | USUAL,
        .help = "also write the results to this file"),

    ROW(PLAN, "json", BOOL, json, "false", .flags = USUAL, .help = "print the plan as JSON"),
    ROW(PLAN, "lines", U64, plan_lines, "0", .min = 1, .max = 1e12, .flags = ZERO_OK,
        .help = "also print how many GPUs a file of this many requests can use before a tenth of "
                "their time is lost; 0 prints nothing"),
    ROW(PLAN, "lengths", STRING, plan_lengths, NULL, .flags = READ,
        .help = "with --lines: an output of run-batch, whose answers have the expected lengths"),
    ROW(PLAN, "gpu-memory", BYTES, gpu_memory, "0", .min = 1073741824, .max = U64_MAX_AS_DOUBLE,
        .flags = ZERO_OK | USUAL,
        .help = "plan for a GPU with this much memory, such as 80G, which need not be here; the "
                "memory of its host is not checked; 0 plans for the device of --device"),

    ROW(TOKENIZE, "text", STRING, text, NULL, .help = "the input itself, instead of a file"),
    ROW(TOKENIZE, "file", STRING, file, "-", .help = "input file; - is standard input"),
    ROW(TOKENIZE, "jsonl", BOOL, jsonl, "false",
        .help = "one JSON value per line, in and out: a text, a list of ids, or a list of "
                "messages"),
    ROW(TOKENIZE, "decode", BOOL, decode, "false", .help = "convert ids to text"),
    ROW(TOKENIZE, "chat", BOOL, chat, "false",
        .help = "the input is a JSON list of messages for the chat template, or an object with "
                "messages and other variables of the template"),
    ROW(TOKENIZE, "enable-thinking", ENUM, thinking, "auto", .values = "auto|off|on",
        .help = "with --chat: the thinking switch of the template, if it has one"),
    ROW(TOKENIZE, "render", BOOL, render, "false",
        .help = "with --chat: print the prompt instead of its ids"),
    ROW(TOKENIZE, "special", BOOL, special, "true",
        .help = "encode with BOS and EOS if the tokenizer adds them; decode special tokens"),
    ROW(TOKENIZE, "pieces", BOOL, pieces, "false",
        .help = "one token per line: id, tab, text as a JSON string"),

    ROW(CALIBRATE, "text", STRING, calibrate_text, NULL, .flags = REQUIRED | READ,
        .help = "text file to run the model over"),
    ROW(CALIBRATE, "output-file", STRING, calibrate_output, NULL, .short_name = 'o',
        .flags = WRITTEN | USUAL,
        .help = "file to write; select.safetensors beside the model when unset"),
    ROW(CALIBRATE, "calibrate-len", U32, calibrate_len, "2048", .min = 16, .max = TOKENS_MAX,
        .help = "tokens of a window; a longer text is cut into windows"),
};

_Static_assert(sizeof options / sizeof *options <= CN_OPTION_MAX, "raise CN_OPTION_MAX");
_Static_assert(sizeof(cn_opt_grade) == sizeof(int) && sizeof(cn_kv_policy) == sizeof(int),
               "enumerated options are stored as int");

static const cn_removed_option removed[] = {
    {.name = "tail-relaxation", .fallback = "false", .is_switch = true},
    {.name = "importance", .fallback = "max"},
    {.name = "burstiness", .fallback = "1"},
    {.name = "plot", .instead = "write --json FILE, and draw it with bench/plot.py compare FILE"},
};

const cn_removed_option *cn_removed_options(size_t *n)
{
    *n = sizeof removed / sizeof *removed;
    return removed;
}

const cn_option *cn_options(size_t *n)
{
    *n = sizeof options / sizeof *options;
    return options;
}

static const struct {
    cn_option_section section;
    const char *name, *intro;
} sections[] = {
    {CN_SECTION_GENERAL, "general", "Options of every command."},
    {CN_SECTION_CHECKPOINT, "checkpoint", "The files of the model."},
    {CN_SECTION_MODEL, "model", "How the model is loaded and how it answers."},
    {CN_SECTION_ENGINE, "engine", "Device, memory and batching."},
    {CN_SECTION_KV, "kv",
     "KV policies. A request's `kv` object overrides the options that have a JSON key."},
    {CN_SECTION_SAMPLING, "sampling",
     "Defaults for parameters that a request does not set. The value of an option that is not "
     "given comes from the checkpoint's generation_config.json if that has one. Otherwise it is "
     "the default here, which is vLLM's."},
    {CN_SECTION_PROMPTS, "prompts", "Where requests and reference answers come from."},
    {CN_SECTION_RUN_BATCH, "run-batch", "Prompt files in, answers out."},
    {CN_SECTION_COMPARE, "compare", "Compares compressed KV with full KV."},
    {CN_SECTION_BENCH, "bench", "What to measure, and where to write the results."},
    {CN_SECTION_BENCH_THROUGHPUT, "bench-throughput",
     "Only for `cinch bench throughput`: other measurements of an engine."},
    {CN_SECTION_BENCH_SERVE, "bench-serve",
     "Only for `cinch bench serve`: the server, and how requests arrive."},
    {CN_SECTION_TOKENIZE, "tokenize", "What to convert to tokens, or back."},
    {CN_SECTION_PLAN, "plan", "How the plan is printed."},
    {CN_SECTION_DEBUG, "debug", "For finding where two runs differ. Only programs that use the "
                              "library have it."},
    {CN_SECTION_SERVE, "serve", "The HTTP endpoint: its address, API keys and limits."},
    {CN_SECTION_SHARING, "sharing",
     "How API keys, and interactive and batch requests, share an engine."},
    {CN_SECTION_CALIBRATE, "calibrate", "Which text measures the channels, and how."},
    {CN_SECTION_PROGRESS, "progress", "How progress is shown on standard error."},
    {CN_SECTION_BODIES, "bodies", "How the JSON bodies of requests are read."},
    {CN_SECTION_MERGE, "merge", "One output of several."},
    {CN_SECTION_LANES, "lanes",
     "Several engines in one process, each on its own device. Each has its own --max-num-seqs, "
     "--max-num-batched-tokens, --gpu-memory-utilization, --kv-cache-memory-bytes and "
     "--home-space; they divide --threads, --swap-space and --host-space."},
    {CN_SECTION_PROCESS, "process",
     "Whether a command starts, and when its engine counts as hanging."},
};
_Static_assert(sizeof sections / sizeof *sections == CN_N_SECTIONS, "a row per section");

static size_t section_index(cn_option_section s)
{
    size_t i = (size_t)__builtin_ctz(s);
    CN_ASSERT(i < CN_N_SECTIONS && sections[i].section == s);
    return i;
}

const char *cn_section_name(cn_option_section s) { return sections[section_index(s)].name; }
const char *cn_section_intro(cn_option_section s) { return sections[section_index(s)].intro; }
