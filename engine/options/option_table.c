/* option_table.c - the rows: every option of every subcommand and every scalar field of a
 * request's JSON that has one. To add an option: a field in struct cn_config, a row here, and
 * `make docs`. See options.h. */
#include "compress/policy.h"
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
#define WRITTEN CN_OPTION_WRITTEN

#define OR_NAME(id, name) "|" name

#define U64_MAX_AS_DOUBLE 18446744073709551615.0
#define TOKENS_MAX 1073741824.0 /* 2^30: lengths and budgets stay far from overflow */

static const cn_option options[] = {
    ROW(GENERAL, "log-level", ENUM, log_level, "info", .values = "error|warning|info|debug",
        .help = "most detailed messages to print on standard error"),

    ROW(DEBUG, "dump", STRING, dump, NULL,
        .help = "write tensors to ./cinch-dump while running: name:layer:step, * for any"),
    ROW(DEBUG, "check-invariants", BOOL, check_invariants, "false",
        .help = "verify the whole state of the scheduler at every step"),

    ROW(CHECKPOINT, "model", STRING, model, NULL, .flags = REQUIRED,
        .help = "checkpoint directory in the Hugging Face layout"),
    ROW(CHECKPOINT, "tokenizer", STRING, tokenizer, NULL,
        .help = "directory of tokenizer.json, when it is not the model's"),
    ROW(CHECKPOINT, "chat-template", ENUM, chat_template, "auto",
        .values = "auto" CN_CHAT_FAMILIES(OR_NAME), .flags = RESULT,
        .help = "family of the chat template; auto recognises the checkpoint's own"),

    ROW(MODEL, "load-format", ENUM, load_format, "auto", .values = "auto|safetensors|dummy",
        .flags = RESULT, .help = "auto is safetensors; dummy makes seeded random weights"),
    ROW(MODEL, "dtype", ENUM, dtype, "auto", .values = "auto|float32", .flags = RESULT,
        .help = "what activations are computed in; the CPU computes in float32"),
    ROW(MODEL, "max-model-len", U32, max_model_len, "0", .min = 1, .max = TOKENS_MAX,
        .flags = RESULT | ZERO_OK,
        .help = "longest prompt plus output in tokens; 0 takes it from config.json"),
    ROW(MODEL, "seed", U64, seed, "0", .min = 0, .max = U64_MAX_AS_DOUBLE, .flags = RESULT,
        .help = "seed of requests that bring none, and of dummy weights"),
    ROW(MODEL, "served-model-name", STRING, served_model_name, NULL, .flags = RESULT,
        .help = "model name in responses; the model's directory when unset"),
    ROW(MODEL, "generation-config", ENUM, generation_config, "auto", .values = "auto|vllm",
        .flags = RESULT, .help = "sampling defaults from generation_config.json, or vLLM's alone"),
    ROW(MODEL, "reasoning-parser", ENUM, reasoning_parser, "none",
        .values = "none|auto|qwen3|deepseek_r1", .flags = RESULT,
        .help = "split the text inside <think> off into reasoning_content"),

    ROW(ENGINE, "device", STRING, device, "auto",
        .help = "where the model runs: cpu, cuda, cuda:1; auto takes the best there is"),
    ROW(ENGINE, "gpu-memory-utilization", F32, gpu_memory_utilization, "0.92", .min = 0, .max = 1,
        .flags = ABOVE_MIN,
        .help = "share of the GPU's memory to take, what others use included; "
                "--kv-cache-memory-bytes stands in for it"),
    ROW(ENGINE, "batch-invariant", BOOL, batch_invariant, "false", .flags = RESULT,
        .help = "on a GPU, answers do not depend on what else is in the batch; slower"),
    ROW(ENGINE, "threads", U32, n_threads, "0", .min = 1, .max = 1024, .flags = ZERO_OK,
        .help = "CPU threads; 0 is one per core"),
    ROW(ENGINE, "block-size", U32, block_tokens, "0", .min = 16, .max = 256,
        .flags = RESULT | ZERO_OK | POW2,
        .help = "tokens per KV block; 0 is the device's default, 64 on a CPU"),
    ROW(ENGINE, "kv-cache-memory-bytes", BYTES, kv_cache_memory_bytes, "0", .min = 1,
        .max = U64_MAX_AS_DOUBLE, .flags = ZERO_OK,
        .help = "memory of the KV cache, as in 512M or 4G; 0 is 4G, at most a quarter of the RAM, "
                "and on a GPU what --gpu-memory-utilization leaves"),
    ROW(ENGINE, "num-gpu-blocks-override", U32, n_blocks_override, "0", .min = 2, .max = TOKENS_MAX,
        .flags = ZERO_OK, .help = "number of KV blocks, whatever the memory; 0 computes it"),
    ROW(ENGINE, "max-num-seqs", U32, max_num_seqs, "256", .min = 1, .max = 65536,
        .help = "most requests that run at once"),
    ROW(ENGINE, "max-num-batched-tokens", U32, max_num_batched_tokens, "2048", .min = 1,
        .max = 1048576, .help = "most tokens of one step, prompts and outputs together"),
    ROW(ENGINE, "enable-prefix-caching", BOOL, enable_prefix_caching, "true",
        .help = "share the KV blocks of equal prompt beginnings"),
    ROW(ENGINE, "enable-chunked-prefill", BOOL, enable_chunked_prefill, "true",
        .help = "split long prompts over several steps, beside running outputs"),
    ROW(ENGINE, "scheduling-policy", ENUM, scheduling_policy, "fcfs", .values = "fcfs|priority",
        .help = "order inside a class: arrival, or the request's priority, lower first"),
    ROW(ENGINE, "async-scheduling", ENUM, async_scheduling, "auto", .values = "auto|on|off",
        .help = "launch a step before the last one's tokens are read; auto: on a GPU"),
    ROW(ENGINE, "enforce-eager", BOOL, enforce_eager, "false",
        .help = "run every step op by op, without recorded graphs (for debugging)"),
    ROW(ENGINE, "max-queue", U32, max_queue, "4096", .min = 1, .max = 16777216,
        .help = "most requests of a class that wait; one more is refused as busy"),

    ROW(SHARING, "batch-floor", U32, batch_floor, "8", .min = 1, .max = 65536, .flags = ZERO_OK,
        .help = "interactive requests that may pass a waiting batch request before it is its turn; "
                "0 is any number"),
    ROW(SHARING, "swap-space", F32, swap_space_gib, "0", .min = 0, .max = 65536,
        .help = "GiB of host memory to which compressed batch requests make way for interactive "
                "ones, and from which they go on; 0 lets interactive ones wait for their end"),

    ROW(KV, "kv-policy", ENUM, kv.policy, "full", .values = CN_POLICY_NAMES, .flags = RESULT,
        .json = "kv.policy", .help = "what happens to a request's KV cache as it grows"),
    ROW(KV, "kv-budget", U32, kv.budget_tokens, "2048", .min = 1, .max = TOKENS_MAX,
        .flags = RESULT, .json = "kv.budget",
        .help = "tokens kept per layer and head, rounded up to the block size"),
    ROW(KV, "kv-window", U32, kv.window_tokens, "16", .min = 1, .max = 4096, .flags = RESULT,
        .json = "kv.window", .help = "queries that score the cache; a request may ask for fewer"),
    ROW(KV, "kv-sinks", U32, kv.sink_tokens, "4", .min = 0, .max = TOKENS_MAX, .flags = RESULT,
        .json = "kv.sinks",
        .help = "first tokens that the window policy always keeps; fewer than --kv-budget"),
    ROW(KV, "kv-global", BOOL, kv.global_score, "true", .flags = RESULT, .json = "kv.global",
        .help = "carry a decayed score from one compression to the next"),
    ROW(KV, "kv-alpha", F32, kv.alpha, "0.8", .min = 0, .max = 1, .flags = RESULT,
        .json = "kv.alpha", .help = "decay of the global score"),
    ROW(KV, "kv-pooling", ENUM, kv.pooling, "first", .values = "first|never|always",
        .flags = RESULT, .json = "kv.pooling",
        .help = "at which compressions of a request scores are max-pooled"),
    ROW(KV, "kv-redundancy", ENUM, kv.redundancy, "lightning", .values = "lightning|flash|none",
        .flags = RESULT, .json = "kv.redundancy",
        .help = "compare keys inside a block, all keys, or none"),
    ROW(KV, "kv-p", F32, kv.redundancy_p, "0.5", .min = -1, .max = 1, .flags = RESULT,
        .json = "kv.p", .help = "cosine above which two keys count as twins"),
    ROW(KV, "kv-tau", F32, kv.redundancy_tau, "0.4", .min = 0, .max = 100,
        .flags = RESULT | ABOVE_MIN, .json = "kv.tau",
        .help = "temperature of the redundancy softmax"),
    ROW(KV, "kv-lambda", F32, kv.lambda, "0.2", .min = 0, .max = 1, .flags = RESULT,
        .json = "kv.lambda", .help = "weight of attention against redundancy"),
    ROW(KV, "kv-combine", ENUM, kv.combine, "convex", .values = "convex|subtract", .flags = RESULT,
        .json = "kv.combine", .help = "lambda*S - (1-lambda)*R, or S - lambda*R"),
    ROW(KV, "kv-move", ENUM, kv.move, "order", .values = "order|fill", .flags = RESULT,
        .json = "kv.move",
        .help = "kept tokens close ranks in order, or those from behind the budget fill the holes"),
    ROW(KV, "kv-policies", SET, kv_policies, "full", .values = CN_POLICY_NAMES,
        .help =
            "policies that requests may bring beside --kv-policy; memory is set aside for them"),
    ROW(KV, "hybrid-scheduling", BOOL, hybrid_scheduling, "true",
        .help = "admit requests that wait for a query slot as far as they can run without"),
    ROW(KV, "tail-relaxation", BOOL, tail_relaxation, "false", .flags = RESULT,
        .help = "let budgets grow while nobody waits and memory is left; answers then depend on "
                "the company"),
    ROW(KV, "sync-compression", BOOL, sync_compression, "false",
        .help = "compress inside the step, not beside it"),

    ROW(SAMPLING, "n", U32, sampling.n, "1", .min = 1, .max = 1024, .flags = RESULT, .json = "n",
        .help = "samples per request"),
    ROW(SAMPLING, "temperature", F32, sampling.temperature, "1", .min = 0, .max = 100,
        .flags = RESULT | FROM_MODEL, .json = "temperature", .help = "0 is greedy"),
    ROW(SAMPLING, "top-p", F32, sampling.top_p, "1", .min = 0, .max = 1,
        .flags = RESULT | FROM_MODEL | ABOVE_MIN, .json = "top_p",
        .help = "sample from the likeliest tokens that reach this probability; 1 is off"),
    ROW(SAMPLING, "top-k", I32, sampling.top_k, "0", .min = -1, .max = INT32_MAX,
        .flags = RESULT | FROM_MODEL, .json = "top_k",
        .help = "sample from the likeliest tokens, this many; 0 or -1 is off"),
    ROW(SAMPLING, "min-p", F32, sampling.min_p, "0", .min = 0, .max = 1,
        .flags = RESULT | FROM_MODEL, .json = "min_p",
        .help = "least probability relative to the likeliest token's; 0 is off"),
    ROW(SAMPLING, "presence-penalty", F32, sampling.presence_penalty, "0", .min = -2, .max = 2,
        .flags = RESULT, .json = "presence_penalty",
        .help = "taken off the logit of a token the output already has"),
    ROW(SAMPLING, "frequency-penalty", F32, sampling.frequency_penalty, "0", .min = -2, .max = 2,
        .flags = RESULT, .json = "frequency_penalty",
        .help = "taken off a logit for each time the output has the token"),
    ROW(SAMPLING, "repetition-penalty", F32, sampling.repetition_penalty, "1", .min = 0, .max = 10,
        .flags = RESULT | FROM_MODEL | ABOVE_MIN, .json = "repetition_penalty",
        .help = "divides logits of tokens in prompt or output; 1 is off"),
    ROW(SAMPLING, "max-tokens", U32, sampling.max_tokens, NULL, .min = 1, .max = TOKENS_MAX,
        .flags = RESULT | FROM_MODEL, .json = "max_tokens",
        .help = "most tokens to generate; up to the context length when unset"),
    ROW(SAMPLING, "min-tokens", U32, sampling.min_tokens, "0", .min = 0, .max = TOKENS_MAX,
        .flags = RESULT, .json = "min_tokens",
        .help = "fewest tokens to generate before an end is allowed"),
    ROW(SAMPLING, "ignore-eos", BOOL, sampling.ignore_eos, "false", .flags = RESULT,
        .json = "ignore_eos", .help = "generate on past the end-of-sequence token"),
    ROW(SAMPLING, "include-stop-str-in-output", BOOL, sampling.include_stop_str_in_output, "false",
        .flags = RESULT, .json = "include_stop_str_in_output",
        .help = "keep the stop string at the end of the text"),
    ROW(SAMPLING, "skip-special-tokens", BOOL, sampling.skip_special_tokens, "true",
        .flags = RESULT, .json = "skip_special_tokens",
        .help = "leave special tokens out of the text"),
    ROW(SAMPLING, "thinking-token-budget", I32, sampling.thinking_token_budget, "-1", .min = -1,
        .max = TOKENS_MAX, .flags = RESULT, .json = "thinking_token_budget",
        .help = "most tokens inside <think> before it is closed; -1 is no limit"),
    ROW(SAMPLING, "repetition-max-pattern-size", U32, sampling.repetition_max_pattern_size, "0",
        .min = 0, .max = 4096, .flags = RESULT, .json = "repetition_detection.max_pattern_size",
        .help = "longest pattern of tokens that counts as a loop; 0 looks for none"),
    ROW(SAMPLING, "repetition-min-pattern-size", U32, sampling.repetition_min_pattern_size, "0",
        .min = 0, .max = 4096, .flags = RESULT, .json = "repetition_detection.min_pattern_size",
        .help = "shortest pattern that counts as a loop"),
    ROW(SAMPLING, "repetition-min-count", U32, sampling.repetition_min_count, "0", .min = 0,
        .max = 65536, .flags = RESULT, .json = "repetition_detection.min_count",
        .help = "repeats of the pattern that end a request"),

    ROW(PROMPTS, "input-file", STRING, input_file, NULL, .short_name = 'i', .flags = REQUIRED,
        .help = "requests, one JSON object a line; - is standard input"),
    ROW(PROMPTS, "prompt-field", STRING, prompt_field, NULL, .flags = RESULT,
        .help = "take any JSONL: the field that holds the prompt, sent as a user message"),
    ROW(PROMPTS, "id-field", STRING, id_field, NULL, .flags = RESULT,
        .help = "with --prompt-field: the field of the id; the line number when unset"),
    ROW(PROMPTS, "answer-field", STRING, answer_field, NULL, .flags = RESULT,
        .help = "field of the reference answer for --grade"),
    ROW(PROMPTS, "grade", ENUM, grade, "none", .values = "none|exact|boxed|last-number",
        .flags = RESULT,
        .help = "compare answers with the reference: whole text, last \\boxed{}, last number"),
    ROW(PROMPTS, "progress", ENUM, progress, "auto", .values = "auto|bar|plain|none",
        .help = "auto is a bar on a terminal and plain lines elsewhere"),

    ROW(RUN_BATCH, "output-file", STRING, output_file, NULL, .short_name = 'o', .flags = REQUIRED,
        .help = "answers, appended as they finish; - is standard output; FILE.cinch-run beside it "
                "holds what a resumed run must share"),
    ROW(RUN_BATCH, "resume", BOOL, resume, "false",
        .help = "go on with an output file: repair its last line, repeat nothing it holds; lines "
                "whose request has changed since keep their answers, and a warning counts them"),
    ROW(RUN_BATCH, "retry-errors", BOOL, retry_errors, "false",
        .help = "with --resume: ask again what ended in an error"),
    ROW(RUN_BATCH, "strict", BOOL, strict, "false", .help = "stop at the first error line"),
    ROW(RUN_BATCH, "until", TIME, until_minutes, NULL,
        .help = "admit nothing after this local time, finish what runs, leave the rest to resume"),
    ROW(RUN_BATCH, "max-inflight", U32, max_inflight, "1024", .min = 1, .max = 16777216,
        .help = "most requests read ahead and not yet answered"),
    ROW(RUN_BATCH, "summary-json", STRING, summary_json, NULL, .flags = WRITTEN,
        .help = "also write the summary to this file"),
    ROW(RUN_BATCH, "audit", F32, audit_percent, "0", .min = 0, .max = 100, .flags = PERCENT,
        .help = "share of the answers that are replayed under full KV, teacher-forced"),
    ROW(RUN_BATCH, "loop-rescue", ENUM, loop_rescue, "off", .values = "off|budget|full",
        .flags = RESULT,
        .help = "ask once more when a compressed request ends in a loop: with four times the "
                "budget, or full KV; needs repetition detection"),

    ROW(SERVE, "host", STRING, host, "127.0.0.1",
        .help = "address to listen on; another than 127.0.0.1 is open to others: set keys"),
    ROW(SERVE, "port", U32, port, "8000", .min = 0, .max = 65535,
        .help = "port to listen on; 0 takes a free one"),
    ROW(SERVE, "uds", STRING, uds, NULL,
        .help = "listen on a unix socket of this path, and on no port"),
    ROW(SERVE, "api-key", STRING, api_keys, NULL,
        .help = "keys that may ask, KEY or NAME:KEY, a comma list; all users of the machine can "
                "see it: better --api-key-file"),
    ROW(SERVE, "api-key-file", STRING, api_key_file, NULL,
        .help = "file of keys that may ask, KEY or NAME:KEY a line"),
    ROW(SERVE, "max-connections", U32, max_connections, "4096", .min = 1, .max = 1048576,
        .help = "most connections at once; one more takes the place of the one that has been "
                "slow the longest to send a whole request, half a second at least"),
    ROW(SERVE, "max-requests-per-key", U32, max_requests_per_key, "4096", .min = 1,
        .max = 1048576, .help = "most requests of one API key that run at once"),
    ROW(SERVE, "max-header-bytes", BYTES, max_header_bytes, "16384", .min = 1024, .max = 1048576,
        .help = "longest request line and header fields"),
    ROW(SERVE, "max-body-bytes", BYTES, max_body_bytes, "32M", .min = 1024, .max = 1073741824,
        .help = "longest JSON body"),
    ROW(SERVE, "max-buffered-bytes", BYTES, max_buffered_bytes, "512M", .min = 1024,
        .max = U64_MAX_AS_DOUBLE, .help = "most bytes of bodies in memory, all requests together"),
    ROW(SERVE, "request-timeout", U32, request_timeout_s, "30", .min = 1, .max = 86400,
        .help = "seconds a client has to send a request, and one more per 64 KiB of it"),
    ROW(SERVE, "idle-timeout", U32, idle_timeout_s, "75", .min = 1, .max = 86400,
        .help = "seconds a connection may rest between requests, or take nothing of its answer"),
    ROW(SERVE, "shutdown-timeout", U32, shutdown_timeout_s, "30", .min = 0, .max = 86400,
        .help = "seconds that running requests have to finish after SIGTERM"),
    ROW(SERVE, "access-log", STRING, access_log, "-",
        .help = "file that gets a line of JSON per request; - is standard output, off is none"),
    ROW(SERVE, "spool", STRING, spool, NULL,
        .help = "directory of /v1/files and /v1/batches, made if it is not there; batches go on "
                "from it after a restart"),
    ROW(SERVE, "max-files", U32, max_files, "10000", .min = 1, .max = 1048576,
        .help = "most files in the spool"),
    ROW(SERVE, "max-file-bytes", BYTES, max_file_bytes, "200M", .min = 1, .max = 1099511627776,
        .help = "longest file that may be uploaded"),
    ROW(SERVE, "max-spool-bytes", BYTES, max_spool_bytes, "16G", .min = 1,
        .max = U64_MAX_AS_DOUBLE,
        .help = "bytes of files in the spool beyond which uploads are refused"),
    ROW(SERVE, "max-batch-lines", U64, max_batch_lines, "50000", .min = 1, .max = 1099511627776,
        .help = "most requests of one batch"),
    ROW(SERVE, "max-batches", U32, max_batches, "100", .min = 1, .max = 10000,
        .help = "most batches that are not over"),
    ROW(SERVE, "max-batch-inflight", U32, max_batch_inflight, "1024", .min = 1, .max = 65536,
        .help = "most requests of all batches with the engine at once; each batch gets the same "
                "share"),

    ROW(COMPARE, "arms", STRING, arms, NULL, .flags = REQUIRED,
        .help = "what to compare with full KV: policy[:budget[:key=value...]], a comma list; keys "
                "as in a request's kv object, a switch alone or as no-key"),
    ROW(COMPARE, "limit", U32, limit, "0", .min = 1, .max = TOKENS_MAX, .flags = ZERO_OK,
        .help = "most lines to take of each file; 0 takes all"),
    ROW(COMPARE, "audit", F32, compare_audit_percent, "100", .min = 0, .max = 100,
        .flags = PERCENT,
        .help = "share of the outputs that are replayed under full KV, teacher-forced"),
    ROW(COMPARE, "json", STRING, compare_json, NULL, .flags = WRITTEN,
        .help = "also write the figures here"),
    ROW(COMPARE, "plot", STRING, plot, NULL, .flags = WRITTEN,
        .help = "draw quality against KV kept into this SVG file"),

    ROW(BENCH, "dataset-name", ENUM, dataset_name, "random", .values = "random|sharegpt|custom",
        .help = "random token ids, ShareGPT JSON, or JSONL with prompt and, if any, output_tokens"),
    ROW(BENCH, "dataset-path", STRING, dataset_path, NULL, .help = "file of the dataset"),
    ROW(BENCH, "input-len", U32, input_len, "1024", .min = 1, .max = TOKENS_MAX,
        .help = "prompt tokens of a random request"),
    ROW(BENCH, "output-len", U32, output_len, "128", .min = 1, .max = TOKENS_MAX,
        .help = "tokens generated per request; with a dataset: its own lengths unless given"),
    ROW(BENCH, "num-prompts", U32, num_prompts, "1000", .min = 1, .max = 16777216,
        .help = "requests to run"),
    ROW(BENCH, "random-range-ratio", F32, random_range_ratio, "0", .min = 0, .max = 0.99,
        .help = "random lengths are uniform in length * (1 - ratio) to length * (1 + ratio)"),
    ROW(BENCH, "workload", STRING, workload, NULL,
        .help = "JSONL of lengths: prompt_tokens, output_tokens and, if shared, prefix and "
                "prefix_tokens; the tokens are random"),
    ROW(BENCH_THROUGHPUT, "steady-steps", U32, steady_steps, "0", .min = 1, .max = TOKENS_MAX,
        .flags = ZERO_OK,
        .help = "time this many steps of a steady state: requests of every age up to "
                "--output-len, replaced as they end; 0 is off"),
    ROW(BENCH_THROUGHPUT, "warmup-steps", U32, warmup_steps, "256", .min = 0, .max = TOKENS_MAX,
        .help = "steps of the steady state before the clock starts"),
    ROW(BENCH_THROUGHPUT, "resident", U32, resident, "0", .min = 1, .max = TOKENS_MAX,
        .flags = ZERO_OK,
        .help = "time decode steps of requests that hold this many tokens each; 0 is off"),
    ROW(BENCH_THROUGHPUT, "batches", STRING, batches, "1,8,32",
        .help = "with --resident: batch sizes"),
    ROW(BENCH_THROUGHPUT, "decode-steps", U32, decode_steps, "64", .min = 2, .max = TOKENS_MAX,
        .help = "with --resident: steps to time for each batch"),
    ROW(BENCH_THROUGHPUT, "prefill", STRING, prefill, NULL,
        .help = "time one prompt of each of these lengths, as in 4096,16384"),
    ROW(BENCH_THROUGHPUT, "timeline", STRING, timeline, NULL, .flags = WRITTEN,
        .help = "write what runs, waits and is produced over time into this CSV file"),
    ROW(BENCH_THROUGHPUT, "timeline-interval", F32, timeline_interval, "0.25", .min = 0,
        .max = 3600, .flags = ABOVE_MIN, .help = "seconds between two rows of the timeline"),
    ROW(BENCH_SERVE, "base-url", STRING, base_url, "http://127.0.0.1:8000",
        .help = "the server to measure"),
    ROW(BENCH_SERVE, "api-key", STRING, bench_api_key, NULL, .help = "key to show the server"),
    ROW(BENCH_SERVE, "request-rate", F32, request_rate, "0", .min = 0, .max = 1e6,
        .help = "requests per second on average; 0 sends all at once"),
    ROW(BENCH_SERVE, "burstiness", F32, burstiness, "1", .min = 0, .max = 1000, .flags = ABOVE_MIN,
        .help = "shape of the gamma distribution of the gaps: 1 is Poisson arrivals, less "
                "comes in bursts, more is even"),
    ROW(BENCH_SERVE, "max-concurrency", U32, max_concurrency, "0", .min = 1, .max = 65536,
        .flags = ZERO_OK, .help = "most requests under way; 0 is no limit"),
    ROW(BENCH_SERVE, "save-detailed", BOOL, save_detailed, "false",
        .help = "also write lengths and times of every request"),
    ROW(BENCH, "output-json", STRING, output_json, NULL, .flags = WRITTEN,
        .help = "also write the figures here"),

    ROW(PLAN, "json", BOOL, json, "false", .help = "print the plan as JSON"),

    ROW(TOKENIZE, "text", STRING, text, NULL, .help = "the input itself, in place of a file"),
    ROW(TOKENIZE, "file", STRING, file, "-", .help = "file of the input; - is standard input"),
    ROW(TOKENIZE, "jsonl", BOOL, jsonl, "false",
        .help = "a JSON value a line, in and out: a text, a list of ids, a list of messages"),
    ROW(TOKENIZE, "decode", BOOL, decode, "false", .help = "from ids to text"),
    ROW(TOKENIZE, "chat", BOOL, chat, "false",
        .help = "the input is a JSON list of messages, for the chat template"),
    ROW(TOKENIZE, "enable-thinking", ENUM, thinking, "auto", .values = "auto|off|on",
        .help = "with --chat: the template's switch, if it has one"),
    ROW(TOKENIZE, "render", BOOL, render, "false",
        .help = "with --chat: print the prompt, not its ids"),
    ROW(TOKENIZE, "special", BOOL, special, "true",
        .help = "encode with BOS and EOS where the tokenizer has them, decode special tokens"),
    ROW(TOKENIZE, "pieces", BOOL, pieces, "false",
        .help = "one token a line: id, tab, text as a JSON string"),
};

_Static_assert(sizeof options / sizeof *options <= CN_OPTION_MAX, "raise CN_OPTION_MAX");
_Static_assert(sizeof(cn_opt_grade) == sizeof(int) && sizeof(cn_kv_policy) == sizeof(int),
               "enumerated options are stored as int");

const cn_option *cn_options(size_t *n)
{
    *n = sizeof options / sizeof *options;
    return options;
}

static const struct {
    cn_option_section section;
    const char *name, *intro;
} sections[] = {
    {CN_SECTION_GENERAL, "general", "Every command takes these."},
    {CN_SECTION_CHECKPOINT, "checkpoint", "Which model."},
    {CN_SECTION_MODEL, "model", "How it is loaded and how it answers."},
    {CN_SECTION_ENGINE, "engine", "Where it runs, how much memory it takes, how it batches."},
    {CN_SECTION_KV, "kv",
     "What happens to a request's KV cache. A request's `kv` object overrides them."},
    {CN_SECTION_SAMPLING, "sampling",
     "What a request gets when its body does not say. An option that is not given comes from the "
     "checkpoint's generation_config.json where that has it, else from the default here, which is "
     "vLLM's."},
    {CN_SECTION_PROMPTS, "prompts", "Where requests come from, and what the right answers are."},
    {CN_SECTION_RUN_BATCH, "run-batch", "Prompt files in, answers out."},
    {CN_SECTION_COMPARE, "compare", "Compressed KV against full KV."},
    {CN_SECTION_BENCH, "bench", "What to measure, and where the figures go."},
    {CN_SECTION_BENCH_THROUGHPUT, "bench-throughput",
     "Of `cinch bench throughput` alone: other measurements of an engine."},
    {CN_SECTION_BENCH_SERVE, "bench-serve",
     "Of `cinch bench serve` alone: the server, and how requests arrive."},
    {CN_SECTION_TOKENIZE, "tokenize", "What to turn into tokens, or back."},
    {CN_SECTION_PLAN, "plan", "How the plan is printed."},
    {CN_SECTION_DEBUG, "debug", "For finding out where two runs part."},
    {CN_SECTION_SERVE, "serve", "The HTTP endpoint: where it listens, who may ask, its limits."},
    {CN_SECTION_SHARING, "sharing", "How interactive and batch requests share an engine."},
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
