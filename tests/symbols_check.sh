#!/bin/sh
# Every function and table that a library object exports must be used by another object (of the
# library, the program, a test, a benchmark or an example) or be in the public header. Any other is
# dead code or should be static. BUILD is the build directory, with every program built.
set -eu
build=${BUILD:-build}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# objects: lists the objects whose sources are in the tree, without the CUDA backend, which is a
# separate shared object.
objects() {
    find "$build" -name '*.o' -not -path "$build/cuda/*" | while read -r object; do
        source=${object#"$build"/}
        [ ! -e "${source%.o}.c" ] || echo "$object"
    done
}

objects | xargs nm -A -g >"$dir/all"
awk '$2 == "U" || NF == 2 {print $NF}' "$dir/all" | sort -u >"$dir/used"
awk -v build="$build/" '$1 !~ /\/(tests|bench|examples)\// && $2 ~ /^[TDBRC]$/ {
        sub(/:[0-9a-f]*$/, "", $1); sub("^" build, "", $1); sub(/\.o$/, ".c", $1)
        print $3, $1
    }' "$dir/all" | sort >"$dir/defined"
[ -s "$dir/defined" ] || { echo "no symbols: run make programs"; exit 1; }

bad=0
while read -r symbol source; do
    [ "$symbol" = main ] && continue
    grep -qx "$symbol" "$dir/used" && continue
    grep -qw "$symbol" engine/cinch.h && continue
    echo "$source: no other object uses $symbol"
    bad=1
done <"$dir/defined"
exit $bad
