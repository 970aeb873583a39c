#!/bin/sh
# pair_gpu.sh OUTDIR - checks requests with a home on GPUs, in under 8 minutes: ops, engine, soak,
# memory errors and races of the kernels, and the likelihood of natural text. CACHE (cuda:0, the
# model's own GPU; or cuda:1) holds the home. Each step has a time limit and a log in OUTDIR; a step
# that fails does not stop the others. Prints one line for each step and the figures that it found.
#   TOTAL (470) seconds of all steps; those that begin later fail
#   BUILD       build directory (build)
#   SOAK (45)   seconds of the soak test with home peer; half of them with home host
set -u
cd "$(dirname "$0")/.." || exit
out=${1:?usage: $0 OUTDIR}
build=${BUILD:-build}
cache=${CACHE:-cuda:0}
soak=${SOAK:-45}
end=$(($(date +%s) + ${TOTAL:-470}))
failed=0
mkdir -p "$out"

# step NAME SECONDS PATTERN COMMAND...: runs a step, and prints its lines that match PATTERN.
step() {
    name=$1 limit=$2 shows=$3
    shift 3
    began=$(date +%s)
    [ $((end - began)) -ge "$limit" ] || limit=$((end - began))
    [ "$limit" -gt 0 ] || limit=1
    if timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1; then
        echo "ok     $name, $(($(date +%s) - began)) s"
    else
        echo "FAILED $name (exit $?), $(($(date +%s) - began)) s of $limit"
        grep -v '^info:' "$out/$name.log" | tail -n 8
        failed=1
    fi
    grep -E "$shows" "$out/$name.log" | head -n 40
}

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null)
sanitizer=$(echo "$sanitizer" | head -n 1)

# sanitized TOOL SECONDS CASES...: a test of ops under a tool of compute-sanitizer.
sanitized() {
    tool=$1 limit=$2
    shift 2
    if [ -z "$sanitizer" ]; then
        echo "FAILED $tool: compute-sanitizer is not in the PATH or /usr/local/cuda"
        failed=1
        return
    fi
    step "$tool" "$limit" 'ERROR SUMMARY|RACECHECK SUMMARY' "$sanitizer" --tool "$tool" \
        --error-exitcode 9 \
        "$build/tests/test_op_exchange_cuda" "$@"
}

pair="kv-homes device,peer home-space 0.02 cache-device $cache"
step ops 60 '^ *(exchange|fetch)|PASSED|FAILED' "$build/tests/test_op_exchange_cuda" '*'
step enter 20 'SKIPPED|OK \]' "$build/tests/test_enter_cuda"
for test in a_peer host_memory the_same home_host memory two; do
    step "pair-$test" 60 'agreement|planned [0-9]*.bytes|SKIPPED|OK \]|ERROR' \
        "$build/tests/test_pair_cuda" "$test*"
done
# shellcheck disable=SC2086 # options are words
step soak-peer $((soak + 20)) 'exchanges|FAILED' "$build/tests/test_soak" "$soak" cuda 1 $pair
# shellcheck disable=SC2086
step soak-host $((soak / 2 + 20)) 'exchanges|FAILED' "$build/tests/test_soak" $((soak / 2)) cuda 3 \
    kv-homes device,host home-space 0.02
step async 45 'seeds|OK \]|FAILED' "$build/tests/test_engine_async" 4 24 cuda "$cache"
step prose 60 '^\|' "$build/cinch" compare --model examples/prose-base \
    -i examples/prose-base/documents.jsonl --limit 4 --prompt-field prompt \
    --continue-field continuation --id-field id --device cuda:0 --cache-device "$cache" \
    --home-space 2 --gpu-memory-utilization 0.8 --block-size 64 --wide --arms \
    "full,spade:256,spade:256:home=peer:select_cap=256,last:256:home=peer:select_cap=256,tls:256:select_tiles=16,tls:256:select_tiles=16:home=peer:select_query=predicted,window:256"
sanitized memcheck 50 exchange 2
sanitized racecheck 50 exchange 2
exit $failed
