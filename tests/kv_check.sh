#!/bin/sh
# Checks every KV option: the flag and the field of a request's kv object have the same effect, both
# change the answer, and a wrong value is refused with its name and value. Requests with different
# policies, budgets, scores and selectors run in one batch. BUILD is the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
model=examples/tiny-reasoner
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
prompt=$(sed -n '1s/.*"prompt": \("[^"]*"\), "answer".*/\1/p' $model/prompts/ledger.jsonl)
[ -n "$prompt" ]

fail() {
    echo "kv: $*"
    cat "$dir/log"
    exit 1
}

# ask ID MAX_TOKENS [KV]: prints a line of the input. It asks for log-probabilities, which can
# differ where the texts are equal.
ask() {
    printf '{"custom_id": "%s", "method": "POST", "url": "/v1/chat/completions", "body": {%s' \
        "$1" "\"messages\": [{\"role\": \"user\", \"content\": $prompt}], \"max_tokens\": $2, "
    printf '"logprobs": true, "ignore_eos": true%s}}\n' "${3:+, \"kv\": $3}"
}

# run ARGUMENTS...: runs the lines of $dir/in and writes the answers to $dir/out.
run() {
    rm -f "$dir"/out*
    got=0
    "$cinch" run-batch --model $model -i "$dir/in" -o "$dir/out" --temperature 0 --progress none \
        --kv-policies full,window,zip "$@" >"$dir/log" 2>&1 || got=$?
    [ $got = ${code:-0} ] || fail "run-batch $*: exit $got"
}

# answer FILE ID: prints choices and usage without ids and times, or nothing without an answer.
answer() {
    sed -n "/\"custom_id\":\"$2\"/s/.*\"choices\":\(.*\)}},\"error\":null.*/\1/p" "$1"
}

# ---- the flag, the field, and what they change ----

small="--block-size 16 --kv-window 16"
options='alpha=0.2 pooling=always pooling=never redundancy=flash redundancy=none p=0.95 tau=9
    lambda=0.8 combine=subtract move=fill window=3 head_rule=mean rule=zipage rule=peak rule=follow
    global=false budget=96 sinks=20'
base='"policy": "zip", "budget": 64'
{
    ask default 120 "{$base}"
    ask window 120 '{"policy": "window", "budget": 64}'
    ask full 120
    for option in $options; do
        value=${option#*=}
        case $value in [a-z]*) [ "$value" = false ] || value="\"$value\"" ;; esac
        case $option in
        sinks*) kv='"policy": "window", "budget": 64, "sinks": '$value ;;
        budget*) kv='"policy": "zip", "budget": '$value ;;
        *) kv="$base, \"${option%%=*}\": $value" ;;
        esac
        ask "$option" 120 "{$kv}"
    done
} >"$dir/in"
# shellcheck disable=SC2086
run $small
cp "$dir/out" "$dir/fields"
[ "$(wc -l <"$dir/fields")" = 21 ]

# same ID ARGUMENTS...: the answer with these flags must equal the answer of line ID with fields.
# $tokens is its length, if not 120.
same() {
    id=$1
    shift
    ask flag "${tokens:-120}" >"$dir/in"
    # shellcheck disable=SC2086
    run $small "$@"
    answer "$dir/fields" "$id" >"$dir/want"
    answer "$dir/out" flag >"$dir/got"
    [ -s "$dir/want" ] || fail "$id: no answer"
    cmp -s "$dir/want" "$dir/got" || fail "$id: the flag and the field differ"
}

same default --kv-policy zip --kv-budget 64
same window --kv-policy window --kv-budget 64
same full --kv-policy full
for option in $options; do
    key=$(echo "${option%%=*}" | tr _ -)
    policy=zip
    budget=64
    plain=default
    set -- "--kv-$key" "${option#*=}"
    case $option in
    sinks*) policy=window plain=window ;;
    budget*) budget=${option#*=} && set -- ;;
    global*) set -- --no-kv-global ;;
    esac
    same "$option" --kv-policy $policy --kv-budget $budget "$@"
    answer "$dir/fields" $plain | cmp -s - "$dir/want" && fail "$option changes nothing"
done

# ---- the same for selectors ----

selectors="oracle quest ds tls spade last random spec"
most="--select-tokens 128 --select-tiles 4 --select-window 16"
small="--block-size 64 --kv-selectors $(echo "$selectors" | tr ' ' ,) $most"
# Each option beside a selector that reads it. spade and last select from position 256 on.
options='ds:select_tokens=32 ds:select_group=mean ds:recent_tokens=64 ds:sinks=1 tls:select_tiles=1
    spade:select_keys=rows spade:select_window=3 spade:select_weights=softmax spade:select_rotate=false'

# length SELECTOR: sets $tokens to an output length at which the selector selects.
length() {
    case $1 in spade | last) tokens=230 ;; *) tokens=72 ;; esac
}

# object SELECTOR KEY VALUE: prints a kv object with short lists.
object() {
    printf '{"select": "%s"' "$1"
    [ "$2" = select_tokens ] || printf ', "select_tokens": 16'
    # spade and last attend to all tokens behind their candidates.
    case $1.$2 in spade.* | last.* | *.recent_tokens) ;; *) printf ', "recent_tokens": 0' ;; esac
    case $3 in
    false | [0-9]*) printf ', "%s": %s}' "$2" "$3" ;;
    *) printf ', "%s": "%s"}' "$2" "$3" ;;
    esac
}

{
    ask none-short 120
    ask none-long 300
    for select in $selectors; do
        length "$select"
        ask "$select" "$tokens" "$(object "$select" policy full)"
    done
    for option in $options; do
        pair=${option#*:}
        length "${option%%:*}"
        ask "$option" "$tokens" "$(object "${option%%:*}" "${pair%%=*}" "${pair#*=}")"
    done
} >"$dir/in"
# shellcheck disable=SC2086
run $small --summary-json "$dir/summary"
cp "$dir/out" "$dir/fields"
[ "$(grep -c '"error":null' "$dir/fields")" = 19 ]
grep -q '^kv: [1-9][0-9]* decode steps attended to [1-9][0-9]* of [1-9][0-9]* tokens' "$dir/log" ||
    fail "no selection in the last lines"
for key in selected_steps selected_tokens candidate_tokens; do
    grep -q "\"$key\": [1-9]" "$dir/summary" || fail "summary: no $key"
    answer "$dir/fields" ds | grep -q "\"select\":\"ds\",.*\"$key\":[1-9]" || fail "usage: no $key"
    answer "$dir/fields" none-short | grep -q "\"select\":\"none\",.*\"$key\":0" ||
        fail "usage without a selector: $key"
done

# choices FILE ID: prints an answer without its usage, which names the selector.
choices() {
    answer "$1" "$2" | sed 's/"usage":.*//' | grep . || fail "$2: no answer"
}

for select in $selectors; do
    length "$select"
    same "$select" --kv-select "$select" --select-tokens 16 --recent-tokens 0
    [ "$tokens" = 300 ] && plain=none-long || plain=none-short
    choices "$dir/fields" "$plain" >"$dir/want"
    choices "$dir/fields" "$select" | cmp -s - "$dir/want" && fail "$select changes nothing"
done
for option in $options; do
    select=${option%%:*}
    key=${option#*:}
    value=${key#*=}
    key=${key%%=*}
    length "$select"
    set -- --kv-select "$select" --select-tokens 16 --recent-tokens 0
    case $key in
    sinks) set -- "$@" --kv-sinks "$value" ;;
    select_rotate) set -- "$@" --no-select-rotate ;;
    *) set -- "$@" "--$(echo "$key" | tr _ -)" "$value" ;;
    esac
    same "$option" "$@"
    choices "$dir/fields" "$select" >"$dir/want"
    choices "$dir/fields" "$option" | cmp -s - "$dir/want" && fail "$option changes nothing"
done
tokens=120
ask flag 120 "$(object ds sinks 4)" >"$dir/in"
# shellcheck disable=SC2086
run $small --select-dense-layers 3
choices "$dir/fields" ds >"$dir/want"
choices "$dir/out" flag | cmp -s - "$dir/want" && fail "select-dense-layers changes nothing"

# A file of answers keeps its options of selection.
{ ask one 8 && ask two 8; } >"$dir/in"
run --block-size 64 --kv-select ds --select-tokens 64
for other in "--kv-select tls --select-tokens 64" "--kv-selectors ds --select-tokens 64" \
    "--kv-select ds --select-tokens 32" \
    "--kv-select ds --select-tokens 64 --select-dense-layers 3"; do
    # shellcheck disable=SC2086
    "$cinch" run-batch --model $model -i "$dir/in" -o "$dir/out" --temperature 0 --progress none \
        --resume --block-size 64 --kv-policies full,window,zip $other >"$dir/log" 2>&1 &&
        fail "resumed with $other"
    grep -q 'write another output file.*which changes results' "$dir/log" ||
        fail "resume with $other"
done

# ---- the same for homes ----

homes="--device cpu --cache-device cpu --home-space 0.1"
small="--block-size 64 --kv-selectors spade,tls --select-tokens 64 --select-tiles 2 $homes"
tokens=300
{
    ask device $tokens '{"select": "spade"}'
    ask peer $tokens '{"select": "spade", "home": "peer"}'
    ask cap $tokens '{"select": "spade", "home": "peer", "select_cap": 1}'
    ask tiles $tokens '{"select": "tls", "home": "peer"}'
    ask query $tokens '{"select": "tls", "home": "peer", "select_query": "predicted"}'
    ask few $tokens '{"select": "tls", "home": "peer", "select_query": "predicted", "select_window": 3}'
} >"$dir/in"
# shellcheck disable=SC2086
run $small --kv-homes peer --summary-json "$dir/summary"
cp "$dir/out" "$dir/fields"
grep -q '^kv: [1-9][0-9]* exchanges with the home, [1-9][0-9]* entries fetched and' "$dir/log" ||
    fail "no exchanges in the last lines"
for key in exchanges fetched missed fetched_bytes put_bytes; do
    grep -q "\"$key\": [1-9]" "$dir/summary" || fail "summary: no $key"
done
answer "$dir/fields" cap | grep -q '"home":"peer","exchanges":[1-9].*"fetched":[1-9].*"missed":[1-9]' ||
    fail "usage: no exchanges"
answer "$dir/fields" device | grep -q '"home":"device","exchanges":0,"fetched":0,"missed":0' ||
    fail "usage without a home"
same device --kv-select spade --kv-homes peer
same peer --kv-select spade --kv-home peer
same cap --kv-select spade --kv-home peer --select-cap 1
same tiles --kv-select tls --kv-home peer
same query --kv-select tls --kv-home peer --select-query predicted
same few --kv-select tls --kv-home peer --select-query predicted --select-window 3
for pair in device:peer peer:cap tiles:query query:few; do
    choices "$dir/fields" "${pair%:*}" >"$dir/want"
    choices "$dir/fields" "${pair#*:}" | cmp -s - "$dir/want" && fail "$pair: no difference"
done

# Home auto: the usage and the totals name the home that was chosen. The device has no room for both.
{ ask one 300 '{"select": "spade", "home": "auto"}' && ask two 300 '{"select": "spade", "home": "auto"}'; } >"$dir/in"
# shellcheck disable=SC2086
run $small --kv-homes device,peer,host --num-gpu-blocks-override 12 --max-model-len 448 \
    --summary-json "$dir/summary"
cat "$dir/out" >"$dir/both"
answer "$dir/both" one | grep -q '"home":"device"' || fail "auto: one is not on the device"
answer "$dir/both" two | grep -q '"home":"peer"' || fail "auto: two is not at peer"
grep -q '^kv: home auto chose device 1 times, peer 1 and host 0; 0 moves' "$dir/log" ||
    fail "auto: no choices in the last lines"
tr -d ' \n' <"$dir/summary" |
    grep -q '"auto_admissions":{"device":1,"peer":1,"host":0},"auto_moves":0' ||
    fail "summary: no choices of auto"

# The device changes nothing that a file of answers keeps; home and cap do.
{ ask one 8 && ask two 8; } >"$dir/in"
# shellcheck disable=SC2086
run $small --kv-select spade --kv-home peer
for other in "--kv-home device --kv-homes peer" "--kv-home peer --select-cap 3"; do
    # shellcheck disable=SC2086
    "$cinch" run-batch --model $model -i "$dir/in" -o "$dir/out" --temperature 0 --progress none \
        --resume --kv-policies full,window,zip $small --kv-select spade $other >"$dir/log" 2>&1 &&
        fail "resumed with $other"
    grep -q 'which changes results' "$dir/log" || fail "resume with $other"
done

# ---- every block size, over and under the budget ----

for block in 16 32 64 128 256; do
    { ask long 460 '{"policy": "zip", "budget": 256}' && ask short 40 '{"policy": "zip"}'; } >"$dir/in"
    run --block-size $block --kv-window 16
    answer "$dir/out" long | grep -q '"compressions":[1-9]' || fail "block size $block: no event"
    answer "$dir/out" short | grep -q '"compressions":0' || fail "block size $block: an event"
done

# ---- wrong values ----

# field KV TEXT: a line with this kv object must fail with TEXT in its error.
field() {
    printf '%s\n' "$2" >>"$dir/texts"
    ask "bad$(wc -l <"$dir/texts")" 8 "$1" >>"$dir/in"
}
# A window may be as large as the ring, of --kv-observe queries here.
ask good 8 '{"policy": "zip", "budget": 64, "window": 32}' >"$dir/in"
: >"$dir/texts"
field '{"policy": "quest"}' 'kv.policy "quest": expected one of full|window|zip'
field '{"policy": 1}' 'kv.policy 1'
field '{"policy": "zip", "budget": 0}' 'kv.budget 0'
field '{"policy": "zip", "budget": "much"}' 'kv.budget "much"'
field '{"policy": "zip", "budget": 16, "window": 32}' 'budget of 16 tokens is below the window of 32'
field '{"policy": "zip", "budget": 4000}' 'cap of 251 exceeds the pool of 200 blocks of 16 tokens'
field '{"policy": "zip", "window": 33}' 'window of 33 tokens: expected 1 to 32'
field '{"policy": "zip", "window": 0}' 'kv.window 0'
field '{"policy": "window", "budget": 64, "sinks": 64}' 'sinks of 64 tokens'
field '{"policy": "zip", "rule": "best"}' 'kv.rule "best": expected one of zipage|scaled|peak|follow'
field '{"policy": "zip", "head_rule": "sum"}' 'kv.head_rule "sum": expected one of max|mean'
field '{"policy": "zip", "observe": -1}' 'kv.observe -1'
field '{"policy": "zip", "rule": "peak", "observe": 33}' 'kv observe of 33 queries: expected at most 32'
field '{"policy": "zip", "recent": -1}' 'kv.recent -1'
field '{"policy": "zip", "rule": "peak", "recent": 1.5}' 'kv recent 1.5: expected a share of the budget'
field '{"policy": "zip", "rule": "peak", "recent": 61}' 'kv recent of 61 tokens and kv sinks of 4'
field '{"policy": "zip", "rule": "peak", "recent": 32, "move": "fill", "window": 8}' \
    'kv recent of 32 tokens: with kv move fill expected at most a block of 16'
field '{"policy": "zip", "alpha": 1.5}' 'kv.alpha 1.5'
field '{"policy": "zip", "alpha": "x"}' 'kv.alpha "x"'
field '{"policy": "zip", "global": "yes"}' 'kv.global "yes"'
field '{"policy": "zip", "pooling": "last"}' 'kv.pooling "last": expected one of first|never|always'
field '{"policy": "zip", "redundancy": "thunder"}' 'expected one of lightning|flash|none'
field '{"policy": "zip", "p": 2}' 'kv.p 2'
field '{"policy": "zip", "tau": 0}' 'kv.tau 0'
field '{"policy": "zip", "lambda": -1}' 'kv.lambda -1'
field '{"policy": "zip", "combine": "xor"}' 'kv.combine "xor": expected one of convex|subtract'
field '{"policy": "zip", "move": "random"}' 'kv.move "random": expected one of order|fill'
field '{"policy": "zip", "budget": 64, "window": 17, "move": "fill"}' \
    'window of 17 tokens: with kv move fill expected at most a block of 16'
field '{"policy": "zip", "scores": 1}' "unknown member 'scores'"
field '7' 'kv: expected an object'

# refused ARGUMENTS...: answers the good line and refuses the bad ones with their texts.
refused() {
    code=2
    run "$@"
    answer "$dir/out" good | grep -q . || fail "a good line beside bad ones has no answer"
    n=0
    while read -r text; do
        n=$((n + 1))
        grep "\"custom_id\":\"bad$n\"" "$dir/out" | sed 's/\\"/"/g' | grep -qF -e "$text" ||
            { grep "\"bad$n\"" "$dir/out" >"$dir/log" || :; fail "not refused with '$text'"; }
    done <"$dir/texts"
}
refused --block-size 16 --kv-budget 64 --kv-window 16 --kv-observe 32 --num-gpu-blocks-override 200

ask good 8 '{"select": "none", "policy": "zip"}' >"$dir/in"
: >"$dir/texts"
names='none|oracle|quest|ds|tls|spade|last|random'
field '{"select": "dance"}' "kv.select \"dance\": expected one of $names"
field '{"select": 1}' 'kv.select 1'
field '{"select": "quest"}' 'kv.select quest is not enabled: add it to --kv-selectors'
field '{"policy": "zip"}' 'kv select ds with kv policy zip: expected policy full'
field '{"select_tokens": 0}' 'kv.select_tokens 0'
field '{"select_tokens": "many"}' 'kv.select_tokens "many"'
field '{"select_tokens": 129}' 'kv select_tokens 129: expected 1 to 128; raise --select-tokens'
field '{"select": "tls", "select_tiles": 0}' 'kv.select_tiles 0'
field '{"select": "tls", "select_tiles": 5}' \
    'kv select_tiles 5: expected 1 to 4; raise --select-tiles'
field '{"select": "tls", "select_tiles": 2}' 'kv select_tiles of 2: the 128 tokens of these tiles'
field '{"select": "spade", "select_window": 65}' 'kv.select_window 65'
field '{"select": "spade", "select_window": 17}' \
    'kv select_window 17: expected 1 to 16; raise --select-window'
field '{"select_keys": "heads"}' 'kv.select_keys "heads": expected one of labels|rows'
field '{"select_group": "sum"}' 'kv.select_group "sum": expected one of max|mean'
field '{"select_weights": "soft"}' \
    'kv.select_weights "soft": expected one of softmax|raw'
field '{"select_rotate": "yes"}' 'kv.select_rotate "yes"'
field '{"recent_tokens": -1}' 'kv.recent_tokens -1'
field '{"select": "none", "policy": "zip", "window": 17}' \
    'kv window of 17 tokens: expected 1 to 16; raise --kv-window'
field '{"sinks": 5}' 'kv sinks of 5 tokens with selector ds: expected at most 4'
field '{"select_layers": 1}' "unknown member 'select_layers'"
# shellcheck disable=SC2086
refused --block-size 64 --kv-select ds --kv-selectors tls,spade $most

# flag TEXT ARGUMENTS...: run-batch must refuse the arguments with TEXT.
flag() {
    text=$1
    shift
    "$cinch" run-batch --model $model -i "$dir/in" -o "$dir/refused" "$@" >"$dir/log" 2>&1 &&
        fail "not refused: $*"
    grep -qF -e "$text" "$dir/log" || fail "$*: not refused with '$text'"
}
flag 'kv-policy quest: expected one of full|window|zip' --kv-policy quest
flag 'kv-budget 0' --kv-budget 0
flag '--kv-window 128 exceeds --kv-budget 64' --kv-policy zip --kv-budget 64 --kv-window 128
flag 'kv sinks of 65 tokens leave no room for the newest in a budget of 64' --kv-policies window \
    --kv-budget 64 --kv-sinks 65
flag 'kv sinks of 64 tokens leave no room for the newest in a budget of 64' --kv-policy window \
    --kv-budget 64 --kv-sinks 64
flag 'kv-rule best: expected one of zipage|scaled|peak|follow' --kv-rule best
flag 'kv-head-rule mean: each kv head of this Qwen2ForCausalLM has one query head' \
    --model tests/golden/models/qwen2-tied-bf16 --tokenizer $model --kv-policy zip --kv-head-rule mean
flag 'kv recent of 61 tokens and kv sinks of 4' --kv-policy zip --kv-rule peak --kv-budget 64 \
    --kv-recent 61
# A percentage is a share of the budget: 95 % of 64 are 60 tokens, which leave no room for five sinks.
flag 'kv recent of 60 tokens and kv sinks of 5' --kv-policy zip --kv-budget 64 --kv-recent 95% \
    --kv-sinks 5
flag 'kv-recent 100%' --kv-policy zip --kv-recent 100%
flag 'kv-alpha 1.5' --kv-alpha 1.5
flag 'kv-pooling last: expected one of first|never|always' --kv-pooling last
flag 'kv-redundancy thunder: expected one of lightning|flash|none' --kv-redundancy thunder
flag 'kv-p 2' --kv-p 2
flag 'kv-tau 0' --kv-tau 0
flag 'kv-lambda -1' --kv-lambda -1
flag 'kv-combine xor: expected one of convex|subtract' --kv-combine xor
flag 'kv-move random: expected one of order|fill' --kv-move random
flag 'window of 17 tokens: with kv move fill expected at most a block of 16' --kv-policy zip \
    --kv-move fill --kv-window 17 --block-size 16
flag 'kv-policies full,quest' --kv-policies full,quest
flag "kv-select dance: expected one of $names" --kv-select dance
flag 'kv-selectors ds,dance' --kv-selectors ds,dance
flag 'kv select ds with kv policy zip' --kv-select ds --kv-policy zip
flag 'select-tokens 0' --select-tokens 0
flag 'select-tiles 0' --select-tiles 0
flag 'kv select_tiles of 1' --kv-select tls --select-tiles 1
flag 'select-keys heads: expected one of labels|rows' --select-keys heads
flag 'select-group sum: expected one of max|mean' --select-group sum
flag 'select-window 65' --select-window 65
flag 'select-weights soft: expected one of softmax|raw' --select-weights soft
flag 'select-rotate' --select-rotate=maybe
flag 'recent-tokens -1' --recent-tokens -1
flag 'kv-home disk: expected one of device|peer|host|auto' --kv-home disk
flag 'kv-homes device,auto' --kv-homes device,auto
flag 'kv home auto with kv select ds' --kv-home auto --kv-homes device,host --kv-selectors spade \
    --home-space 0.2 --kv-select ds --device cpu --block-size 64
flag 'kv-home auto: no other home is declared' --kv-home auto --kv-select spade --device cpu
flag 'kv sinks of 256 tokens leave no room' --kv-home auto --kv-homes device,host --kv-select tls \
    --home-space 0.2 --kv-sinks 200 --select-tokens 512 --device cpu
flag 'host-space 1: kv home host is not declared' --host-space 1
flag 'kv-homes peer,disk' --kv-homes peer,disk
flag 'select-cap -1' --select-cap -1
flag 'select-query all: expected one of last|predicted' --select-query all
flag 'packs 0' --packs 0
flag 'home-space -1' --home-space -1
flag 'kv home peer: --home-space is missing' --kv-homes peer --kv-selectors spade
flag 'kv home peer without a selector' --kv-home peer --kv-selectors spade --cache-device cpu \
    --home-space 0.5 --device cpu
flag 'select-dense-layers 2000' --select-dense-layers 2000
flag '--select-dense-layers 200: expected fewer than the model' --select-dense-layers 200 \
    --kv-selectors ds
flag '--block-size 32: selectors expect at least 64' --block-size 32 --kv-selectors ds
flag '3 KV blocks are too few for one request, which needs 7 blocks of 64 tokens' --kv-policy zip \
    --kv-budget 384 --num-gpu-blocks-override 3
echo "kv: ok"
