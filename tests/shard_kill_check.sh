#!/bin/bash
# shard_kill_check.sh - kills one of 8 shards, and merges, at random moments, SHARD_ROUNDS (1) times.
# After --resume and a merge the output has every line of the input once, with the answers of one
# run. SHARD_SEED (1) seeds the moments. BUILD is the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
trap 'kill -KILL $(jobs -p) 2>/dev/null || true; rm -rf "$dir"' EXIT
RANDOM=${SHARD_SEED:-1}
fail() { echo "shard kill: round $round: $*"; cat "$dir"/log*; exit 1; }

# run OUTPUT...: becomes run-batch.
run() {
    exec "$cinch" run-batch --model examples/tiny-reasoner -i "$dir/in.jsonl" --device cpu \
        --threads 1 --kv-cache-memory-bytes 32M --max-model-len 2048 --temperature 0 \
        --max-inflight 4 --progress none -o "$@"
}
answers() {
    sed 's/.*"custom_id":\("[^"]*"\).*"content":\("\([^"\\]\|\\.\)*"\).*/\1 \2/' "$1"
}
# random MOST: sleeps for up to MOST ms. Draws outside of $(...), where RANDOM is seeded anew.
random() {
    local moment
    printf -v moment '0.%03d' $((RANDOM % $1))
    sleep "$moment"
}

for i in $(seq 1 64); do
    echo "{\"custom_id\": \"r$i\", \"url\": \"/v1/chat/completions\", \"body\": {\"max_tokens\":" \
        "$((3 + i * 7 % 60)), \"messages\": [{\"role\": \"user\", \"content\": \"Sort: $i 3\"}]}}"
done >"$dir/in.jsonl"
round=0
(run "$dir/one" >"$dir/log" 2>&1) || fail "one run"
"$cinch" merge -i "$dir/in.jsonl" -o "$dir/sorted" "$dir/one" >"$dir/log" || fail "one output"
answers "$dir/sorted" >"$dir/expected"

# shards of N: runs them all, killing one of them; --resume leaves out those that are complete.
shards() {
    local i pids=()
    for i in $(seq 0 $(($1 - 1))); do
        run "$dir/out" --shard "$i/$1" --shard-by "$by" --resume >"$dir/log$i" 2>&1 &
        pids+=($!)
    done
    random 999
    kill -KILL "${pids[RANDOM % $1]}" 2>/dev/null || true
    wait "${pids[@]}" || true
}

for round in $(seq 1 "${SHARD_ROUNDS:-1}"); do
    [ $((RANDOM % 2)) = 0 ] && by=line || by=bytes
    rm -rf "$dir/out" "$dir/all"*
    mkdir "$dir/out"
    shards 8
    shards 8
    for i in 0 1 2 3 4 5 6 7; do
        (run "$dir/out" --shard $i/8 --shard-by $by --resume >"$dir/log$i" 2>&1) ||
            fail "shard $i does not go on"
    done
    "$cinch" merge -i "$dir/in.jsonl" -o "$dir/all" "$dir"/out/* >"$dir/log" 2>&1 &
    sleep "0.0$((RANDOM % 3))$((RANDOM % 10))"
    kill -KILL $! 2>/dev/null || true
    wait $! || true
    [ ! -e "$dir/all" ] || [ "$(wc -l <"$dir/all")" = 64 ] || fail "a merge that was killed"
    "$cinch" merge -i "$dir/in.jsonl" -o "$dir/all" "$dir"/out/* >"$dir/log" 2>&1 ||
        fail "lines are missing"
    answers "$dir/all" | cmp - "$dir/expected" || fail "the answers are not those of one run"
done
echo "shard kill: ok"
