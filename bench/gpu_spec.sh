#!/bin/sh
# gpu_spec.sh OUTDIR - times decode steps with selector spec beside ds and full KV, without and with
# dense layers, and prints them beside their bars (select_bars.awk). Then the tokens/s of a steady
# state of prompts of 2,048 tokens, spec beside full KV, with all memory in use. The retrieval head
# has random weights: the time of a step does not depend on them. See gpu_lib.sh.
#   DENSE    values of --select-dense-layers (0 2)
#   TOKENS   of a list (2048)
#   BATCHES  of the steps (8x32768,4x131072,8,4), RESIDENT the tokens of batches that give S0 (96)
#   INPUT    prompt (2048) and OUTPUTS output tokens (16384 32768) of the steady states
#   STEADY   their steps (400), SEQS (64)
SHAPE=${SHAPE:-qwen3-8b-160k}
. "$(dirname "$0")/gpu_lib.sh"
tokens=${TOKENS:-2048}
base=${RESIDENT:-96}
layers=$(sed -n 's/.*"num_hidden_layers": *\([0-9]*\).*/\1/p' "bench/shapes/$shape/config.json")
for dense in ${DENSE:-0 2}; do
    for arm in "spec:$tokens" "ds:$tokens:select_group=mean"; do
        name=spec-$dense-${arm%%:*}
        bench "$name" --select-dense-layers "$dense" --arms "$arm" --resident "$base" \
            --batches "${BATCHES:-8x32768,4x131072,8,4}" --decode-steps "${STEPS:-24}" \
            --max-num-seqs 8 --max-model-len "${CONTEXT:-135168}" ${OPTIONS-} | grep -v '^decode'
        awk -v base="$base" -v layers="$layers" -v dense_layers="$dense" \
            -f bench/select_bars.awk "$out/$name.json"
    done
done
for len in ${OUTPUTS:-16384 32768}; do
    for arm in spec full; do
        select=
        [ $arm = full ] || select="--kv-select spec --select-tokens $tokens --select-dense-layers 0"
        # shellcheck disable=SC2086 # options are words
        bench "spec-steady-$arm-$len" $select --max-model-len $((len + ${INPUT:-2048} + 256)) \
            --max-num-seqs "${SEQS:-64}" --input-len "${INPUT:-2048}" --output-len "$len" \
            --steady-steps "${STEADY:-400}" ${OPTIONS-}
    done
    ratio "steady spec / full at ${INPUT:-2048} + $len" \
        "$(figure "spec-steady-spec-$len" output_tokens_per_second)" \
        "$(figure "spec-steady-full-$len" output_tokens_per_second)"
done
exit $failed
