#!/bin/sh
# Resumes outputs that an older version began (tests/golden/resume): the same command goes on and
# gives the same answer. Options that the older version lacked have the value that it used; another
# value is refused by name, and so are options of the record that no longer exist. BUILD is the
# build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
golden=tests/golden/resume
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
head -n 3 examples/prompts.jsonl >"$dir/prompts.jsonl"

fail() {
    echo "resume: $*"
    cat "$dir/log"
    exit 1
}

# begin NAME: copies an output without its last line.
begin() {
    head -n 2 $golden/"$1".jsonl >"$dir/out"
    cp $golden/"$1".jsonl.cinch-run "$dir/out.cinch-run"
}

# resume CODE ARGUMENTS...
resume() {
    code=$1 got=0
    shift
    "$cinch" run-batch --resume --model examples/tiny-reasoner -i "$dir/prompts.jsonl" \
        -o "$dir/out" --device cpu --kv-cache-memory-bytes 64M --max-model-len 2048 \
        --max-tokens 48 --temperature 0 --progress none --prompt-field prompt --id-field id \
        "$@" >"$dir/log" 2>&1 || got=$?
    [ $got = "$code" ] || fail "$*: exit $got, expected $code"
}

# answers FILE: prints id, text and figures of each line, without what differs between runs.
answers() {
    sed 's/.*"custom_id":\("[^"]*"\).*"content":\("\([^"\\]\|\\.\)*"\).*"completion_tokens":\([0-9]*\).*/\1 \2 \4/' \
        "$1"
}

# told WORDS: the last run printed them.
told() { grep -qF -- "$1" "$dir/log" || fail "expected: $1"; }

same() {
    name=$1
    shift
    begin "$name"
    resume 0 "$@"
    [ "$(wc -l <"$dir/out")" = 3 ] || fail "$name: $(wc -l <"$dir/out") lines"
    answers $golden/"$name".jsonl >"$dir/expected"
    answers "$dir/out" | diff "$dir/expected" - >>"$dir/log" || fail "$name: the answers differ"
}

zip="--kv-policy zip --kv-budget 64 --block-size 16"
same full
same zip $zip
same ds --kv-select ds --select-tokens 64
same spade --kv-select spade --select-tokens 64

begin full
resume 1 --json-whitespace none
told "--json-whitespace was any and is now none"
resume 1 --cap-max-tokens
told "--cap-max-tokens was false and is now true"
# fp8 and fp8_e4m3 are one value.
sed -i 's/"options": {/&"kv-cache-dtype": "fp8_e4m3",/' "$dir/out.cinch-run"
resume 0 --kv-cache-dtype fp8
begin full
resume 1 --kv-cache-dtype fp8_e4m3
told "--kv-cache-dtype was auto and is now fp8,"
begin zip
resume 1 $zip --kv-rule scaled
told "--kv-rule was zipage and is now scaled"
resume 1 $zip --kv-alpha 0.5
told "--kv-alpha was 0.8 and is now 0.5"
# Options without effect, which older versions took.
sed -i 's/"kv-redundancy": "lightning"/"kv-redundancy": "none"/
    s/"kv-lambda": "0.2"/"kv-lambda": "0.5"/' "$dir/out.cinch-run"
resume 0 $zip --kv-redundancy none --kv-lambda 0.5
told "--kv-lambda: no effect with kv redundancy"
begin zip
sed -i 's/"tail-relaxation": "false"/"tail-relaxation": "true"/' "$dir/out.cinch-run"
resume 1 $zip
told "--tail-relaxation true: the option no longer exists"
echo "resume: ok"
