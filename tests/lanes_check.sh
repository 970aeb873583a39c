#!/bin/bash
# lanes_check.sh - run-batch with several engines: answers do not depend on their number; kills at
# random moments, LANES_ROUNDS (1) times, lose nothing; a signal; what is refused. LANES_SEED (1)
# seeds the moments. BUILD is the build directory. With the GPU backend there (make cuda) also
# several GPUs of tests/fake_cuda that are not peers, and one that is lost in the middle.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
trap 'kill -KILL $(jobs -p) 2>/dev/null || true; rm -rf "$dir"' EXIT
RANDOM=${LANES_SEED:-1}
fail() { echo "lanes: $*"; cat "$dir"/log*; exit 1; }

# run OUTPUT...: becomes run-batch.
run() {
    exec "$cinch" run-batch --model examples/tiny-reasoner -i "$dir/in.jsonl" --device cpu \
        --threads 1 --kv-cache-memory-bytes 8M --max-model-len 1024 --max-num-seqs 4 -o "$@"
}
# answers FILE: its lines, sorted, without what differs between runs of one engine.
answers() {
    sed -E 's/"(created|cached_tokens)":[0-9]+//g; s/"(id|request_id)":"[^"]*"//g' "$1" | sort
}
for i in $(seq 1 48); do
    echo "{\"custom_id\": \"r$i\", \"url\": \"/v1/chat/completions\", \"body\": {\"max_tokens\":" \
        "$((3 + i * 7 % 30)), \"n\": $((1 + i % 2)), \"temperature\": $((i % 3))," \
        "\"messages\": [{\"role\": \"user\", \"content\": \"Sort: $i 3\"}]}}"
done >"$dir/in.jsonl"

(run "$dir/one" >"$dir/log" 2>&1) || fail "one engine"
answers "$dir/one" >"$dir/expected"
for n in 2 4; do
    (run "$dir/some" --data-parallel-size $n --summary-json "$dir/json" --audit 10 \
        >"$dir/log" 2>&1) || fail "$n engines"
    answers "$dir/some" | cmp - "$dir/expected" || fail "$n engines answer otherwise than one"
    grep -q "^engines: $n; output tokens" "$dir/log" || fail "no line about $n engines"
    [ "$(grep -oE '"failed": ?null' "$dir/json" | wc -l)" = $n ] || fail "summary of $n engines"
    ! grep -qE '"output_tokens": ?0,' "$dir/json" || fail "an engine of $n did nothing"
    rm "$dir"/some*
done

for round in $(seq 1 "${LANES_ROUNDS:-1}"); do
    rm -f "$dir"/all*
    for n in 4 2; do
        run "$dir/all" --data-parallel-size $n --resume >"$dir/log" 2>&1 &
        # Drawn here: a subshell would seed RANDOM anew.
        printf -v moment '0.%03d' $((RANDOM % 999))
        [ $((RANDOM % 3)) = 0 ] && signal=TERM || signal=KILL
        sleep "$moment"
        kill -$signal $! 2>/dev/null || true
        wait $! || true
    done
    (run "$dir/all" --data-parallel-size 4 --resume >"$dir/log" 2>&1) || fail "round $round: resume"
    answers "$dir/all" | cmp - "$dir/expected" || fail "round $round: other answers"
done

# refused TEXT OPTION...
refused() {
    local text=$1
    shift
    ! "$cinch" run-batch --model examples/tiny-reasoner -i "$dir/in.jsonl" -o "$dir/no" "$@" \
        >"$dir/log" 2>&1 || fail "$* is taken"
    grep -qF -e "$text" "$dir/log" || fail "$*: another text"
}
! "$cinch" serve --model examples/tiny-reasoner --devices cuda:1,1 >"$dir/log" 2>&1 ||
    fail "serve takes a GPU twice"
grep -q 'cuda:1 is named twice' "$dir/log" || fail "serve: another text"
refused 'cuda:1 is named twice' --devices cuda:0-1,1
refused 'expected GPUs, as cuda:0-3' --devices cpu
refused 'leave out one' --devices cuda:0-1 --device cuda:0
refused 'list their GPUs with --devices' --device cuda:1 --data-parallel-size 2
refused 'names 2' --devices cuda:0-1 --data-parallel-size 3
refused 'kv home peer needs' --data-parallel-size 2 --device cpu --cache-device cpu \
    --kv-homes peer --home-space 0.01 --kv-selectors spade
for command in compare plan; do
    ! "$cinch" $command --model examples/tiny-reasoner --data-parallel-size 2 >"$dir/log" 2>&1 ||
        fail "$command takes engines"
    grep -q 'data-parallel-size is for run-batch, serve and' "$dir/log" || fail "$command: another text"
done

# bench OPTIONS...: a dataset of 40 requests on CPU engines.
bench() {
    "$cinch" bench throughput --model examples/tiny-reasoner --device cpu --threads 2 \
        --kv-cache-memory-bytes 32M --num-prompts 40 --input-len 20 --output-len 30 \
        --max-num-seqs 4 --progress none --output-json "$dir/bench.json" "$@" >"$dir/log" 2>&1
}
for n in 1 2 3; do
    bench --data-parallel-size $n || fail "bench with $n engines"
    python3 - "$dir/bench.json" $n <<'P' || fail "bench: other figures with $n engines"
import json, sys
j, n = json.load(open(sys.argv[1])), int(sys.argv[2])
assert j["complete"] and (j["num_requests"], j["total_output_tokens"]) == (40, 1200), j
made = [e["output_tokens"] for e in j.get("engines", [])]
assert n == 1 or made == [30 * len(range(i, 40, n)) for i in range(n)], made
assert n == 1 or sum(e["steps"] for e in j["engines"]) == j["steps"]
P
done
# Without a thread for engine 1 the command ends, though engine 0 waits to measure its link. Threads
# for the products are started first, so the call of engine 1 is searched for.
cat >"$dir/thread.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
static _Thread_local int n;
int pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        dlsym(RTLD_NEXT, "pthread_create");
    return ++n == atoi(getenv("FAIL_THREAD")) ? EAGAIN : next(out, attr, run, arg);
}
C
"${CC:-cc}" -shared -fPIC -o "$dir/thread.so" "$dir/thread.c"
for command in "run-batch -i $dir/in.jsonl -o $dir/no" "serve --port 0" \
    "bench throughput --num-prompts 4 --input-len 20 --output-len 4"; do
    for call in $(seq 1 20); do
        got=0
        # shellcheck disable=SC2086 # options
        timeout 600 env LD_PRELOAD="$dir/thread.so" FAIL_THREAD="$call" "$cinch" $command \
            --model examples/tiny-reasoner --device cpu --threads 2 --max-num-seqs 4 \
            --kv-cache-memory-bytes 32M --data-parallel-size 2 --kv-homes host --home-space 0.02 \
            --kv-selectors spade >"$dir/log" 2>&1 || got=$?
        [ $got = 1 ] || fail "$command, thread $call: exit code $got"
        ! grep -q 'no thread for engine 1' "$dir/log" || break
    done
    grep -q 'no thread for engine 1' "$dir/log" || fail "$command: engine 1 has its thread"
done
for mode in "--steady-steps 8" "--resident 64" "--prefill 64" "--timeline $dir/timeline"; do
    # shellcheck disable=SC2086 # an option and its value
    ! "$cinch" bench throughput --model examples/tiny-reasoner --data-parallel-size 2 $mode \
        >"$dir/log" 2>&1 || fail "bench $mode takes engines"
    grep -q -e "${mode%% *} measures one engine" "$dir/log" || fail "bench $mode: another text"
done
! "$cinch" bench serve --model examples/tiny-reasoner --data-parallel-size 2 >"$dir/log" 2>&1 ||
    fail "bench serve takes engines"
[ ! -e "$dir/no" ] || fail "a refused run leaves an output"

# gpus CODE TEXT ENVIRONMENT OPTIONS...: a run on the fake runtime.
gpus() {
    local got=0 code=$1 text=$2 where=$3
    shift 3
    rm -f "$dir"/fake*
    # shellcheck disable=SC2086 # variables are words
    env XDG_CACHE_HOME="$dir/cache" FAKE_PEERS=0 $where "$dir/gpu/cinch" run-batch \
        --model examples/tiny-reasoner --load-format dummy --block-size 64 --max-model-len 1024 \
        --max-num-seqs 4 --ignore-eos --max-tokens 300 -i "$dir/long.jsonl" -o "$dir/fake" \
        --progress none "$@" >"$dir/log" 2>&1 || got=$?
    [ $got = "$code" ] || fail "$where $*: exit code $got, expected $code"
    grep -qE -e "$text" "$dir/log" || fail "$where $*: expected '$text'"
    [ "$code" != 0 ] || [ "$(wc -l <"$dir/fake")" = 48 ] || fail "$where $*: expected 48 lines"
}
fake=$(dirname "$cinch")/tests/fake_cuda/cinch-cuda.so
if [ -e "$fake" ]; then
    mkdir "$dir/gpu"
    cp "$cinch" "$fake" "$dir/gpu"
    sed 's/"max_tokens": [0-9]*, //' "$dir/in.jsonl" >"$dir/long.jsonl"
    gpus 0 'engines: 4; output tokens [1-9]' FAKE_GPUS=4 --data-parallel-size 4
    gpus 0 'on cuda:3: --device cuda:3' FAKE_GPUS=4 --devices cuda:3,1
    gpus 0 '[0-9]+ \(failed\)' "FAKE_GPUS=3 FAKE_LOST=1:700" --data-parallel-size 3
    gpus 0 '^engines: 2; .*[0-9]+ \(failed\)' "FAKE_GPUS=2 FAKE_LOST=0:700" \
        --data-parallel-size 2 --kv-policy zip --kv-budget 256
    gpus 1 'engine 2: --device cuda:2: expected cuda:0 to cuda:1' FAKE_GPUS=2 --data-parallel-size 3
    gpus 1 'engine 0: GPU memory' "FAKE_GPUS=2 FAKE_GPU_MIB=100" --device cuda \
        --data-parallel-size 2 --kv-cache-memory-bytes 1G
fi
echo "lanes: ok"
