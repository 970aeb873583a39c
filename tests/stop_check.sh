#!/bin/sh
# stop_check.sh - a second SIGTERM or SIGINT ends every command at once: while it loads weights, in
# the middle of a long step, while it waits for a pipe, and as the first process of a container.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
child=""
trap 'kill -KILL $child 2>/dev/null || true; rm -rf "$dir"' EXIT
fail() { echo "stop: $*"; cat "$dir/log"; exit 1; }

# A model whose weights take a while to make, and whose steps take minutes.
model=$dir/slow
mkdir "$model"
cp examples/tiny-reasoner/tokenizer*.json "$model"
sed 's/"hidden_size": 384/"hidden_size": 1024/; s/"intermediate_size": 1024/"intermediate_size": 4096/
    s/"num_hidden_layers": 6/"num_hidden_layers": 4/' examples/tiny-reasoner/config.json \
    >"$model/config.json"
awk 'BEGIN { for (i = 0; i < 7000; i++) printf "word " }' >"$dir/words"
printf '{"prompt": "a", "max_tokens": 1}\n{"prompt": "%s"}\n' "$(cat "$dir/words")" >"$dir/in"
for i in 1 2 3 4 5 6 7 8; do cat "$dir/words"; done >"$dir/text"
slow="--model $model --load-format dummy --threads 1 --kv-cache-memory-bytes 512M
    --max-num-batched-tokens 8192"

# start COMMAND...: runs it from $input to $output, with signals as at a terminal.
start() {
    env --default-signal=INT,TERM "$@" <"${input:-/dev/null}" >"${output:-/dev/null}" 2>"$dir/log" &
    child=$!
}

# within TENTHS: waits until the command has ended, and sets $code.
within() {
    tries=0
    while kill -0 "$child" 2>/dev/null && [ "$(cut -d' ' -f3 "/proc/$child/stat")" != Z ]; do
        tries=$((tries + 1))
        [ $tries -le "$1" ] || fail "$what: still runs after the signals"
        sleep 0.1
    done
    code=0
    wait "$child" || code=$?
    child=""
}

# until_true COMMAND...: waits until it succeeds.
until_true() {
    tries=0
    until "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "$what: waits for $*"
        sleep 0.1
    done
}

# twice SIGNAL SIGNAL CODE: sends both and expects the exit code.
twice() {
    kill -s "$1" "$child" || fail "$what: ended before the signals"
    sleep 0.3
    kill -s "$2" "$child" 2>/dev/null || true
    within 100
    case " $3 " in *" $code "*) ;; *) fail "$what: exit code $code, expected $3" ;; esac
}

run_batch() { rm -f "$dir"/out*; start "$cinch" run-batch $slow -i "$dir/in" -o "$dir/out" \
    --prompt-field prompt --max-tokens 1 --max-num-seqs 1 --progress none; }
serve() { start "$cinch" serve $slow --uds "$dir/socket"; }
compare() { start "$cinch" compare $slow -i "$dir/in" --prompt-field prompt --arms full,window:64 \
    --progress none; }
bench() { start "$cinch" bench throughput $slow --num-prompts 2 --input-len 7000 --output-len 9 \
    --progress none; }
ask() {
    printf '%s' "$1" >"$dir/body"
    curl -sS --unix-socket "$dir/socket" -H 'Content-Type: application/json' \
        --data "@$dir/body" http://localhost/v1/completions >"$dir/reply" 2>&1 || true
}

# In a step. A short request before tells that the weights are made.
for signals in "TERM TERM" "TERM INT"; do
    what="run-batch in a step, $signals"
    run_batch
    until_true [ -s "$dir/out" ]
    sleep 0.5
    # shellcheck disable=SC2086
    twice $signals 3
    [ "$(wc -l <"$dir/out")" = 1 ] || fail "$what: the first answer is lost"
done
for command in compare bench; do
    what="$command in a step"
    $command
    until_true grep -q "parameters) on cpu" "$dir/log"
    sleep 3
    twice TERM TERM 143
done
what="serve in a step"
serve
until_true grep -q "info: serving" "$dir/log"
ask '{"model": "slow", "prompt": "a", "max_tokens": 1}'
grep -q '"choices"' "$dir/reply" || fail "$what: no answer"
ask "{\"model\": \"slow\", \"prompt\": \"$(cat "$dir/words")\"}" &
sleep 3 # nothing tells that the step has begun
kill -s TERM "$child"
until_true grep -q "stopping: 1 requests in flight" "$dir/log"
kill -s TERM "$child"
within 100
[ $code = 143 ] || fail "$what: exit code $code"
what="serve after a killed one"
serve
until_true grep -q "info: serving" "$dir/log"
kill -s TERM "$child"
within 100
[ $code = 0 ] || fail "serve without requests: exit code $code"

# While weights are made. The first signal ends the command unless they are made already.
for command in run_batch serve compare bench; do
    what="$command, loading"; $command; sleep 0.1; twice TERM TERM "3 143"
done
what=calibrate
start "$cinch" calibrate --model examples/tiny-reasoner --text "$dir/text" -o "$dir/select"
sleep 0.5
twice TERM TERM 143

# Waiting for a pipe: one that nobody writes, and a full one.
mkfifo "$dir/empty" "$dir/full"
exec 3<>"$dir/empty" 4<>"$dir/full"
timeout 1 cat /dev/zero >&4 || true
what="tokenize, idle input"
input=$dir/empty start "$cinch" tokenize --model examples/tiny-reasoner
sleep 0.3
twice TERM TERM 143
for command in "plan --model examples/tiny-reasoner" \
    "tokenize --model examples/tiny-reasoner --text word" "help run-batch"; do
    what="$command, full output"
    # shellcheck disable=SC2086
    output=$dir/full start "$cinch" $command
    sleep 0.3
    twice TERM TERM 143
done

# As the first process of a container, where the default action of a signal does nothing.
if unshare -Urpf true 2>/dev/null; then
    what="the first process"
    input=$dir/empty start unshare -Urpf "$cinch" tokenize --model examples/tiny-reasoner
    until_true grep -q . "/proc/$child/task/$child/children"
    sleep 0.5
    kill -s TERM "$(tr -d ' ' <"/proc/$child/task/$child/children")"
    within 100
    [ $code = 143 ] || fail "$what: exit code $code"
fi
echo "stop: ok"
