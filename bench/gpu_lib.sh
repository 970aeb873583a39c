# gpu_lib.sh - what the bench/gpu_*.sh scripts share; sourced by them.
#
# Every script takes the folder of its results, and runs `cinch bench throughput` step by step on a
# shape of bench/shapes with random weights. A step whose JSON is there already is skipped, so that
# a script that was cut off goes on where it stopped. bench/plot.py draws the JSON files and the
# timelines (CSV). Environment:
#   CINCH   the program (build/cinch); cinch-cuda.so lies beside it
#   SHAPE   qwen3-8b, or another folder of bench/shapes
#   LIMIT   most seconds of one step (300)
#   UTIL    share of the GPU's memory (0.9)
set -eu
cd "$(dirname "$0")/.."
out=${1:?usage: $0 OUTDIR}
mkdir -p "$out"
cinch=${CINCH:-build/cinch}
shape=${SHAPE:-qwen3-8b}

# bench NAME OPTIONS...: one measurement into $out/NAME.json and NAME.log; its lines are printed.
bench() {
    name=$1
    shift
    if [ -s "$out/$name.json" ]; then
        echo "== $name: done already"
        return 0
    fi
    echo "== $name: $*"
    if timeout -k 10 "${LIMIT:-300}" "$cinch" bench throughput --model "bench/shapes/$shape" \
        --load-format dummy --device "${DEVICE:-cuda}" --gpu-memory-utilization "${UTIL:-0.9}" \
        --temperature 1 --output-json "$out/$name.tmp" "$@" >"$out/$name.log" 2>&1; then
        mv "$out/$name.tmp" "$out/$name.json"
        grep -v '^info:' "$out/$name.log" || true
    else
        echo "== $name: failed ($?)"
        tail -n 5 "$out/$name.log"
        failed=1
    fi
}

# figure NAME KEY: a number of a finished measurement, 0 when it is not there.
figure() {
    sed -n "s/^ \"$2\": \([-0-9.e+]*\),\{0,1\}$/\1/p" "$out/$1.json" 2>/dev/null | grep . || echo 0
}

# ratio TEXT A B: prints A / B.
ratio() {
    awk -v t="$1" -v a="$2" -v b="$3" 'BEGIN { if (a > 0 && b > 0) printf "%s: %.1f / %.1f = %.3f\n", t, a, b, a / b }'
}
failed=0
