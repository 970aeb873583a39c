#!/bin/sh
# Runs test programs one after another: tests/run.sh [--args "A B"] PROGRAM...
# Prints one line for each program, the whole log of each that fails, and the total as the last
# line: "N passed, N failed". A cmocka program counts each of its tests; any other program counts as
# one. A test that started but did not report OK or SKIPPED has failed. Appends the total to
# $RESULTS when that is set. Programs not named *_cuda test the CPU, so GPUs are hidden from them.
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
    # cmocka lists the skipped tests a second time after its summary.
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
        grep '^SKIPPED' "$log" # a skipped check is always reported
    else
        printf 'FAIL  %-40s %4d failed  exit %d\n' "$program" "$bad" "$status"
        # The errors first, so that they show also where a long log is cut.
        grep '^\[  *\(ERROR\|LINE\|FAILED\) *\]' "$log" | head -20 | sed 's/^/    /'
        sed 's/^/    /' "$log"
    fi
done
[ -z "${RESULTS:-}" ] || echo "$passed $failed" >>"$RESULTS"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
