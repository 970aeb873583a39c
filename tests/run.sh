#!/bin/sh
# Runs test programs, $JOBS at a time (2): tests/run.sh [--args "A B"] PROGRAM...
# Prints one line for each program, the whole log of each that fails, and the total as the last
# line: "N passed, N failed". A cmocka program counts each of its tests; any other program counts as
# one. A test that started but did not report OK or SKIPPED has failed. Appends the total to
# $RESULTS when that is set. Programs not named *_cuda test the CPU, so GPUs are hidden from them.
# An interrupt ends every program, and the processes that it started.
set -u

# Programs that run alone, after the others, and why.
alone="
test_serve_attacks       limits the time of an answer during attacks
test_serve_intake        times small requests beside large ones
test_serve_limits        compares timeouts with the clock
test_serve_structure     limits the time of an answer beside costly forms
test_serve_stop          compares timeouts with the clock
bench_check.sh           times steps and requests
chaos_check.sh           waits for moments of a run
deploy_check.sh          measures when the parts of a stream arrive
progress_check.sh        interrupts runs after some seconds
ranks_check.sh           stops a thread at a moment of a run
run_check.sh             checks the order of short programs
serve_bench_check.sh     compares a rate of requests with the clock
serve_load_check.sh      measures latencies under load
serve_page_check.sh      measures the processor time of a page
serve_swap_check.sh      measures latencies
slurm_check.sh           kills tasks at moments of a run
stop_check.sh            sends signals after some tenths of a second
"
# Programs that start first, because they take longest.
long="
test_engine_away_timing
serve_client_check.sh
"

# find_turn PROGRAM: sets $turn to long, other or alone. GPU tests run alone because they share the
# memory of one GPU.
find_turn() {
    turn=other
    case $long in *"
${1##*/}
"*) turn=long ;; esac
    case $alone in *"
${1##*/} "*) turn=alone ;; esac
    case $1 in *_cuda) turn=alone ;; esac
}

args=""
if [ "${1:-}" = --args ]; then
    args=$2
    shift 2
fi
jobs=${JOBS:-2}
case $jobs in
*[!0-9]* | 0*) echo "JOBS: expected a number of programs to run at a time, got $jobs"; exit 1 ;;
esac
passed=0
failed=0
running=0
reported=0
ended=$(mktemp -d) || exit 1
mkfifo "$ended/fifo" && exec 3<>"$ended/fifo" || exit 1
rm -r "$ended"

# end_all SIGNAL: sends it to every process of this run. Each has CINCH_TEST_RUN in its environment,
# whichever parent, process group and session it has by now. Fails when there is none.
end_all() {
    pids=$(grep -lzx "CINCH_TEST_RUN=$$" /proc/[0-9]*/environ 2>/dev/null |
        sed 's|/proc/\([0-9]*\)/.*|\1|')
    [ -n "$pids" ] || return 1
    # shellcheck disable=SC2086
    kill -s "$1" $pids 2>/dev/null || : # one of them may have ended
}

# interrupted CODE: the programs get a second to remove their files.
interrupted() {
    trap '' INT TERM HUP
    end_all TERM
    sleep 1
    while end_all KILL; do sleep 0.1; done
    exit "$1"
}
trap 'interrupted 130' INT
trap 'interrupted 143' TERM
trap 'interrupted 129' HUP

log_of() {
    echo "${BUILD:-build}/tests/$(basename "$1").log"
}

# start PROGRAM: starts it. Its end is a line in the fifo. A shell starts programs in the background
# with SIGINT ignored, which tests that interrupt a process cannot use.
start() {
    (
        began=$(date +%s)
        status=0
        case $1 in *_cuda) ;; *) export CUDA_VISIBLE_DEVICES="" ;; esac
        # shellcheck disable=SC2086
        CINCH_TEST_RUN=$$ env --default-signal=INT,QUIT "$1" $args >"$(log_of "$1")" 2>&1 3>&- ||
            status=$?
        echo "$status $(($(date +%s) - began)) $1" >&3
    ) &
    running=$((running + 1))
}

# report STATUS SECONDS PROGRAM: counts and prints.
report() {
    status=$1
    reported=$((reported + 1))
    log=$(log_of "$3")
    run=$(grep -c '^\[ RUN ' "$log")
    ok=$(grep -c '^\[       OK \]' "$log")
    # cmocka lists the skipped tests a second time after its summary.
    skipped=$(sed '/^\[==*\] [0-9]* test(s) run/,$d' "$log" | grep -c '^\[  SKIPPED \]')
    bad=$((run - ok - skipped))
    if [ "$run" = 0 ]; then
        if [ "$status" = 0 ]; then ok=1; else bad=1; fi
    elif [ "$status" != 0 ] && [ $bad = 0 ]; then
        bad=1
    fi
    passed=$((passed + ok))
    failed=$((failed + bad))
    if [ $bad = 0 ] && [ "$status" = 0 ]; then
        printf 'ok    %-40s %4d passed  %3d s\n' "$3" "$ok" "$2"
        grep '^SKIPPED' "$log" # a skipped check is always reported
    else
        printf 'FAIL  %-40s %4d failed  exit %d\n' "$3" "$bad" "$status"
        # The errors first, so that they show also where a long log is cut.
        grep '^\[  *\(ERROR\|LINE\|FAILED\) *\]' "$log" | head -20 | sed 's/^/    /'
        sed 's/^/    /' "$log"
    fi
}

# wait_below N: waits until fewer than N programs run.
wait_below() {
    while [ $running -ge "$1" ]; do
        read -r status seconds name <&3
        running=$((running - 1))
        report "$status" "$seconds" "$name"
    done
}

for now in long other alone; do
    if [ $now = alone ]; then
        wait_below 1
        jobs=1
    fi
    for program in "$@"; do
        find_turn "$program"
        [ $turn = $now ] || continue
        wait_below "$jobs"
        start "$program"
    done
done
wait_below 1
[ $reported = $# ] || { echo "run.sh: $# programs, $reported of them ended"; exit 1; }
[ -z "${RESULTS:-}" ] || echo "$passed $failed" >>"$RESULTS"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
