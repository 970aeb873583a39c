#!/bin/sh
# Runs the example programs: the offline and the stream example must print the same product. BUILD
# is the build directory.
set -eu
examples=${BUILD:-build}/examples
model=examples/tiny-reasoner
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# expect TEXT: the last output must have a line that equals TEXT.
expect() {
    grep -qxF -e "$1" "$dir/out" && return
    echo "no line '$1' in:"
    cat "$dir/out"
    exit 1
}

"$examples/offline" $model "Compute 677 * 755 by hand." "Sort: 5 3 9 1" >"$dir/out"
expect "> Compute 677 * 755 by hand."
expect "511135"
[ "$(grep -c '^([0-9]* tokens)$' "$dir/out")" = 2 ]

"$examples/stream" $model "Compute 677 * 755 by hand." >"$dir/out"
expect "--- answer ---"
expect "511135"
expect "(stop, 21 prompt and 266 output tokens, 255 of them reasoning)"

! "$examples/stream" /no/such/model "x" 2>"$dir/out"
grep -q '/no/such/model' "$dir/out"
! "$examples/offline" $model 2>"$dir/out"
grep -q '^usage:' "$dir/out"
echo "examples: ok"
