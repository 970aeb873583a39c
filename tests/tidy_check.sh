#!/bin/sh
# The style check must find each kind of fault at the right line, and no fault in a clean tree.
# BUILD is the build directory.
set -eu
tidy=$(realpath "${BUILD:-build}/tests/tidy")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# clean: writes a tree of two files without a fault.
clean() {
    rm -rf "$dir/t"
    for folder in engine/base engine/cpu scheduler paged compress cuda; do mkdir -p "$dir/t/$folder"; done
    printf '/* x.h - a header. */\n#pragma once\n' >"$dir/t/engine/x.h"
    printf '/* x.c - a file. */\n#include "engine/x.h"\n' >"$dir/t/engine/x.c"
}

# expect WHERE WHAT: tidy must fail with a line "WHERE: ...WHAT...". Then cleans the tree.
expect() {
    if "$tidy" "$dir/t" >"$dir/out"; then
        echo "missed a fault: expected $1: $2"
        exit 1
    fi
    grep -F "$1: " "$dir/out" | grep -qF "$2" || { echo "expected $1: $2"; cat "$dir/out"; exit 1; }
    clean
}

clean
"$tidy" "$dir/t" >/dev/null || { echo "a fault in a clean tree"; exit 1; }
mkdir "$dir/empty"
if "$tidy" "$dir/empty" >/dev/null; then echo "no fault in an empty tree"; exit 1; fi

long() { # prints a function of $1 lines after the comment $2
    printf '%s\nvoid f(void)\n{\n' "$2"
    i=3
    while [ $i -lt "$1" ]; do echo "    g();"; i=$((i + 1)); done
    printf '}\n'
}
long 70 '/* Fine. */' >>"$dir/t/engine/x.c"
"$tidy" "$dir/t" >/dev/null || { echo "a fault for a function of 70 lines"; exit 1; }
clean
long 71 '/* Long: not allowed in C. */' >>"$dir/t/engine/x.c"
expect engine/x.c:4 "function of 71 lines"
{ echo '/* k.cu - a kernel. */'; long 71 '/* Long: one loop. */'; } >"$dir/t/cuda/k.cu"
"$tidy" "$dir/t" | grep -q 'function of' && { echo "a fault for a kernel marked Long"; exit 1; }
clean
{ echo '/* k.cu - a kernel. */'; long 71 '/* A loop. */'; } >"$dir/t/cuda/k.cu"
expect cuda/k.cu:3 "function of 71 lines"

yes '/* line */' | head -n 799 >>"$dir/t/engine/x.c"
expect engine/x.c:801 "file of 801 lines"
printf '/* %097d */\n' 0 >>"$dir/t/engine/x.c"
expect engine/x.c:3 "line of 103 columns"
printf '\tint x;\n' >>"$dir/t/engine/x.c"
expect engine/x.c:3 tab
printf 'int x; \n' >>"$dir/t/engine/x.c"
expect engine/x.c:3 "trailing blank"
printf '/* TO%s: later */\n' DO >>"$dir/t/engine/x.c"
expect engine/x.c:3 unfinished
printf 'char *x = getenv("HOME");\n' >>"$dir/t/engine/x.c"
expect engine/x.c:3 getenv
printf 'int f(void) { puts(cudaGetErrorString(1)); }\n' >>"$dir/t/engine/x.c"
expect engine/x.c:3 "an error text of a library"
printf 'void f(void) { exit(1); }\n' >>"$dir/t/engine/x.c"
expect engine/x.c:3 "exit below main"
printf 'int x;' >>"$dir/t/engine/x.c"
expect engine/x.c:1 "no line end"

printf '/* y.h - not included. */\n' >"$dir/t/engine/y.h"
expect engine/y.h:1 "no file includes"
printf '#pragma once\n' >"$dir/t/engine/x.h"
expect engine/x.h:1 "first line"
printf '/* x.h - a header. */\n' >"$dir/t/engine/x.h"
expect engine/x.h:1 "pragma once"
printf '/* x.c - twice. */\n' >"$dir/t/paged/x.c"
expect paged/x.c:1 "same file name"
mkdir -p "$dir/t/engine/old/older/oldest"
printf '/* z.c - dead. */\n' >"$dir/t/engine/old/older/oldest/z.c"
expect engine/old/older/oldest/z.c:1 "no rule"
printf '/* x.h - a header. */\n#include "engine/y.h"\n' >"$dir/t/engine/x.h"
printf '/* y.h - a header. */\n#include "engine/x.h"\n' >"$dir/t/engine/y.h"
expect engine/y.h:2 "engine/x.h also includes this file"
printf '/* y.h - a header. */\n#include "paged/z.h"\n' >"$dir/t/engine/y.h"
printf '/* z.h - a header. */\n' >"$dir/t/paged/z.h"
printf '/* z.c - its source. */\n#include "engine/y.h"\n' >"$dir/t/paged/z.c"
expect engine/y.h:1 "paged/z.h, which it includes, needs this file"

layer() { # layer FILE HEADER: FILE must not include HEADER
    printf '/* %s - a file. */\n#include "%s"\n' "$(basename "$1")" "$2" >"$dir/t/$1"
    expect "$1:2" "may not include $2"
}
layer paged/p.c scheduler/s.h
layer paged/p.c engine/x.h
layer scheduler/s.c compress/compress.h
layer scheduler/s.c engine/x.h
layer compress/c.c scheduler/s.h
layer compress/c.c engine/x.h
layer cuda/k.cu engine/x.h
layer engine/cpu/c.c engine/x.h
layer engine/base/base.h engine/x.h
layer engine/x.c tests/t.h
for folder in offline compare bench cmd serve; do layer engine/x.c engine/$folder/t.h; done
mkdir -p "$dir/t/engine/serve"
layer engine/serve/s.c engine/cmd/command.h
design() { mkdir -p "$dir/t/docs"; printf '# Design\n\n## 1. Memory\n\n1. A rule.\n2. A rule.\n' >"$dir/t/docs/DESIGN.md"; }
cite() { # cite TEXT WHAT: tidy must report a comment that cites TEXT
    design
    printf '/* %s */\n' "$1" >>"$dir/t/engine/x.c"
    expect engine/x.c:3 "$2"
}
cite 'See DESIGN.md §2.' 'no section §2'
cite 'See DESIGN.md §1.2, §1.3.' 'no section §1.3'
cite 'See DESIGN.md §1 and §4.' 'no section §4'
cite 'See DESIGN.md §1, then SELECTION.md §1.' 'SELECTION.md has no section §1'
cite 'See HOMES.md §2, paper §9.' 'HOMES.md has no section §2'
cite 'See engine/gone.c.' 'cites engine/gone.c'
cite 'See gone.h.' 'cites gone.h'
design
printf '# See [x](../engine/x.c) and [y](../docs/gone.md).\n' >"$dir/t/docs/OTHER.md"
expect docs/OTHER.md:1 'cites docs/gone.md'
design
printf '# See [x](DESIGN.md) §1.2 and GONE.md.\n' >"$dir/t/docs/OTHER.md"
expect docs/OTHER.md:1 'cites GONE.md'
design
printf '# See [x](DESIGN.md) §1.3.\n' >"$dir/t/docs/OTHER.md"
expect docs/OTHER.md:1 'no section §1.3'
design
printf 'See §1.2, paper §1, DESIGN.md §1 and §1.9.\n' >>"$dir/t/docs/DESIGN.md"
expect docs/DESIGN.md:7 'no section §1.9'
design
printf 'See §3.\n' >>"$dir/t/docs/DESIGN.md"
expect docs/DESIGN.md:7 'no section §3'
design
printf '/* DESIGN.md §1.2 and §1, engine/x.h, x.c, http_*.c, engine/cpu/. */\n' >>"$dir/t/engine/x.c"
"$tidy" "$dir/t" >/dev/null || { echo "a fault for a correct citation"; exit 1; }
clean
for ok in paged/kv_layout.h engine/base/base.h engine/base/list.h compress/policy.h; do
    printf '/* s.c - a file. */\n#include "%s"\n' $ok >"$dir/t/scheduler/s.c"
    "$tidy" "$dir/t" >/dev/null || { echo "a fault for $ok in scheduler/s.c"; exit 1; }
done
echo "tidy: ok"
