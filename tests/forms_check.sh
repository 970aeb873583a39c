#!/bin/sh
# Forms of structured output in run-batch: a line whose form takes the whole budget of a compilation
# is one error line, other lines are answered before it, and the next run does not try it again. A
# run with arrays whose items differ that is killed and resumed gives what one whole run does. BUILD is the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "$1"
    cat "$dir/log" "$dir/out"
    exit 1
}

# line ID MEMBERS: a line of a completion.
line() {
    echo "{\"custom_id\": \"$1\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\", $2}}"
}

run() {
    "$cinch" run-batch -i "$dir/in" -o "$dir/out" --model examples/tiny-reasoner --device cpu "$@" \
        >"$dir/log" 2>&1 || [ $? = 2 ] || fail "run-batch $*"
}

{
    line slow '"structured_outputs": {"regex": "(((){65535}){65535}){65535}"}'
    line free '"max_tokens": 2'
    line form '"structured_outputs": {"choice": ["yes", "no"]}'
} >"$dir/in"
run
grep -q '^2 answered, 1 errors' "$dir/log" || fail "expected two answers and one error"
grep '"custom_id":"slow"' "$dir/out" | grep '"status_code":400' |
    grep -q '"param":"structured_outputs"' || fail "expected an error line"
head -n 1 "$dir/out" | grep -q '"custom_id":"slow"' && fail "others waited for the costly form"
cp "$dir/out" "$dir/before"
run --resume
cmp -s "$dir/out" "$dir/before" || fail "the resumed run changed the output"

# ---- items that differ, killed and resumed ----

n=20
for i in $(seq $n); do
    line "$i" '"temperature": 1, "max_tokens": 100, "structured_outputs": {"json": {"items": {"type":
        "integer", "minimum": 10, "maximum": 99}, "uniqueItems": true, "minItems": 12,
        "maxItems": 20}}' | tr '\n' ' '
    echo
done >"$dir/in"

# answers FILE: id, text and tokens of each line, in order.
answers() {
    sed 's/.*"custom_id":"\([0-9]*\)".*"text":"\([^"]*\)".*"completion_tokens":\([0-9]*\).*/\1 \2 \3/' \
        "$1" | sort -n
}

n_lines() { wc -l <"$dir/out"; }

few="--max-num-seqs 4 --seed 5 --kv-cache-memory-bytes 64M"
rm "$dir"/out*
run $few
answers "$dir/out" >"$dir/whole"
grep -cE '^[0-9]+ \[[0-9,]*\] [0-9]+$' "$dir/whole" | grep -qx $n || fail "expected $n arrays"
sed 's/.*\[\(.*\)\].*/\1/' "$dir/whole" | while read -r items; do
    [ -z "$(echo "$items" | tr ',' '\n' | sort | uniq -d)" ] || fail "equal items: $items"
done
rm "$dir"/out*
"$cinch" run-batch -i "$dir/in" -o "$dir/out" --model examples/tiny-reasoner --device cpu $few \
    >"$dir/log" 2>&1 &
i=0
until [ -e "$dir/out" ] && [ "$(n_lines)" -ge 3 ]; do
    i=$((i + 1))
    [ $i -lt 600 ] || fail "no line after 60 s"
    sleep 0.1
done
kill -9 $!
wait $! || true
[ "$(n_lines)" -lt $n ] || fail "the run ended before it was killed"
run $few --resume
answers "$dir/out" | diff "$dir/whole" - >>"$dir/log" || fail "the resumed run gave other answers"
