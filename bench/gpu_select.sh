#!/bin/sh
# gpu_select.sh OUTDIR - times decode steps with each selector beside the dense step, without and
# with dense layers, and prints them beside their bars (select_bars.awk). Then the tokens/s of a
# steady state at 32k of context: for full KV and the selectors the largest batch of the first part,
# which nearly fills the memory, and for zip requests of all ages. See gpu_lib.sh.
# Each selector has a run of its own: where several are declared, steps of all of them launch
# kernels that rank any keys, and these take longer (docs/BENCH.md).
#   BASELINE  an older cinch, with its cinch-cuda.so: compares the steps of full KV and zip with it
#   DENSE     values of --select-dense-layers (0 2)
#   TOKENS    of a list (2048); LESS those of the second tls (1024)
#   ARMS      the runs, instead of these: words, each the arms of one run, separated by commas
#   BATCHES   batches of the first part; RESIDENT the tokens of those without their own (96)
#   SEQS (18)  CONTEXT (135168)  STEPS (24) timed in a batch
#   OUTPUT    output tokens of the steady state (32768), STEADY its steps (400), ZIP_SEQS (256)
#   SAME      batches that are compared with BASELINE (64,8), HELD their resident tokens (2176)
#   OPTIONS   more options of every run
SHAPE=${SHAPE:-qwen3-8b-160k}
. "$(dirname "$0")/gpu_lib.sh"
tokens=${TOKENS:-2048}
base=${RESIDENT:-96}
layers=$(sed -n 's/.*"num_hidden_layers": *\([0-9]*\).*/\1/p' "bench/shapes/$shape/config.json")
default=4x131072,6x98304,18x32768,16x32768,8x32768,18,16,8,6,4
of_ds=ds:$tokens:select_group=mean,ds:$tokens
of_tls=tls:$tokens,tls:${LESS:-1024}
for dense in ${DENSE:-0 2}; do
    for arms in ${ARMS:-$of_ds $of_tls quest:$tokens}; do
        name=select-$dense-$(printf %s "$arms" | tr :,= ---)
        bench "$name" --select-dense-layers "$dense" --arms "$arms" --resident "$base" \
            --batches "${BATCHES:-$default}" --decode-steps "${STEPS:-24}" \
            --max-num-seqs "${SEQS:-18}" --max-model-len "${CONTEXT:-135168}" ${OPTIONS-} |
            grep -v '^decode'
        awk -v base="$base" -v layers="$layers" -v dense_layers="$dense" \
            -f bench/select_bars.awk "$out/$name.json"
    done
done
bench steady-zip --kv-policy zip --kv-budget "$tokens" --max-model-len "${CONTEXT:-135168}" \
    --max-num-seqs "${ZIP_SEQS:-256}" --input-len 128 --output-len "${OUTPUT:-32768}" \
    --warmup-steps 64 --steady-steps "${STEADY:-400}" ${OPTIONS-}
[ -n "${BASELINE-}" ] || exit $failed

# steps NAME OPTIONS...: the time of each batch of a finished measurement, one a line.
steps() { sed -n 's/^   "ms_per_step": \([0-9.e+-]*\),*$/\1/p' "$out/$1.json"; }
new=$cinch
for policy in full zip; do
    budget=
    [ $policy = full ] || budget="--kv-budget 2048"
    for build in new base; do
        [ $build = new ] && cinch=$new || cinch=$BASELINE
        bench "$build-$policy" --kv-policy $policy $budget --resident "${HELD:-2176}" \
            --batches "${SAME:-64,8}" --max-model-len 4352 --max-num-seqs 64 ${OPTIONS-}
    done
    steps "new-$policy" >"$out/new.txt"
    steps "base-$policy" | paste "$out/new.txt" - | awk -v policy=$policy \
        '{ printf "%s, this build / the older one: %.3f / %.3f ms = %.4f (at most 1.01)\n", policy, $1, $2, $1 / $2 }'
done
exit $failed
