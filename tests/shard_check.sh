#!/bin/sh
# shard_check.sh - `cinch run-batch --shard` with the bundled checkpoint: the shards of a file have
# the answers of one run, --resume, --done, --drain-timeout and exit codes. BUILD is the build
# directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
child=""
trap 'kill -KILL $child 2>/dev/null || true; rm -rf "$dir"' EXIT
fail() { echo "shard: $*"; cat "$dir/log"; exit 1; }

# run ARGUMENTS...: run-batch on $in, with short answers.
in=$dir/in.jsonl
run() {
    ${exec:-} "$cinch" run-batch --model examples/tiny-reasoner -i "$in" --prompt-field prompt \
        --device cpu --threads 1 --kv-cache-memory-bytes 32M --max-model-len 2048 \
        --temperature 0 --max-tokens 12 --progress none "$@"
}

# expect CODE TEXT ARGUMENTS...: run exits with CODE and prints TEXT.
expect() {
    code=$1 text=$2 got=0
    shift 2
    run "$@" >"$dir/log" 2>&1 </dev/null || got=$?
    [ $got = "$code" ] || fail "$*: exit code $got, expected $code"
    grep -qF -e "$text" "$dir/log" || fail "$*: expected '$text'"
}

# answers FILE...: prints id and text of each line, sorted.
answers() {
    cat "$@" | sed 's/.*"custom_id":\("[^"]*"\).*"content":\("\([^"\\]\|\\.\)*"\).*/\1 \2/' | sort
}

i=0
while [ $i -lt 24 ]; do
    i=$((i + 1))
    echo "{\"prompt\": \"Sort: $i 3 $((i * 7 % 10)) 2\"}"
done >"$in"
expect 0 "24 answered" -o "$dir/one"
answers "$dir/one" >"$dir/expected"

# Both ways to split give the answers of one run. Ids are line numbers, also in a part by bytes.
for by in line bytes; do
    mkdir "$dir/$by"
    for i in 0 1 2; do
        expect 0 "shard $i of 3 (--shard)" -o "$dir/$by" --shard $i/3 --shard-by $by \
            --summary-json "$dir/$by-%i"
        grep -q '"of": 3' "$dir/$by-0000$i" || fail "$by: the summary has no shard"
    done
    answers "$dir/$by"/*.jsonl | cmp - "$dir/expected" || fail "$by: the answers differ"
done

# The record knows its shard.
out=$dir/line/part-00001-of-00003.jsonl
expect 0 "all 8 lines were done before" -o "$dir/line" --shard 1/3 --resume
expect 1 "the output holds shard 1 of 3 by line, and this is all lines" -o "$out" --resume
expect 1 "and this is shard 1 of 4 by line: use another --output-file, and --done '$out'" \
    -o "$dir/line/part-%i-of-00003.jsonl" --shard 1/4 --resume
expect 1 "this is shard 1 of 3 by bytes" -o "$dir/line" --shard 1/3 --shard-by bytes --resume
cp "$in" "$dir/longer"
echo '{"prompt": "Sort: 1"}' >>"$in"
expect 1 "so the parts are others" -o "$dir/bytes" --shard 1/3 --shard-by bytes --resume
cp "$dir/longer" "$in"

# --done: a second array with another N answers what the first has not, torn lines included.
rm "$dir/line/part-00002-of-00003.jsonl"*
printf '{"id":"cinch-0' >>"$dir/line/part-00001-of-00003.jsonl"
for i in 0 1; do
    expect 0 "incomplete last line of 14 bytes" -o "$dir/line/%i-of-%n" --shard $i/2 \
        --done "$dir/line/part-*" --done "$dir/line/0*"
done
sed -i '$d' "$dir/line/part-00001-of-00003.jsonl"
cat "$dir"/line/0*-of-00002 >"$dir/second"
[ "$(wc -l <"$dir/second")" = 8 ] || fail "--done: $(wc -l <"$dir/second") lines"
answers "$dir/second" "$dir"/line/part*.jsonl | cmp - "$dir/expected" || fail "--done: other answers"
expect 1 "--seed was 0 and is now 5" -o "$dir/x" --done "$dir/line/*" --seed 5
expect 1 "--done $dir/nothing*: no output has such a name" -o "$dir/x" --done "$dir/nothing*"
expect 1 "prompts.jsonl.cinch-run does not exist" -o "$dir/x" --done examples/prompts.jsonl
[ ! -e "$dir/x" ] || fail "a refused run leaves a file"

# A bad line is an error line, also where it is the first of a part.
sed '2s/.*/{"x": 1}/' "$dir/longer" >"$in"
expect 2 "1 errors" -o "$dir/first-%i" --shard 1/4

# A line without an id is named by its number in the whole file.
sed 's/^{"prompt"/{"id": "x", "prompt"/; 20s/.*/{"id": "bad", "prompt": 5}/; 21s/.*/not JSON/' \
    "$dir/longer" | sed 's/"x"/"x\n"/' | awk '/x$/ { printf "%s%d", $0, NR; next } { print }' >"$in"
expect 2 "line 20: prompt" -o "$dir/numbers-%i" --shard 1/2 --shard-by bytes --id-field id
grep -q '"line":21' "$dir/numbers-00001" || fail "no line 21"
expect 0 "2 errors" -o "$dir/numbers" --id-field id --ok-with-errors
sed -n 's/.*"id":"\(cinch-[0-9a-f]*\).*"line":21.*/\1/p' "$dir/numbers" "$dir/numbers-00001" |
    uniq -c | grep -q "^ *2 " || fail "the id of a malformed line differs"

# --drain-timeout: a request that takes too long is put back.
in=$dir/long
echo '{"prompt": "Sort: 3 2 1"}' >"$in"
# A busy machine may need longer than the first limit to begin.
for limit in 1.5 6 24 96; do
    rm -f "$dir"/drained*
    exec=exec run -o "$dir/drained" --max-tokens 1900 --ignore-eos --drain-timeout 1 \
        >"$dir/log" 2>&1 &
    child=$!
    sleep $limit
    kill -TERM $child || fail "--drain-timeout: no request runs after $limit s"
    code=0
    wait $child || code=$?
    child=""
    ! grep -q "did not finish within --drain-timeout 1; --resume continues" "$dir/log" || break
done
[ $code = 3 ] || fail "--drain-timeout: exit code $code"
grep -q "did not finish within --drain-timeout 1; --resume continues" "$dir/log" ||
    fail "--drain-timeout"

# Refusals that come before a file is opened.
in=$dir/longer
while IFS='|' read -r text arguments; do
    # shellcheck disable=SC2086
    expect 1 "$text" $arguments
done <<T
each shard has its own output: write %i in the name|-o $dir/x --shard 0/2
--shard needs an output file for cinch merge|-o - --shard 0/2
with --shard, %x means nothing|-o $dir/%x-%i --shard 0/2
each shard has its own summary|-o $dir/%i --shard 0/2 --summary-json $dir/x
the shards are 0 to 1|-o $dir/%i --shard 2/2
the environment tells no shard|-o $dir/%i --shard auto
--shard-by needs --shard|-o $dir/x --shard-by bytes
--shard-by bytes needs a file|-o $dir/%i --shard-by bytes --shard 0/2 -i -
T
got=0
"$cinch" run-batch --model none -i none -o none/%i --shard auto --check-options || got=$?
[ $got = 0 ] || fail "--check-options: exit code $got"
"$cinch" run-batch --model none -i none -o none --shard auto --check-option 2>"$dir/log" &&
    fail "--check-option"
grep -qF "did you mean --check-options" "$dir/log" || fail "--check-option"
echo "shard: ok"
