#!/bin/sh
# Batch invariance must hold for the BLAS kernels of other processors than this one: the CPU ops
# are tested once with each family of kernels that OpenBLAS has and this machine can run.
set -eu
test=${BUILD:-build}/tests/test_ops_cpu

# run CORE FLAG: the kernels of CORE where /proc/cpuinfo lists FLAG.
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
