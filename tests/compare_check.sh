#!/bin/sh
# Runs `cinch compare` with two tasks and three arms. Checks the table, the JSON and the plot, and
# the errors for wrong arms, lines and options. BUILD is the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
model=examples/tiny-reasoner
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# refuse TEXT ARGUMENTS...: cinch compare must exit with 1 and print TEXT.
refuse() {
    text=$1
    shift
    got=0
    "$cinch" compare "$@" >"$dir/out" 2>&1 </dev/null || got=$?
    [ "$got" = 1 ] && grep -qF -e "$text" "$dir/out" && return
    echo "cinch compare $*: expected exit code 1 and '$text', got exit code $got:"
    cat "$dir/out"
    exit 1
}

"$cinch" compare --model $model -i $model/prompts/sums.jsonl $model/prompts/hops.jsonl \
    --prompt-field prompt --answer-field answer --arms full,zip:128:no-global,window:64 \
    --block-size 32 --limit 2 --max-tokens 24 --progress none --json "$dir/out.json" \
    --plot "$dir/out.svg" >"$dir/table" 2>"$dir/log" || { cat "$dir/log"; exit 1; }

[ "$(grep -c '^| ' "$dir/table")" = 8 ]
grep -q '^sums, 2 prompts$' "$dir/table"
grep -q '^hops, 2 prompts$' "$dir/table"
grep -q '"complete": true' "$dir/out.json"
[ "$(grep -c '"arm": "zip:128:no-global"' "$dir/out.json")" = 2 ]
[ "$(grep -c '"global": false' "$dir/out.json")" = 2 ]
[ "$(grep -c '"logprob_gap_per_token":' "$dir/out.json")" = 6 ]
grep -q '^</svg>$' "$dir/out.svg"

# Output to a pipe is written into the pipe, which is not replaced by a file.
mkfifo "$dir/pipe"
timeout 60 grep -c '"complete": true' "$dir/pipe" >"$dir/seen" &
reader=$!
"$cinch" compare --model $model -i $model/prompts/sums.jsonl --prompt-field prompt --limit 1 \
    --max-tokens 2 --arms full --json "$dir/pipe" >"$dir/table" 2>"$dir/log"
wait $reader || true
[ -p "$dir/pipe" ] && [ "$(cat "$dir/seen")" = 1 ]

input="--model $model -i $model/prompts/sums.jsonl --prompt-field prompt"
# shellcheck disable=SC2086
{
    refuse "--arms is missing" $input
    refuse "kv-policy quest: expected one of full|window|zip" $input --arms full,quest:384
    refuse "unknown key 'windov': expected one of policy, budget, window" $input --arms zip:windov=4
    refuse "--grade needs --answer-field" $input --arms full --grade exact
    refuse "answers: expected a reference answer, got nothing" $input --arms full --answer-field answers
    refuse "one sample per prompt" $input --arms full --n 2
    refuse "nowhere.jsonl" $input nowhere.jsonl --arms full
    refuse "--num-gpu-blocks-override" $input --arms zip:384 --num-gpu-blocks-override 3
}
echo '{"prompt": 7}' >"$dir/bad.jsonl"
refuse "bad.jsonl: line 1: prompt: expected the prompt as a string" --model $model -i "$dir/bad.jsonl" \
    --prompt-field prompt --arms full
: >"$dir/empty.jsonl"
refuse "empty.jsonl: the file has no requests" --model $model -i "$dir/empty.jsonl" --prompt-field prompt \
    --arms full
echo "compare: ok"
