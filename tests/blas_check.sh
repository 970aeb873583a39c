#!/bin/sh
# Batch invariance must also hold with the BLAS kernels of other processors. Runs the CPU op tests
# once with each OpenBLAS kernel family that this machine can execute.
set -eu
test=${BUILD:-build}/tests/test_ops_cpu

# run CORE FLAG: runs the tests with the kernels of CORE if /proc/cpuinfo lists FLAG.
run() {
    grep -qw "$2" /proc/cpuinfo || return 0
    OPENBLAS_CORETYPE=$1 "$test" >"$log" 2>&1 && return
    echo "OPENBLAS_CORETYPE=$1 $test"
    cat "$log"
    exit 1
}

[ "$(uname -m)" = x86_64 ] || exit 0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run Nehalem sse4_2
run Sandybridge avx
run Haswell avx2
run SkylakeX avx512vl
