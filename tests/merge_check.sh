#!/bin/sh
# merge_check.sh - `cinch merge` with outputs of the bundled checkpoint: the merged file is that of
# one run, in the order of the input, whatever the outputs lack or have twice. BUILD is the build
# directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "merge: $*"; cat "$dir/log"; exit 1; }
in=$dir/in.jsonl

# run CODE ARGUMENTS...: run-batch on $in.
run() {
    code=$1 got=0
    shift
    "$cinch" run-batch --model examples/tiny-reasoner -i "$in" --device cpu --threads 1 \
        --kv-cache-memory-bytes 32M --max-model-len 2048 --temperature 0 --max-tokens 12 \
        --progress none "$@" >"$dir/log" 2>&1 || got=$?
    [ $got = "$code" ] || fail "run-batch $*: exit code $got, expected $code"
}

# merge CODE TEXT ARGUMENTS...: merges into $dir/all.
merge() {
    code=$1 text=$2 got=0
    shift 2
    "$cinch" merge -i "$in" -o "$dir/all" "$@" >"$dir/log" 2>&1 </dev/null || got=$?
    [ $got = "$code" ] || fail "$*: exit code $got, expected $code"
    grep -qF -e "$text" "$dir/log" || fail "$*: expected '$text'"
}

# answers FILE: prints id and text, or message, of each line.
answers() {
    sed 's/.*"custom_id":\("[^"]*"\|null\).*\("content"\|"message"\):\("\([^"\\]\|\\.\)*"\).*/\1 \3/' \
        "$1"
}

# same WHAT: $dir/all has the answers of one run, in the order of the input.
same() {
    answers "$dir/all" | cmp - "$dir/expected" || fail "$1: other answers"
    [ ! -e "$dir/all.cinch-tmp" ] || fail "$1: a file is left"
}

i=0
while [ $i -lt 30 ]; do
    i=$((i + 1))
    echo "{\"custom_id\": \"r\\u002d$i\", \"url\": \"/v1/chat/completions\", \"body\": {\"messages\":" \
        "[{\"role\": \"user\", \"content\": \"Sort: $i 3 $((i * 7 % 10))\"}]}}"
done >"$in"
sed -i '7s/"url": "[^"]*"/"url": "x"/; 11s/.*/{"custom_id": "r-20", "url": "/; 20,25s/r\\u002d/r-/' "$in"
run 2 -o "$dir/one" --max-inflight 1
answers "$dir/one" >"$dir/expected"
mkdir "$dir/out"
for i in 0 1 2 3; do
    run "$((i == 2 ? 2 : 0))" -o "$dir/out" --shard $i/4
done
part=$dir/out/part-0000

# Whole outputs; a pattern also matches their records.
merge 2 "30 lines: 28 answered, 2 errors" "$dir"/out/*
same "four shards"
merge 2 "2 errors" "$dir"/out/* --order any
answers "$dir/all" | sort >"$dir/any"
sort "$dir/expected" | cmp - "$dir/any" || fail "--order any"
merge 2 "2 errors" "$dir"/out/* --errors "$dir/errors"
grep -v '"error":{' "$dir/one" >"$dir/good"
[ "$(wc -l <"$dir/errors") $(wc -l <"$dir/all")" = "2 28" ] || fail "--errors"

# A run over the whole input continues what was merged.
cp -r "$dir/out" "$dir/kept"
printf '{"id":"cinch-12' >>${part}1-of-00004.jsonl
sed -i 3d ${part}1-of-00004.jsonl
sed -i '2s/"choices"/"choi/' ${part}0-of-00004.jsonl
sed -i d ${part}3-of-00004.jsonl
merge 3 "missing shards: 0-1,3" "$dir"/out/* --allow-missing
grep -q "part-00001-of-00004.jsonl: ignored an incomplete last line of 15 bytes" "$dir/log" ||
    fail "a torn line"
grep -q "part-00000-of-00004.jsonl: ignored 1 lines that are damaged.*line 2" "$dir/log" ||
    fail "a damaged line"
grep -q "run these shards of 4 again with --resume" "$dir/log" || fail "the way out"
run 2 -o "$dir/all" --resume --max-inflight 1
grep -q "9 answered, 0 errors, 21 done before" "$dir/log" || fail "--resume of a merged file"
sort "$dir/all" >"$dir/sorted"
answers "$dir/sorted" | sort >"$dir/any"
sort "$dir/expected" | cmp - "$dir/any" || fail "--resume of a merged file"

# Without --allow-missing the old file stays.
echo old >"$dir/all"
merge 3 "9 lines are missing: r-" "$dir"/out/*
grep -q "was not written" "$dir/log" || fail "missing lines"
[ "$(cat "$dir/all")" = old ] || fail "an incomplete merge replaced the old file"

# An output that a run has just made, without a line and a record.
cp "$dir/kept"/* "$dir/out"
rm ${part}3-of-00004.jsonl*
: >${part}3-of-00004.jsonl
merge 3 "missing shards: 3" "$dir"/out/*
grep -q "part-00003-of-00004.jsonl: .*written no line: ignored" "$dir/log" || fail "no record yet"
merge 1 "no output has a record" ${part}3-of-00004.jsonl

# An output that an editor saved with a byte order mark.
cp "$dir/kept"/* "$dir/out"
sed -i '1s/^/\xef\xbb\xbf/' ${part}0-of-00004.jsonl
merge 2 "2 errors" "$dir"/out/*
same "a byte order mark"

# Lines twice: with the same text, with another, an error beside an answer.
cp "$dir/kept"/* "$dir/out"
run 2 -o "$dir/again"
sed -i '/"r-1"/s/"content":"/"content":"other /' "$dir/again"
merge 2 "60 further lines for the same requests, 2 of them with another text" "$dir"/out/* \
    "$dir/again" "$dir/again"
same "duplicates: the earlier file wins"
grep -v '"r-1"' "$dir/again" >"$dir/errors"
line=$(grep '"r-1"' "$dir/again")
printf '%s\n' "$line" | sed 's/"status_code":200/"status_code":500/' >>"$dir/errors"
cp "$dir/again.cinch-run" "$dir/errors.cinch-run"
merge 2 "2 errors" "$dir/errors" "$dir"/out/*
[ "$(grep -c '"status_code":500' "$dir/all")" = 0 ] || fail "an error line beats an answer"

# A line that answers the present request beats one that answers an earlier one.
sed '1s/Sort: 1/Sort: 9/' "$in" >"$dir/changed"
cp "$in" "$dir/before"
cp "$dir/changed" "$in"
merge 2 "has changed since it was answered" "$dir"/out/*
run 2 -o "$dir/now"
merge 2 "further lines" "$dir"/out/* "$dir/now"
hash=$(grep '"custom_id":"r-1"' "$dir/now" | grep -o 'cinch-batch-[0-9a-f-]*' | cut -d- -f4)
grep '"custom_id":"r-1"' "$dir/all" | grep -q -- "-$hash-" || fail "the old request wins"
cp "$dir/before" "$in"

# Other numbers of shards; outputs of other runs; other files.
run 0 -o "$dir/second-%i" --shard 1/2
merge 2 "further lines" "$dir/second-00001" "$dir"/out/*
same "another number of shards"
run 2 -o "$dir/seed" --seed 4
merge 1 "is the output of another run: --seed was 4 and is now 0" "$dir"/out/* "$dir/seed"
merge 1 "before.cinch-run does not exist" "$dir"/out/* "$dir/before"
merge 1 "no output is named" "$dir"/out/*.cinch-run
merge 1 "is the same file as an input file: use two files" "$dir"/out/* "$dir/all"
merge 1 "none: No such file" "$dir"/out/* "$dir/none"
merge 1 "expected a file, not standard input" "$dir"/out/* -
merge 1 "expected a regular file" "$dir"/out/* -o /dev/null
got=0
"$cinch" merge -i examples/prompts.jsonl -o "$dir/x" "$dir"/out/* >"$dir/log" 2>&1 || got=$?
[ $got = 1 ] && grep -q "is another input: its first line differs" "$dir/log" || fail "another input"
[ ! -e "$dir/x" ] || fail "a refused merge leaves a file"

# One custom_id in two shards: the second is an error line, as in one run.
sed '14s/r\\u002d14/r-3/' "$dir/before" >"$in"
rm -r "$dir/out" "$dir"/one*
mkdir "$dir/out"
run 2 -o "$dir/one" --max-inflight 1
answers "$dir/one" >"$dir/expected"
for i in 0 1 2 3; do run "$((i == 2 ? 2 : 0))" -o "$dir/out" --shard $i/4; done
merge 2 'lines 3 and 14 have the same custom_id "r-3"' "$dir"/out/*0-of* "$dir"/out/*2-of* \
    "$dir"/out/*3-of* "$dir"/out/*1-of*
same "a custom_id in two shards"
# Without the shard of the first, the answer is still that of the second.
for order in input any; do
    merge 3 'missing shards: 2' "$dir"/out/*0-of* "$dir"/out/*1-of* "$dir"/out/*3-of* \
        --allow-missing --order $order
    answers "$dir/all" | grep '^"r-3" ' >"$dir/third" || fail "no line of r-3"
    answers "$dir"/out/*1-of* | grep '^"r-3" ' | cmp - "$dir/third" || fail "another's answer"
done
merge 2 '30 lines' "$dir"/out/*0-of* "$dir"/out/*2-of* "$dir"/out/*3-of* "$dir"/out/*1-of*

# A merge that is killed leaves the old file or the new one.
cp "$dir/all" "$dir/new"
for delay in 0 0.002 0.004 0.006 0.008 0.01 0.012 0.015; do
    echo old >"$dir/all"
    "$cinch" merge -i "$in" -o "$dir/all" "$dir"/out/* >/dev/null 2>&1 &
    sleep $delay
    kill -KILL $! 2>/dev/null || true
    wait $! 2>/dev/null || true
    [ "$(cat "$dir/all")" = old ] || [ "$(wc -l <"$dir/all")" = 30 ] || fail "killed after $delay s"
done
merge 2 "30 lines: 27 answered, 3 errors" "$dir"/out/*
echo "merge: ok"
