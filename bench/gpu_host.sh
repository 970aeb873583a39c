#!/bin/sh
# gpu_host.sh OUTDIR [PART]... - times decode steps of requests whose KV lies in host memory, beside
# full KV on the GPU with the same memory, and prints them beside their bars (host_bars.awk). See
# gpu_lib.sh. Parts, one start of cinch each but `links`:
#   links           pinning, pulls and puts beside the link (bench_host_cuda)
#   long            contexts of 96k, forced churn of 1, 3, 10 %, no dense layers; bar 5 x
#   most            contexts of 32k, the largest batch of each, churn 3 %; bar 3 x
#   dense           as long with a churn of 3 %, with two dense layers
#   device          quest and tls with home device, with all memory of the GPU
# A run of 10 minutes holds `links long most`, a second one the rest.
#   KV        --kv-cache-memory-bytes (67G on a GPU of over 100 GiB: full KV then holds 4 requests of
#             96k; all there is on a smaller one, where it holds 3)
#   FULL (4x98304, or 3x98304)   what full KV holds; LONG (6x98304) the batch at home host
#   MOST      batches of 32k, full KV's and then the home's (12x32768,17x32768 or 10x32768,17x32768)
#   GIB (82)  --home-space; LINK_GIB (16) of `links`
#   TOKENS (1024) of a list, TILES (128), CAP (2); ARMS of all parts but `device`
#   HELD (6x98304, or 3x98304) the batch of `device`
#   CHURN (0.01,0.03,0.1) of `long`
#   STEPS (24) timed in a batch;  OPTIONS  more options of every run
SHAPE=${SHAPE:-qwen3-8b-160k}
. "$(dirname "$0")/gpu_lib.sh"
shift
mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | head -n 1)
if [ "${mib:-0}" -gt 102400 ]; then
    kv=${KV:-67G} full=${FULL:-4x98304} most=${MOST:-12x32768,17x32768} held=${HELD:-6x98304}
else
    echo "a GPU of ${mib:-unknown} MiB: full KV is scaled to what it holds"
    kv=${KV-} full=${FULL:-3x98304} most=${MOST:-10x32768,17x32768} held=${HELD:-3x98304}
fi
long=${LONG:-6x98304}
tiles=${TILES:-128}
arms=${ARMS:-tls:${TOKENS:-1024}:home=host:select_tiles=$tiles:select_cap=${CAP:-2}}

# steps NAME BATCHES OPTIONS...: one run of decode steps.
steps() {
    of=$1 batches=$2
    shift 2
    seqs=$(printf '%s\n' "$batches" | tr ',' '\n' | sed 's/x.*//' | sort -n | tail -n 1)
    longest=$(printf '%s\n' "$batches" | tr ',' '\n' | sed 's/.*x//' | sort -n | tail -n 1)
    # shellcheck disable=SC2086 # words
    bench "$of" ${kv:+--kv-cache-memory-bytes $kv} --resident "${RESIDENT:-96}" \
        --batches "$batches" --decode-steps "${STEPS:-24}" --max-num-seqs "$seqs" \
        --max-model-len "${CONTEXT:-$((longest + 1024))}" \
        --max-num-batched-tokens "${CHUNK:-8192}" "$@" ${OPTIONS-}
    grep -h '^info: \(device memory\|host memory\|kv home\)' "$out/$of.log" || true
}

# away NAME BATCHES CHURN DENSE: a run with the home.
away() {
    steps "$1" "$2" --home-space "${GIB:-82}" --select-churn "$3" --select-dense-layers "$4" \
        --arms "$arms"
}

links() {
    echo "== links"
    timeout -k 10 "${LIMIT:-300}" "$(dirname "$cinch")/bench/bench_host_cuda" "${LINK_GIB:-16}" \
        >"$out/links.txt" 2>&1 || { echo "== links: failed ($?)" && failed=1; }
    cat "$out/links.txt"
}

[ $# -gt 0 ] || set -- links long most dense device
for part in "$@"; do
    case $part in
    links) links ;;
    long) away long "$full,$long" "${CHURN:-0.01,0.03,0.1}" 0 ;;
    most) away most "$most" 0.03 0 ;;
    dense) away dense "$full,$long" 0.03 2 ;;
    device)
        limit=$kv kv=
        steps device "$held" --select-dense-layers 0 \
            --arms "quest:${TOKENS:-1024},tls:${TOKENS:-1024}:select_tiles=$tiles"
        kv=$limit
        ;;
    *)
        echo "unknown part $part" >&2
        exit 2
        ;;
    esac
    [ "$part" = links ] || [ ! -s "$out/$part.json" ] || awk -f bench/host_bars.awk \
        "$out/$part.json" | tee "$out/$part.txt"
done
exit $failed
