#!/bin/sh
# Runs test programs one after another: tests/run.sh [--args "A B"] PROGRAM...
# Prints one line each, the whole log of one that fails, and a sum as the last line:
# "N passed, N failed". A cmocka program counts each of its tests, another program counts as one;
# a test that began and did not end well has failed. Adds the sum to $RESULTS when that is set.
# What is not named *_cuda tests the CPU's results, and is shown no GPU.
set -u
args=""
if [ "${1:-}" = --args ]; then
    args=$2
    shift 2
fi
passed=0
failed=0
for program in "$@"; do
    log=${BUILD:-build}/tests/$(basename "$program").log
    began=$(date +%s)
    status=0
    # shellcheck disable=SC2086
    case $program in
        *_cuda) "$program" $args >"$log" 2>&1 || status=$? ;;
        *) CUDA_VISIBLE_DEVICES="" "$program" $args >"$log" 2>&1 || status=$? ;;
    esac
    seconds=$(($(date +%s) - began))
    run=$(grep -c '^\[ RUN ' "$log")
    ok=$(grep -c '^\[       OK \]' "$log")
    # cmocka lists what it skipped once more after its sum.
    skipped=$(sed '/^\[==*\] [0-9]* test(s) run/,$d' "$log" | grep -c '^\[  SKIPPED \]')
    bad=$((run - ok - skipped))
    if [ "$run" = 0 ]; then
        if [ $status = 0 ]; then ok=1; else bad=1; fi
    elif [ $status != 0 ] && [ $bad = 0 ]; then
        bad=1
    fi
    passed=$((passed + ok))
    failed=$((failed + bad))
    if [ $bad = 0 ] && [ $status = 0 ]; then
        printf 'ok    %-40s %4d passed  %3d s\n' "$program" "$ok" "$seconds"
        grep '^SKIPPED' "$log" # never in silence
    else
        printf 'FAIL  %-40s %4d failed  exit %d\n' "$program" "$bad" "$status"
        sed 's/^/    /' "$log"
    fi
done
[ -z "${RESULTS:-}" ] || echo "$passed $failed" >>"$RESULTS"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
