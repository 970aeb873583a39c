# gpu_lib.sh - shared code of the bench/gpu_*.sh scripts, which source it.
#
# Every script takes the directory of its results. It runs `cinch bench throughput` several times on
# a shape of bench/shapes with random weights. A measurement whose JSON file exists is skipped, so a
# script that was interrupted can be started again. bench/plot.py draws the JSON files and the
# timelines (CSV). Environment:
#   CINCH   the program (build/cinch); cinch-cuda.so is in the same directory
#   SHAPE   qwen3-8b, or another directory of bench/shapes
#   LIMIT   time limit of one measurement in seconds (300)
#   UTIL    fraction of GPU memory to use (0.9)
set -eu
cd "$(dirname "$0")/.."
out=${1:?usage: $0 OUTDIR}
mkdir -p "$out"
cinch=${CINCH:-build/cinch}
shape=${SHAPE:-qwen3-8b}
memory="--gpu-memory-utilization ${UTIL:-0.9}"
[ "${DEVICE:-cuda}" != cpu ] || memory= # the option is refused there

# bench NAME OPTIONS...: runs one measurement, writes $out/NAME.json and NAME.log, prints its lines.
bench() {
    name=$1
    shift
    if [ -s "$out/$name.json" ]; then
        echo "== $name: done already"
        return 0
    fi
    echo "== $name: $*"
    if timeout -k 10 "${LIMIT:-300}" "$cinch" bench throughput --model "bench/shapes/$shape" \
        --load-format dummy --device "${DEVICE:-cuda}" $memory --temperature 1 \
        --output-json "$out/$name.tmp" "$@" >"$out/$name.log" 2>&1; then
        mv "$out/$name.tmp" "$out/$name.json"
        grep -v '^info:' "$out/$name.log" || true
    else
        echo "== $name: failed ($?)"
        tail -n 5 "$out/$name.log"
        failed=1
    fi
}

# figure NAME KEY: prints a number of a finished measurement, or 0 when it is missing.
figure() {
    sed -n "s/^ \"$2\": \([-0-9.e+]*\),\{0,1\}$/\1/p" "$out/$1.json" 2>/dev/null | grep . || echo 0
}

# prefill NAME: milliseconds of the prefill.
prefill() { sed -n '/"prefill"/,$s/^   "ms": \([0-9.e+]*\),$/\1/p' "$out/$1.json" 2>/dev/null | grep . || echo 0; }

# ratio TEXT A B: prints A / B if both are above 0.
ratio() {
    awk -v t="$1" -v a="$2" -v b="$3" 'BEGIN { if (a > 0 && b > 0) printf "%s: %.1f / %.1f = %.3f\n", t, a, b, a / b }'
}

# bar TEXT A B most|least BAR: prints A / B beside its bar.
bar() {
    awk -v t="$1" -v a="$2" -v b="$3" -v how="$4" -v bar="$5" 'BEGIN {
        if (a <= 0 || b <= 0) exit
        met = how == "most" ? a / b <= bar : a / b >= bar
        printf "%s: %.4g / %.4g = %.3f (at %s %s: %s)\n", t, a, b, a / b, how, bar, met ? "met" : "MISSED"
    }'
}

# part NAME: true when NAME is in $parts, the words that a script sets.
part() { case $parts in *" $1 "*) ;; *) return 1 ;; esac; }

failed=0
