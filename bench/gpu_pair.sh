#!/bin/sh
# gpu_pair.sh OUTDIR [PART]... - times decode steps of requests whose KV lies on a cache GPU, and
# prints them beside their bars (pair_bars.awk). See gpu_lib.sh. Parts, each one start of cinch
# (all but `singles` in under 10 minutes on two H200):
#   pair     the papers' setting without dense layers: labels, K rows, and tls with the predicted
#            query under both group rules
#   serial   the same with one pack: step and exchange one after the other
#   zip      recoverable zip against zip with the sum of both budgets
#   plain    full KV without a home declared
#   dense    labels with two dense layers
#   links    push, put and exchange beside the link and the memory (bench_pair_cuda)
#   most     the largest batch of the pair
#   singles  one GPU: ds at its largest batch, and zip
#   CACHE (cuda:1)  cuda:0: one GPU in both roles; then cinch runs on cuda:0 too
#   BATCH (8x32768) requests and their tokens; FEW (8) the same number with RESIDENT tokens (96)
#   TOKENS (2048)   of a list, CHURN (205) of them replaced by a step at most; TILES (128), 13
#   GIB (40)        --home-space;  ZIP_GIB (80), ZIP_BATCH (64x8192; 24x8192 on one GPU)
#   ARMS    of the parts pair and serial, instead of their own
#   STEPS (24) timed in a batch;  OPTIONS  more options of every run
. "$(dirname "$0")/gpu_lib.sh"
shift
cache=${CACHE:-cuda:1}
DEVICE=${DEVICE:-cuda:0}
one=0
[ "$cache" != "$DEVICE" ] || one=1
batch=${BATCH:-8x32768}
tokens=${TOKENS:-2048}
churn=${CHURN:-205}
few=${FEW:-8}
base=${RESIDENT:-96}
layers=$(sed -n 's/.*"num_hidden_layers": *\([0-9]*\).*/\1/p' "bench/shapes/$shape/config.json")
labels=spade:$tokens:home=peer:select_cap=$churn
rows=$labels:select_keys=rows
tls=tls:$((tokens / 2)):home=peer:select_tiles=${TILES:-128}:select_cap=${TILE_CHURN:-13}:select_query=predicted
zip_batch=${ZIP_BATCH:-$([ $one = 1 ] && echo 24x8192 || echo 64x8192)}
zip_gib=${ZIP_GIB:-$([ $one = 1 ] && echo 32 || echo 80)}
some=$((tokens / 4))
papers="--select-dense-layers 0"
zip=zip:$tokens:select=spade:select_tokens=$some:home=peer:select_cap=$((some / 10))

# steps NAME GIB BATCHES OPTIONS...: one run of decode steps; GIB 0: without a home.
steps() {
    of=$1 gib=$2 batches=$3
    shift 3
    home=
    [ "$gib" = 0 ] || home="--cache-device $cache --home-space $gib"
    # shellcheck disable=SC2086 # words
    bench "$of" $home --resident "$base" --batches "$batches" \
        --decode-steps "${STEPS:-24}" --max-num-seqs "${batches%%x*}" \
        --max-model-len "${CONTEXT:-33792}" --max-num-batched-tokens "${CHUNK:-8192}" \
        "$@" ${OPTIONS-}
}

links() {
    echo "== links"
    timeout -k 10 "${LIMIT:-300}" "$(dirname "$cinch")/bench/bench_pair_cuda" "${cache#cuda:}" \
        "${DEVICE#cuda:}" >"$out/links.txt" 2>&1 || { echo "== links: failed ($?)" && failed=1; }
    cat "$out/links.txt"
}

[ $# -gt 0 ] || set -- pair serial zip plain dense links most
for part in "$@"; do
    case $part in
    pair) steps pair "${GIB:-40}" "$batch,$few" $papers \
        --arms "${ARMS:-$labels,$rows,$tls,$tls:select_group=mean}" ;;
    serial) steps serial "${GIB:-40}" "$batch" $papers --packs 1 \
        --arms "${ARMS:-$labels,$rows}" ;;
    zip) steps zip "$zip_gib" "$zip_batch" $papers --kv-window 16 \
        --arms "zip:$((tokens + some)),$zip" ;;
    plain) steps plain 0 "$batch,$few" ;;
    dense) steps pair-dense "${GIB:-40}" "$batch,$few" --select-dense-layers 2 \
        --arms "$labels" ;;
    links) links ;;
    most) steps most "${MOST_GIB:-112}" "${MOST:-23x32768}" $papers --kv-home peer \
        --kv-select spade --select-tokens "$tokens" --select-cap "$churn" ;;
    singles)
        steps singles 0 "${SINGLE:-18x32768}" $papers --arms "ds:$tokens"
        steps singles-zip 0 "${SINGLE_ZIP:-256x4096}" --kv-policy zip \
            --kv-budget "$tokens" --kv-window 16
        ;;
    *)
        echo "unknown part $part" >&2
        exit 2
        ;;
    esac
done

# bars DENSE NAME...: the finished ones of these runs. The first is read as pair.json.
bars() {
    dense=$1
    shift
    files=
    for f in "$@"; do [ ! -s "$out/$f.json" ] || files="$files $out/$f.json"; done
    # shellcheck disable=SC2086
    [ -z "$files" ] || awk -v base="$base" -v layers="$layers" -v dense_layers="$dense" \
        -v one=$one -f bench/pair_bars.awk $files
}
bars 0 pair serial zip plain most singles singles-zip | tee "$out/bars.txt"
if [ -s "$out/pair-dense.json" ]; then
    echo "with two dense layers:"
    mkdir -p "$out/dense"
    cp "$out/pair-dense.json" "$out/dense/pair.json"
    bars 2 dense/pair | tee "$out/bars-dense.txt"
fi
exit $failed
