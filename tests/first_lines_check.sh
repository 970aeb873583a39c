#!/bin/sh
# Checks that run-batch stops early, and leaves no files, when its input was meant for other options:
# the first 100 lines fail for one reason, the first line lacks a field, the start fails, or a
# resumed run gets another input. BUILD is the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "$1"
    cat "$dir/log"
    exit 1
}

# run CODE ARGUMENTS...: run-batch must exit with CODE. Its output is in $dir/log.
run() {
    want=$1
    shift
    got=0
    "$cinch" run-batch --model examples/tiny-reasoner -o "$dir/out" --max-tokens 2 --temperature 0 \
        --progress none "$@" >"$dir/log" 2>&1 </dev/null || got=$?
    [ "$got" = "$want" ] || fail "run-batch $*: exit $got, expected $want"
}

# refused TEXT ARGUMENTS...: run-batch must exit with 1, say TEXT and leave no file.
refused() {
    text=$1
    shift
    run 1 "$@"
    grep -qF -e "$text" "$dir/log" || fail "run-batch $*: no '$text'"
    [ "$(ls "$dir")" = "$(printf 'in\nlog\n')" ] || fail "run-batch $* leaves $(ls "$dir")"
}

# lines N FORMAT: N lines with their number.
lines() {
    seq 1 "$1" | while read -r i; do printf "$2\n" "$i"; done
}

# A file for --prompt-field, read as OpenAI lines.
lines 120 '{"id": %d, "question": "Sort: 2 1", "answer": "1 2"}' >"$dir/in"
refused "the first 100 lines all fail for one reason: line 1: custom_id" -i "$dir/in"
grep -qF "add --prompt-field with the name of the field that has the prompt; it has the fields id, question and answer" \
    "$dir/log" || fail "no way out"
refused "--prompt-field prompt: line 1, the first, has no such field; it has the fields id, question and answer" \
    -i "$dir/in" --prompt-field prompt --summary-json "$dir/summary"
refused "--id-field name: line 1, the first, has no such field" -i "$dir/in" \
    --prompt-field question --id-field name
# A pipe is read by the run alone.
got=0
"$cinch" run-batch --model examples/tiny-reasoner -i - -o "$dir/out" --prompt-field prompt \
    --progress none <"$dir/in" >"$dir/log" 2>&1 || got=$?
[ $got = 1 ] || fail "standard input: exit $got"
got=0
cat "$dir/in" | "$cinch" run-batch --model examples/tiny-reasoner -i - -o "$dir/out" \
    --prompt-field prompt --progress none >"$dir/log" 2>&1 || got=$?
[ $got = 1 ] && grep -q "line 1, the first, has no such field" "$dir/log" || fail "a pipe: exit $got"
[ ! -e "$dir/out" ] || fail "a pipe leaves a file"

lines 120 'row %d,Sort: 2 1' >"$dir/in"
refused "expects one JSON object per line" -i "$dir/in"
lines 120 '{"custom_id": "%d", "url": "/v1/completions", "body": {"prompt": [5], "kv": {"policy": "zip"}}}' \
    >"$dir/in"
refused "add it to --kv-policies" -i "$dir/in"
lines 120 '{"custom_id": "%d", "url": "/v1/completions", "body": {"prompt": [5], "max_tokens": 90000}}' \
    >"$dir/in"
refused "the first 100 lines all fail for one reason: line 1: " -i "$dir/in"

# Two reasons, 99 lines, or a good line: error lines, as before.
{ lines 60 'nonsense %d' && lines 60 '{"id": %d}'; } >"$dir/in"
run 2 -i "$dir/in"
[ "$(wc -l <"$dir/out")" = 120 ] || fail "two reasons"
! grep -q 'for one reason' "$dir/log" || fail "two reasons are not one"
rm "$dir"/out*
lines 99 'nonsense %d' >"$dir/in"
run 2 -i "$dir/in"
[ "$(wc -l <"$dir/out")" = 99 ] || fail "99 lines"
grep -q '^every line fails for one reason: line 1: .*expects one JSON object per line' "$dir/log" ||
    fail "99 lines: no cause"
rm "$dir"/out*
{ echo '{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": [5]}}' && lines 120 'x %d'; } \
    >"$dir/in"
run 2 -i "$dir/in"
[ "$(wc -l <"$dir/out")" = 121 ] || fail "a good line first"
rm "$dir"/out*

# A failed start leaves no files.
lines 3 '{"id": "a%d", "question": "Sort: 2 1"}' >"$dir/in"
refused "too few" -i "$dir/in" --prompt-field question --kv-cache-memory-bytes 1K

# Another input is refused; a moved, grown or edited one is the same.
run 0 -i "$dir/in" --prompt-field question --id-field id
mkdir "$dir/other"
echo '{"id": "a4", "question": "Sort: 4 1"}' >>"$dir/in"
run 0 -i "$dir/in" --prompt-field question --id-field id --resume
mv "$dir/in" "$dir/other/in"
run 0 -i "$dir/other/in" --prompt-field question --id-field id --resume
lines 3 '{"id": "b%d", "question": "Sort: 2 1"}' >"$dir/in2"
run 1 -i "$dir/in2" --prompt-field question --id-field id --resume
grep -q "in2 is another input: its first line differs" "$dir/log" || fail "another input"
[ "$(wc -l <"$dir/out")" = 4 ] || fail "another input: lines"
echo "first lines: ok"
