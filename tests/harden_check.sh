#!/bin/sh
# Checks that the programs are built with the protection that the Makefile asks for: every object
# with the stack protector and FORTIFY, every program position independent with read-only
# relocations bound at start and without an executable stack. BUILD is the build directory.
set -eu
build=${BUILD:-build}
bad=0
fail() {
    echo "harden: $1: $2"
    bad=1
}

check_file() {
    readelf -W -d "$1" >"$dir/dynamic"
    readelf -W -l "$1" >"$dir/segments"
    readelf -W -n "$1" >"$dir/notes"
    readelf -W --dyn-syms "$1" >"$dir/symbols"
    grep -q 'BIND_NOW' "$dir/dynamic" || fail "$1" "not linked with -z now"
    grep -q 'GNU_RELRO' "$dir/segments" || fail "$1" "not linked with -z relro"
    grep 'GNU_STACK' "$dir/segments" | grep -q 'RW ' || fail "$1" "its stack is executable"
    grep -q '__stack_chk_fail' "$dir/symbols" || fail "$1" "built without -fstack-protector-strong"
    grep -Eq '__(memcpy|snprintf|vsnprintf|fprintf)_chk' "$dir/symbols" ||
        fail "$1" "built without _FORTIFY_SOURCE"
}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for program in "$build/cinch" "$build/bench/bench_cpu" "$build/examples/offline" \
    "$build/tests/test_json"; do
    check_file "$program"
    grep -q 'Flags:.* PIE' "$dir/dynamic" || fail "$program" "not position independent"
done
[ ! -e "$build/cinch-cuda.so" ] || check_file "$build/cinch-cuda.so"

# gcc records the options in the debug information of each object. One object without them is a
# hole, so every object of the library is looked at.
for object in $(find "$build/engine" "$build/scheduler" "$build/paged" "$build/compress" -name '*.o')
do
    options=$(readelf -W --debug-dump=info "$object" 2>/dev/null | grep -m1 DW_AT_producer || true)
    for option in -fstack-protector-strong -fstack-clash-protection -fcf-protection -fPIE; do
        case $option in
        -fstack-clash-protection | -fcf-protection) [ "$(uname -m)" = x86_64 ] || continue ;;
        esac
        case $options in
        *"$option"*) ;;
        *clang*) ;; # clang records no options
        *) fail "$object" "built without $option" ;;
        esac
    done
done
[ $bad = 0 ] || exit 1
echo "harden: ok"
