#!/bin/sh
# Forms of structured output in run-batch: a line whose form takes the whole budget of a compilation
# is one error line, other lines are answered before it, and the next run does not try it again.
# BUILD is the build directory.
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
