#!/bin/bash
# gpu_fault.sh - on a machine with two GPUs: a kernel that traps, or that never ends, on the second
# GPU of run-batch and of serve with two engines. The first fails the process, and --resume answers
# the rest; the second costs its engine alone (docs/SCALE.md). BUILD is the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
child=""
trap 'kill -KILL $child 2>/dev/null || true; rm -rf "$dir"' EXIT
fail() { echo "gpu fault: $*"; cat "$dir/log"; exit 1; }
"${CC:-cc}" -shared -fPIC -o "$dir/gpu_fault.so" tests/gpu_fault.c -ldl -pthread
N=128
for i in $(seq 1 $N); do
    echo "{\"custom_id\": \"r$i\", \"url\": \"/v1/completions\", \"body\": {\"max_tokens\": 4000," \
        "\"ignore_eos\": true, \"prompt\": \"Sort: $i 3\"}}"
done >"$dir/in.jsonl"
engines="--model examples/tiny-reasoner --data-parallel-size 2 --device cuda --max-num-seqs 32
    --gpu-memory-utilization 0.3 --health-stall 4"

# begin KIND COMMAND...: starts it, with the fault to come.
begin() {
    local kind=$1
    shift
    rm -f "$dir/go"
    # shellcheck disable=SC2086 # options
    GPU_FAULT=$kind:1:$dir/go LD_PRELOAD=$dir/gpu_fault.so "$cinch" "$@" $engines >"$dir/log" 2>&1 &
    child=$!
}
# until_true COMMAND...: waits until it succeeds.
until_true() {
    local tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "$kind: waits for $*"
        sleep 0.1
    done
}
# ends CODE: the process ends with this code.
ends() {
    local code=0
    wait $child || code=$?
    child=""
    [ $code = "$1" ] || fail "$kind: exit code $code, expected $1"
}
ask() { curl -sf -m 60 "$url$1" "${@:2}"; }
ask_again() {
    ask /v1/completions -H 'Content-Type: application/json' \
        -d '{"model": "tiny", "prompt": "Sort: 3 1", "max_tokens": 8}'
}

for kind in trap spin; do
    rm -f "$dir"/out*
    begin $kind run-batch -i "$dir/in.jsonl" -o "$dir/out" --progress none
    until_true [ -s "$dir/out" ]
    touch "$dir/go"
    ends $([ $kind = trap ] && echo 3 || echo 0)
    grep -q "gpu_fault: $kind on GPU 1: code 0" "$dir/log" || fail "$kind: not launched"
    # shellcheck disable=SC2086
    [ $kind = spin ] ||
        "$cinch" run-batch -i "$dir/in.jsonl" -o "$dir/out" --progress none --resume $engines \
            >"$dir/log" 2>&1 || fail "$kind: --resume"
    [ "$(grep -o '"custom_id":"r[0-9]*"' "$dir/out" | sort -u | wc -l)" = $N ] &&
        [ "$(wc -l <"$dir/out")" = $N ] || fail "$kind: not every line has one answer"
    echo "gpu fault: run-batch, $kind: ok"

    begin $kind serve --port 0 --served-model-name tiny --shutdown-timeout 3 --access-log off
    until_true grep -q '^info: serving' "$dir/log"
    url=$(sed -n 's/^info: serving .* on \(http.*\)/\1/p' "$dir/log")
    for i in 1 2 3 4 5 6 7 8; do
        ask /v1/completions -H 'Content-Type: application/json' -d '{"model": "tiny",
            "prompt": "Sort: 3 1", "max_tokens": 4000, "ignore_eos": true}' >"$dir/reply$i" &
    done
    until_true sh -c "curl -s $url/stats | grep -q '\"running\":[1-9]'"
    touch "$dir/go"
    if [ $kind = trap ]; then
        until_true grep -q '^error: engine 1 failed: CUDA error' "$dir/log"
        ask_again >/dev/null || true # the other engine fails with its next step
        kill $child
        ends 1
    else
        until_true grep -q 'engine 1 (.*): a step has not ended' "$dir/log"
        ask /health | grep -q '"status": *"ok"' || fail "$kind: /health"
        ask_again | grep -q '"choices"' || fail "$kind: no answer"
        kill $child
        wait $child || true
        child=""
    fi
    echo "gpu fault: serve, $kind: ok"
done
