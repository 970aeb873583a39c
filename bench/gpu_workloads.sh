#!/bin/sh
# gpu_workloads.sh OUTDIR [amc23|gsm8k|mixture|long-prefix]... - measures the throughput figures of
# the Zipage paper (§5.2, appendices D and E). Runs bench/workloads (all four by default) under full
# KV, under zip, and under zip without asynchronous compression, hybrid scheduling or prefix
# sharing. Runs amc23 with two more budgets. Lengths, block, budgets and pool are a quarter of the
# paper's (see the README there). Prints tables, and writes OUTDIR/throughput.json and
# OUTDIR/budgets.json, which `bench/plot.py bench` draws. See gpu_lib.sh.
#   PROMPTS (all)  how many prompts of each workload    POOL (14G)  SEQS (512)
. "$(dirname "$0")/gpu_lib.sh"
shift
[ $# -gt 0 ] || set -- amc23 gsm8k mixture long-prefix

# run NAME WORKLOAD OPTIONS...: measures one workload.
run() {
    name=$1
    workload=$2
    shift 2
    bench "$name" --workload "bench/workloads/$workload.jsonl" --timeline "$out/$name.csv" \
        --kv-cache-memory-bytes "${POOL:-14G}" --block-size 64 --max-model-len 8192 \
        --max-num-seqs "${SEQS:-512}" ${PROMPTS:+--num-prompts "$PROMPTS"} "$@"
}

arms="full zip not-asynchronous not-hybrid no-prefix-sharing"
run_arms() {
    zip="--kv-policy zip --kv-budget 512"
    # shellcheck disable=SC2086
    {
        run "$1-full" "$1" --kv-policy full
        run "$1-zip" "$1" $zip
        run "$1-not-asynchronous" "$1" $zip --sync-compression
        run "$1-not-hybrid" "$1" $zip --no-hybrid-scheduling
        run "$1-no-prefix-sharing" "$1" $zip --no-enable-prefix-caching
    }
}

# results GROUP NAME=RUN...: prints "GROUP": {"NAME": result, ...}, without failed runs.
results() {
    printf '%s"%s": {' "$between" "$1"
    between=", "
    shift
    comma=""
    for pair in "$@"; do
        [ -s "$out/${pair#*=}.json" ] || continue
        printf '%s"%s": ' "$comma" "${pair%%=*}"
        cat "$out/${pair#*=}.json"
        comma=", "
    done
    printf '}\n'
}

for workload in "$@"; do run_arms "$workload"; done
{
    between="{"
    for workload in "$@"; do
        results "$workload" "full=$workload-full" "zip=$workload-zip" \
            "not asynchronous=$workload-not-asynchronous" "not hybrid=$workload-not-hybrid" \
            "no prefix sharing=$workload-no-prefix-sharing"
    done
    echo "}"
} >"$out/throughput.json"
case " $* " in *" amc23 "*)
    for budget in 256 1024; do
        run "amc23-budget-$budget" amc23 --kv-policy zip --kv-budget "$budget"
    done
    # Grouped by the paper's budgets, which are four times the budgets of these runs.
    {
        between="{"
        results 1,024 zip=amc23-budget-256
        results 2,048 zip=amc23-zip
        results 4,096 zip=amc23-budget-1024
        echo "}"
    } >"$out/budgets.json"
    ;;
esac

# row TITLE RUN...: prints the output tokens/s of each run, or nothing where a run failed.
row() {
    printf '| %s |' "$1"
    shift
    for run in "$@"; do
        value=$(figure "$run" output_tokens_per_second)
        if [ "$value" = 0 ]; then printf ' |'; else printf ' %.0f |' "$value"; fi
    done
    echo
}

echo "| output tokens/s | $(echo "$arms" | sed 's/ / | /g') |"
echo "|---|---|---|---|---|---|"
# shellcheck disable=SC2046
for workload in "$@"; do row "$workload" $(for a in $arms; do echo "$workload-$a"; done); done
for workload in "$@"; do
    ratio "$workload, zip / full" "$(figure "$workload-zip" output_tokens_per_second)" \
        "$(figure "$workload-full" output_tokens_per_second)"
done
case " $* " in *" amc23 "*)
    echo "| output tokens/s, budget | 256 | 512 | 1024 |"
    echo "|---|---|---|---|"
    row amc23 amc23-budget-256 amc23-zip amc23-budget-1024
    ;;
esac
exit $failed
