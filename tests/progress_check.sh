#!/bin/sh
# Checks the progress on a terminal: the bar is redrawn in place, no other text is on its line, and
# interrupted runs say what is done. BUILD is the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "$1"
    cat -v "$dir/log"
    exit 1
}

# on_terminal COMMAND...: runs it on a terminal of 120 columns, whose output goes to $dir/log.
on_terminal() {
    script -qec "stty cols 120; $*" "$dir/log" >/dev/null </dev/null || :
}

# drawn: the pieces of $dir/log between line ends and redraws, one a line.
drawn() {
    grep -v '^Script' "$dir/log" | sed 's/\r\x1b\[K/\n/g' | tr '\r' '\n'
}

# interrupt NOTE COMMAND...: runs it until it is interrupted and has said so. A busy machine may need
# longer than the first limit to begin.
interrupt() {
    note=$1
    shift
    for limit in 1.5 6 24 96; do
        rm -f "$dir/all" "$dir/json"
        timeout --foreground -s INT $limit "$@" >"$dir/log" 2>&1 || :
        ! grep -qE "$note" "$dir/log" || return 0
    done
    fail "no note: $note"
}

bar='^\[[#.]*\] [0-9]* of [0-9]* requests, '
on_terminal "$cinch" bench throughput --model examples/tiny-reasoner --num-prompts 20 \
    --input-len 16 --output-len 300 --max-num-seqs 4
drawn | grep -qE "${bar}[0-9.k]* of 6.0k tokens, [0-9.k]* output tokens/s, [0-9:]* left" ||
    fail "bench throughput shows no bar"
drawn | grep -q '^Throughput: ' || fail "the figures share a line with the bar"
drawn | grep -E '[][#]' | grep -vE "^\[[#.]*\] [0-9]* of 20 requests(, [^,]*){1,6}$" &&
    fail "text is glued to the bar"
[ "$(drawn | grep -cE "$bar")" -gt 2 ] || fail "the bar is not redrawn"

# Errors while the bar is drawn, and an interrupt.
{
    head -60 examples/tiny-reasoner/prompts/ledger.jsonl
    echo nonsense
} >"$dir/in"
for limit in 3 12 48; do
    rm -f "$dir"/out*
    on_terminal "timeout --foreground -s INT $limit $cinch run-batch --model examples/tiny-reasoner \
        -i $dir/in -o $dir/out --prompt-field prompt --max-inflight 61 --max-num-seqs 4 --max-tokens 600"
    ! drawn | grep -qE '^info: finishing the running requests' || break
done
drawn | grep -qE '^warning: line 61: ' || fail "a warning shares a line with the bar"
drawn | grep -qE '^info: finishing the running requests' || fail "a message is glued to the bar"
drawn | grep -qE '^stopped: interrupted; --resume continues' || fail "no summary"

# An interrupt of bench throughput prints partial figures. Without --foreground, timeout also signals
# its process group, so the program may be interrupted twice.
interrupt '^Throughput: .* [1-9][0-9.]* output tokens/s$' "$cinch" bench throughput \
    --model examples/tiny-reasoner --num-prompts 500 --input-len 16 --output-len 400 --max-num-seqs 8 \
    --output-json "$dir/json" --progress none
grep -qE '^Interrupted: partial figures, [0-9]+ of 500 requests ended' "$dir/log" || fail "no note"
grep -q '"complete": false' "$dir/json" || fail "the JSON is not marked as partial"
interrupt '^Steady state: [1-9]' "$cinch" bench throughput --model examples/tiny-reasoner \
    --steady-steps 1000000 --input-len 16 --output-len 32 --max-num-seqs 4 --warmup-steps 1 \
    --progress plain --kv-cache-memory-bytes 16M
grep -qE '^Interrupted: partial figures, [0-9]+ of 1000000 steps' "$dir/log" || fail "no note"

# A run that is interrupted when no line is left to begin, and one that continues it.
head -2 examples/prompts.jsonl >"$dir/in"
interrupt '^interrupted, but nothing is left to do: every line has its answer$' \
    "$cinch" run-batch --model examples/tiny-reasoner -i "$dir/in" -o "$dir/all" \
    --prompt-field prompt --max-tokens 1500 --ignore-eos
[ "$(wc -l <"$dir/all")" = 2 ] || fail "not every line is answered"
"$cinch" run-batch --model examples/tiny-reasoner -i "$dir/in" -o "$dir/all" --resume \
    --prompt-field prompt --max-tokens 1500 --ignore-eos >"$dir/log" 2>&1 || fail "resume"
grep -q '^nothing was left to do: all 2 lines were done before$' "$dir/log" || fail "resume"
echo "progress: ok"
