#!/bin/bash
# ranks_check.sh - a model split over ranks on the CPU: run-batch and serve answer as with one rank;
# a rank that stops ends the run with exit code 3 and an error that names rank and layer, and
# --resume continues; what is refused. BUILD is the build directory.
set -eu
n_lines=48
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
trap 'kill -KILL $(jobs -p) 2>/dev/null || true; rm -rf "$dir"' EXIT
fail() { echo "ranks: $*"; cat "$dir"/log*; exit 1; }

# run OUTPUT...
run() {
    timeout 300 "$cinch" run-batch --model examples/tiny-reasoner -i "$dir/in.jsonl" --device cpu \
        --kv-cache-memory-bytes 8M --max-model-len 1024 --max-num-seqs 4 -o "$@" >"$dir/log" 2>&1
}
# answers FILE: its lines, sorted, without what differs between runs.
answers() {
    sed -E 's/"(created|cached_tokens)":[0-9]+//g; s/"(id|request_id)":"[^"]*"//g' "$1" | sort
}
for i in $(seq 1 $n_lines); do
    echo "{\"custom_id\": \"r$i\", \"url\": \"/v1/chat/completions\", \"body\": {\"max_tokens\":" \
        "$((40 + i * 7 % 60)), \"temperature\": 0, \"messages\": [{\"role\": \"user\"," \
        "\"content\": \"Sort: $i 3\"}]}}"
done >"$dir/in.jsonl"

run "$dir/one" || fail "one rank"
run "$dir/two" --tensor-parallel-size 2 || fail "two ranks"
answers "$dir/one" >"$dir/expected"
answers "$dir/two" | cmp - "$dir/expected" || fail "two ranks answer otherwise than one"
run "$dir/both" --tensor-parallel-size 2 --data-parallel-size 2 || fail "two engines of two ranks"
answers "$dir/both" | cmp - "$dir/expected" || fail "two engines of two ranks answer otherwise"
! run "$dir/two" --resume || fail "a run is resumed with another number of ranks"
grep -q -e '--tensor-parallel-size' "$dir/log" || fail "resume: another text"

# One thread stops for a minute, or until the process ends, once the file `stop` exists: thread STOP_THREAD, in the order in
# which they start.
cat >"$dir/stop.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
static _Thread_local int is_chosen;
static atomic_int n;
typedef void *(*main_fn)(void *);
typedef struct start { main_fn run; void *arg; } start;
static void *choose(void *p)
{
    start s = *(start *)p;
    free(p);
    is_chosen = 1;
    return s.run(s.arg);
}
int pthread_create(pthread_t *out, const pthread_attr_t *attr, main_fn run, void *arg)
{
    int (*next)(pthread_t *, const pthread_attr_t *, main_fn, void *) =
        dlsym(RTLD_NEXT, "pthread_create");
    if (atomic_fetch_add(&n, 1) + 1 != atoi(getenv("STOP_THREAD"))) return next(out, attr, run, arg);
    start *s = malloc(sizeof *s);
    *s = (start){run, arg};
    return next(out, attr, choose, s);
}
static _Thread_local int n_held; /* a thread that holds no lock stops */
int pthread_mutex_lock(pthread_mutex_t *m)
{
    int (*next)(pthread_mutex_t *) = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    n_held += is_chosen;
    return next(m);
}
int pthread_mutex_unlock(pthread_mutex_t *m)
{
    int (*next)(pthread_mutex_t *) = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    const int got = next(m);
    n_held -= is_chosen;
    if (is_chosen && n_held == 0 && access(getenv("STOP_FILE"), F_OK) == 0) {
        is_chosen = 0;
        sleep(60);
    }
    return got;
}
C
"${CC:-cc}" -shared -fPIC -o "$dir/stop.so" "$dir/stop.c"
# stop_run THREAD: a run in which this thread stops after some answers.
stop_run() {
    rm -f "$dir"/stopped* "$dir/stop"
    (
        export LD_PRELOAD="$dir/stop.so" STOP_THREAD=$1 STOP_FILE="$dir/stop"
        run "$dir/stopped" --tensor-parallel-size 2 --collective-timeout 1
    ) &
    local pid=$! i=0
    while [ "$(cat "$dir/stopped" 2>/dev/null | wc -l)" -lt 2 ] && [ $((i += 1)) -lt 600 ]; do
        sleep 0.05
    done
    touch "$dir/stop"
    local began_ms=$(($(date +%s%N) / 1000000))
    got=0
    wait $pid || got=$?
    took_ms=$(($(date +%s%N) / 1000000 - began_ms))
}
where='(sum after the (attention|MLP) of layer [0-5]|begin or end of a step)'
most_ms=6000 # the timeout of 1 s, 2 s for the end, and what a busy machine needs
# The streams of both ranks, and the thread of rank 1, in the order of their start.
for thread in 1 3 5; do
    stop_run "$thread"
    [ $got = 3 ] || fail "thread $thread stops: exit code $got"
    grep -qE "rank [01] did not reach the $where within 1 s" "$dir/log" ||
        fail "thread $thread stops: another text"
    [ $took_ms -lt $most_ms ] || fail "thread $thread stops: the end came after $took_ms ms"
    n=$(wc -l <"$dir/stopped")
    [ "$n" -ge 2 ] && [ "$n" -lt $n_lines ] || fail "thread $thread stops: $n answers"
done
run "$dir/stopped" --tensor-parallel-size 2 --collective-timeout 5 --resume || fail "resume"
answers "$dir/stopped" | cmp - "$dir/expected" || fail "a stopped rank: other answers after --resume"

# refused TEXT OPTION...
refused() {
    local text=$1
    shift
    ! run "$dir/no" "$@" || fail "$* is taken"
    grep -qF -e "$text" "$dir/log" || fail "$*: another text"
}
refused 'expected 1, 2, 4 or 8' --tensor-parallel-size 3
refused 'num_key_value_heads of config.json is 2' --tensor-parallel-size 4
refused 'homes peer and host are not supported yet' --tensor-parallel-size 2 --kv-home host \
    --kv-select spade
refused 'each rank has one thread' --tensor-parallel-size 2 --threads 2
refused 'GPUs are not supported yet' --tensor-parallel-size 2 --devices cuda:0-1
refused '--collective-timeout 9 has no effect on a model that is not split: set' --collective-timeout 9
refused 'not split: set --tensor-parallel-size 2, 4 or 8' --tensor-parallel-size 1 \
    --collective-timeout 9
for command in plan "compare -i $dir/in.jsonl --arms full,zip" "bench throughput"; do
    # shellcheck disable=SC2086 # options
    ! "$cinch" $command --model examples/tiny-reasoner --tensor-parallel-size 2 >"$dir/log" 2>&1 ||
        fail "$command splits a model"
    grep -q 'tensor-parallel-size 2 is for run-batch and serve' "$dir/log" || fail "$command: text"
done

# What the machine has is compared with the memory of all ranks, and with the whole swap space.
serve=("$cinch" serve --model examples/tiny-reasoner --device cpu --tensor-parallel-size 2
    --uds "$dir/s" --max-model-len 1024)
! "${serve[@]}" --host-memory 10 --swap-space 8 --kv-policies zip >"$dir/log" 2>&1 ||
    fail "the share of a rank is compared"
grep -q -e '--swap-space 8 exceeds 70 % of' "$dir/log" || fail "swap space: another text"
"${serve[@]}" --host-memory 0.7 --kv-cache-memory-bytes 512M >"$dir/log" 2>&1 &
for _ in $(seq 1 200); do
    curl -sf --unix-socket "$dir/s" http://x/health >"$dir/health" && break
    sleep 0.1
done
head -1 "$dir/in.jsonl" | python3 -c 'import json, sys; b = json.loads(sys.stdin.read())["body"]
b["model"] = "tiny-reasoner"; print(json.dumps(b))' >"$dir/body"
curl -sf --unix-socket "$dir/s" -H 'Content-Type: application/json' -d @"$dir/body" \
    http://x/v1/chat/completions >"$dir/answer" || fail "serve"
python3 - "$dir" <<'P' || fail "serve answers otherwise"
import json, sys
d = sys.argv[1]
want = [json.loads(l) for l in open(d + "/one")]
want = [w["response"]["body"]["choices"] for w in want if w["custom_id"] == "r1"][0]
assert json.load(open(d + "/answer"))["choices"] == want
P
grep -q 'planned memory of 1.* GiB (1.0 for KV) exceeds' "$dir/log" || fail "no warning of memory"
kill -TERM $! && wait $! || fail "serve: exit code $?"
echo "ranks: ok"
