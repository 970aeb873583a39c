#!/bin/sh
# Runs `cinch compare` with two tasks and three arms, forced continuations and selecting arms. Checks
# the tables and the JSON, and the errors for wrong arms, lines and options. BUILD is the
# build directory.
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
    --prompt-field prompt --answer-field answer --arms full,zip:128:no-global,window:128 \
    --block-size 32 --limit 2 --max-tokens 24 --progress none --json "$dir/out.json" \
    >"$dir/table" 2>"$dir/log" || { cat "$dir/log"; exit 1; }

[ "$(grep -c '^| ' "$dir/table")" = 8 ]
grep -q '^sums, 2 prompts$' "$dir/table"
grep -q '^hops, 2 prompts$' "$dir/table"
grep -q '"complete": true' "$dir/out.json"
[ "$(grep -c '"arm": "zip:128:no-global"' "$dir/out.json")" = 2 ]
[ "$(grep -c '"global": false' "$dir/out.json")" = 2 ]
[ "$(grep -c '"logprob_gap_per_token":' "$dir/out.json")" = 6 ]
# The arm full differs nowhere from itself.
grep -q '"median_first_divergence": null' "$dir/out.json"

# Output to a pipe is written into the pipe, which is not replaced by a file.
mkfifo "$dir/pipe"
timeout 600 grep -c '"complete": true' "$dir/pipe" >"$dir/seen" &
reader=$!
"$cinch" compare --model $model -i $model/prompts/sums.jsonl --prompt-field prompt --limit 1 \
    --max-tokens 2 --arms full --json "$dir/pipe" >"$dir/table" 2>"$dir/log"
wait $reader || true
[ -p "$dir/pipe" ] && [ "$(cat "$dir/seen")" = 1 ]

# A window of the same budget stands beside each zip arm, and the difference is paired.
for option in --window-baseline --no-window-baseline; do
    "$cinch" compare --model $model -i $model/prompts/story.jsonl --prompt-field prompt --limit 2 \
        --continue-field prompt --block-size 16 --arms zip:32:window=8 $option --progress none \
        --json "$dir/beside.json" >"$dir/beside$option" 2>"$dir/log" || { cat "$dir/log"; exit 1; }
done
grep -q '^| zip:32:window=8 .*| [+-]0\.[0-9]* (0\.[0-9]*) |' "$dir/beside--window-baseline"
grep -q '^| window:32 ' "$dir/beside--window-baseline"
[ "$(cat "$dir/beside--no-window-baseline" "$dir/beside.json" | grep -c 'window:32\|to window')" = 0 ]

# A line that full KV cannot hold, and a JSON file that cannot be written, do not lose the table.
head -n 1 $model/prompts/sums.jsonl >"$dir/mixed.jsonl"
echo '{"prompt": "Solve mod 100: 54+31", "answer": "85"}' >>"$dir/mixed.jsonl"
mixed="--model $model -i $dir/mixed.jsonl --prompt-field prompt --block-size 64 --max-tokens 60"
mixed="$mixed --num-gpu-blocks-override 6 --ignore-eos --progress none --no-window-baseline"
got=0
# shellcheck disable=SC2086
"$cinch" compare $mixed --arms zip:64 --json /dev/full >"$dir/table" 2>"$dir/log" || got=$?
[ "$got" = 1 ]
[ "$(grep -c '^| ' "$dir/table")" = 3 ]
grep -q 'mixed.jsonl: line 1: .* under policy full may need 7 KV blocks' "$dir/log"
grep -q 'json /dev/full: not written' "$dir/log"
grep -q '^| arm .*| refused |$' "$dir/table"
grep -q '^| full .*| *1 |$' "$dir/table"

# An arm that can hold no line ends the command before the first one runs.
sed -i 1q "$dir/mixed.jsonl"
got=0
# shellcheck disable=SC2086
"$cinch" compare $mixed --arms zip:64 --json "$dir/refused.json" >"$dir/table" 2>"$dir/log" || got=$?
[ "$got" = 1 ]
grep -q 'mixed.jsonl: arm full: the engine refuses all 1 lines, .* 7 KV blocks .* the pool has 6' \
    "$dir/log"
[ ! -s "$dir/table" ] && [ ! -e "$dir/refused.json" ]

# Without an audit nothing is compared either.
"$cinch" compare --model $model -i $model/prompts/sums.jsonl --prompt-field prompt --limit 1 \
    --max-tokens 2 --arms full --audit 0 --progress none --json "$dir/none.json" >"$dir/table" 2>&1
grep -q '"same_best_share": null' "$dir/none.json"
[ "$(grep -c '100.00 %\|same best\|refused' "$dir/table")" = 0 ]
"$cinch" run-batch --model $model -i "$dir/mixed.jsonl" -o "$dir/answers" --prompt-field prompt \
    --max-tokens 2 --audit 0.0001% --summary-json "$dir/none.json" --progress none >"$dir/log" 2>&1
grep -q 'audit: no answer was replayed' "$dir/log"
grep -q '"same_best_share": null' "$dir/none.json"

# Forced continuations: a table per file, a value per document, and no compressed arm that equals
# full KV.
"$cinch" compare --model $model -i $model/prompts/sums.jsonl $model/prompts/hops.jsonl --prompt-field prompt \
    --continue-field prompt --id-field id --arms window:32:sinks=2,full --block-size 16 --limit 2 \
    --progress none --json "$dir/forced.json" >"$dir/table" 2>"$dir/log" || { cat "$dir/log"; exit 1; }
[ "$(grep -c '^| ' "$dir/table")" = 6 ]
[ "$(grep -c '^| full  *|.* 100.00 % |' "$dir/table")" = 2 ]
grep -q '^hops, 2 documents$' "$dir/table"
[ "$(grep -c '"continuation_tokens":' "$dir/forced.json")" = 4 ]
[ "$(grep -c '"nll_minus_full": 0.0,' "$dir/forced.json")" = 2 ]
grep -q '"complete": true' "$dir/forced.json"

# A document that an arm cannot hold is named before anything runs.
echo '{"prompt": "Solve mod 100: 54+31"}' >"$dir/late.jsonl"
head -n 1 $model/prompts/sums.jsonl >>"$dir/late.jsonl"
refuse "late.jsonl: line 2: arm full" --model $model -i "$dir/late.jsonl" --prompt-field prompt \
    --continue-field prompt --arms zip:64 --block-size 64 --num-gpu-blocks-override 6
grep -q '^| ' "$dir/out" && { echo "compare: an arm ran before the refusal"; exit 1; }

# Arms with a home are compared like others, and are not probed.
homes="--arms spade:64,spade:64:home=peer,zip:128:select=spade:select_tokens=64:home=peer"
homes="$homes --cache-device cpu --home-space 0.1 --device cpu --block-size 64"
# shellcheck disable=SC2086
"$cinch" compare --model $model -i $model/prompts/story.jsonl --prompt-field prompt \
    --continue-field prompt $homes --limit 2 --progress none --wide >"$dir/homes" 2>"$dir/log" ||
    { cat "$dir/log"; exit 1; }
[ "$(grep -c '^| .*home=peer  *| .* | *[1-9][0-9]* | *[1-9][0-9]* |$' "$dir/homes")" = 2 ]
# shellcheck disable=SC2086
refuse 'select-probe 3: an arm has kv home peer' --model $model -i $model/prompts/story.jsonl \
    --prompt-field prompt --continue-field prompt $homes --select-probe 3

# Exchanges that rank by the step's own query bring back what it attends to. build/cinch loses tokens.
arms="last:64:home=peer:select_cap=64:select_keys=rows:no-select_rotate"
for program in cinch tests/cinch_true_query; do
    "${BUILD:-build}/$program" compare --model $model -i $model/prompts/story.jsonl --prompt-field prompt \
        --continue-field prompt --arms $arms --limit 2 --block-size 64 --packs 4 --cache-device cpu \
        --home-space 0.1 --progress none >>"$dir/true" 2>"$dir/log" || { cat "$dir/log"; exit 1; }
done
[ "$(grep -c '^| last:64:.* 100.00 % |' "$dir/true")" = 1 ]

# --select-probe adds three columns, in which `full` has no figures, and changes no other result.
for probe in 0 3; do
    "$cinch" compare --model $model -i $model/prompts/story.jsonl --prompt-field prompt \
        --continue-field prompt --arms oracle:64,ds:64 --recent-tokens 0 --limit 1 \
        --select-probe $probe --progress none --json "$dir/probe$probe.json" >"$dir/table$probe" \
        2>"$dir/log" || { cat "$dir/log"; exit 1; }
done
head -n 4 "$dir/table3" | grep -q '|  *mass |  *oracle |  *churn |$'
grep -q '^| full  *|.* - |  *- |  *- |$' "$dir/table3"
grep -q '^| oracle:64  *|.* 0\.[0-9]* |  *1.000 |  *0\.[0-9]* |$' "$dir/table3"
grep -q '^| ds:64  *|.* 0\.[0-9]* |  *0\.[0-9]* |  *0\.[0-9]* |$' "$dir/table3"
[ "$(cat "$dir/table0" "$dir/probe0.json" | grep -c churn)" = 0 ]
for key in recalled_mass oracle_overlap churn probed_steps; do
    [ "$(grep -c "\"$key\":" "$dir/probe3.json")" = 3 ]
done
[ "$(grep -c '"recalled_mass": null' "$dir/probe3.json")" = 1 ]
[ "$(grep -c '"oracle_overlap": 1.0,' "$dir/probe3.json")" = 1 ]
for i in 0 3; do grep '"nll' "$dir/probe$i.json" >"$dir/nll$i"; done
cmp "$dir/nll0" "$dir/nll3"

input="--model $model -i $model/prompts/sums.jsonl --prompt-field prompt"
# shellcheck disable=SC2086
{
    refuse "--arms is missing" $input
    refuse "dance: expected a policy, one of full|window|zip" $input --arms full,dance:384
    refuse "unknown key 'windov': expected one of policy, budget, window" $input --arms zip:windov=4
    refuse "--no-window-baseline has no effect: no arm" $input --arms full --no-window-baseline
    refuse "beside zip:4:window=2; --no-window-baseline leaves it out: --arms window:4: kv sinks of 4" \
        $input --arms zip:4:window=2
    refuse "--grade needs --answer-field" $input --arms full --grade exact
    refuse "answers: expected a reference answer, got nothing" $input --arms full --answer-field answers
    refuse "one sample per prompt" $input --arms full --n 2
    refuse "nowhere.jsonl" $input nowhere.jsonl --arms full
    refuse "--num-gpu-blocks-override" $input --arms zip:384 --num-gpu-blocks-override 3
    forced="$input --arms full --continue-field prompt"
    for option in "answer-field answer" "temperature 0" "max-tokens 9" "n 2" "audit 5%"; do
        refuse "--${option%% *} has no effect on a forced continuation" $forced --$option
    done
    refuse "--continue-field needs --prompt-field" --model $model -i $model/prompts/sums.jsonl \
        --arms full --continue-field prompt
    refuse "--select-probe needs --continue-field" $input --arms ds:64 --select-probe 8
    refuse "--select-probe 8: no arm of --arms full,zip:64 has a selector" $forced --select-probe 8 \
        --arms full,zip:64
    refuse "--select-probe 8: expected --device cpu, got cuda" $forced --select-probe 8 --arms ds:64 \
        --device cuda
    refuse "line 1: rest: expected a string, got nothing" $forced --continue-field rest
    refuse "exceed the context length of 64" $forced --max-model-len 64
}
echo '{"prompt": "1 + 1", "rest": "2"}' >"$dir/short.jsonl"
refuse "short.jsonl: line 1: rest: expected at least 2 tokens, got 1" --model $model \
    -i "$dir/short.jsonl" --prompt-field prompt --continue-field rest --arms full
echo '{"prompt": 7}' >"$dir/bad.jsonl"
refuse "bad.jsonl: line 1: prompt: expected the prompt as a string" --model $model -i "$dir/bad.jsonl" \
    --prompt-field prompt --arms full
: >"$dir/empty.jsonl"
refuse "empty.jsonl: the file has no requests" --model $model -i "$dir/empty.jsonl" --prompt-field prompt \
    --arms full
echo "compare: ok"
