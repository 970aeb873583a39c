#!/bin/sh
# Checks tests/run.sh: how many programs run at a time, which run alone, what it prints and counts,
# and that an interrupt leaves no process behind.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/tests"
unset RESULTS

fail() {
    echo "run.sh: $1"
    cat "$dir/out"
    exit 1
}

# program NAME: writes a program. Its text is the standard input.
program() {
    { echo '#!/bin/sh' && echo "cd '$dir'" && cat; } >"$dir/$1"
    chmod +x "$dir/$1"
}

# run JOBS CODE NAME...: runs these programs. The exit code must be CODE.
run() {
    jobs=$1
    want=$2
    shift 2
    for name in "$@"; do
        set -- "$@" "$dir/$name"
        shift
    done
    got=0
    rm -f "$dir"/began.* "$dir/alone"
    BUILD=$dir JOBS=$jobs tests/run.sh --args "$n $tenths" "$@" >"$dir/out" 2>&1 || got=$?
    [ $got = "$want" ] || fail "exit code $got, expected $want"
}

# shown: the output, with N instead of a number of seconds, and without the directory.
shown() {
    sed "s| *[0-9]* s\$| N s|; s|$dir/||; s|  *| |g" "$dir/out"
}

# says LINE...: the output must have these lines in any order, and no other one.
says() {
    printf '%s\n' "$@" | sort >"$dir/want"
    shown | sort | diff "$dir/want" - >"$dir/diff" || fail "$(cat "$dir/diff")"
}

# a, b and c succeed when N of them begin within S tenths of a second: --args "N S".
for name in a b c; do
    program $name <<'P'
: >"began.$$"
i=0
until [ "$(ls began.* | wc -l)" = "$1" ]; do
    i=$((i + 1))
    [ $i -lt "$2" ] || exit 1
    sleep 0.1
done
P
done
n=3 tenths=300
run 3 0 a b c
says "ok a 1 passed N s" "ok b 1 passed N s" "ok c 1 passed N s" "3 passed, 0 failed"
n=2
run 2 0 a b
tenths=10
run 1 1 a b
n=3
run 2 1 a b c

# Programs that run alone, and those named *_cuda, overlap with no other one.
for name in test_serve_attacks test_serve_limits x_cuda y_cuda z; do
    program $name <<'P'
[ ! -e alone ] || exit 1
case $0 in */z) sleep 0.3; exit ;; esac
: >alone
sleep 0.2
rm alone
case $0 in
*_cuda) [ "$CUDA_VISIBLE_DEVICES" = 3 ] ;;
*) [ -z "$CUDA_VISIBLE_DEVICES" ] ;;
esac
P
done
export CUDA_VISIBLE_DEVICES=3
run 4 0 x_cuda z test_serve_attacks y_cuda test_serve_limits
sed 1q "$dir/out" | grep -q '/z ' || fail "a program that runs alone did not wait for another"

# A cmocka program counts its tests. The log of a program that fails is printed whole.
program good <<'P'
printf '[ RUN      ] x\n[       OK ] x\n[ RUN      ] y\n[  SKIPPED ] y\n'
P
program bad <<'P'
printf '[ RUN      ] x\n[       OK ] x\n[ RUN      ] y\n[  FAILED  ] y\nmore\n'
exit 1
P
program dies <<'P'
echo '[ RUN      ] x'
exit 3
P
program skips <<'P'
echo 'SKIPPED: no such machine'
P
# Programs can interrupt a process that handles no signal.
program interrupts <<'P'
got=0
sh -c 'kill -s INT $$' || got=$?
[ $got = 130 ]
P
run 2 0 interrupts
export RESULTS="$dir/results"
run 2 1 good bad dies skips missing
says "ok good 1 passed N s" "FAIL bad 1 failed exit 1" " [ FAILED ] y" " [ RUN ] x" " [ OK ] x" \
    " [ RUN ] y" " [ FAILED ] y" " more" "FAIL dies 1 failed exit 3" " [ RUN ] x" \
    "ok skips 1 passed N s" "SKIPPED: no such machine" "FAIL missing 1 failed exit 127" \
    "$(sed 's|  *| |g; s|'"$dir"'/||' "$dir/tests/missing.log" | sed 's|^| |')" "3 passed, 3 failed"
[ "$(tail -1 "$dir/out")" = "3 passed, 3 failed" ] || fail "the total is not the last line"
[ "$(cat "$dir/results")" = "3 3" ] || fail "RESULTS has $(cat "$dir/results")"
run 0 1 good
grep -q '^JOBS: expected .*, got 0$' "$dir/out" || fail "JOBS=0"
run 2x 1 good

# An interrupt ends every process, also one in another session, and one that ignores the signal.
program stays <<'P'
trap '' TERM INT
setsid sleep 1000 &
: >began.$$
until [ -e never ]; do sleep 0.1; done
P
for signal in INT TERM; do
    rm -f "$dir"/began.*
    BUILD=$dir JOBS=2 env --default-signal=INT tests/run.sh "$dir/stays" "$dir/stays" "$dir/a" \
        >"$dir/out" &
    runner=$!
    tries=0
    until [ "$(find "$dir" -name 'began.*' | wc -l)" = 2 ]; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || fail "the programs did not start"
        sleep 0.1
    done
    kill -s $signal $runner
    got=0
    wait $runner || got=$?
    [ $got -gt 128 ] || fail "exit code $got after $signal"
    left=$(grep -lzx "CINCH_TEST_RUN=$runner" /proc/[0-9]*/environ 2>/dev/null || true)
    [ -z "$left" ] || fail "left after $signal: $left"
    [ "$(wc -l <"$dir/results")" = 1 ] || fail "RESULTS after $signal"
done
echo "run: ok"
