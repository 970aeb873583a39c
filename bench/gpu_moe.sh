#!/bin/sh
# gpu_moe.sh OUTDIR - a model with experts beside its bars, with random weights in bf16: decode
# steps as shares of their floor, the weights of the experts that a batch takes plus KV; prefill in
# one pass and in chunks, beside the products of a dense model; the tokens/s of a batch job; a
# steady state of zip beside full KV. See gpu_lib.sh.
#   SHAPE (qwen3-30b-a3b)  DENSE (qwen3-8b)  RESIDENT (2176)  BATCHES (256,64,32,8,1)
#   PREFILL (16384)  CHUNK (2048)  PROMPTS (256)  OUTPUT (2048)  BUDGET (2048)
#   LENGTHS  outputs of the steady states (8192 16384)  STEPS (1000)
SHAPE=${SHAPE:-qwen3-30b-a3b}
. "$(dirname "$0")/gpu_lib.sh"
prefill=${PREFILL:-16384}
bench "decode-$shape" --max-model-len 17408 --max-num-seqs 256 --max-num-batched-tokens "$prefill" \
    --resident "${RESIDENT:-2176}" --batches "${BATCHES:-256,64,32,8,1}" --prefill "$prefill"
bench "chunks-$shape" --max-model-len 17408 --max-num-seqs 8 \
    --max-num-batched-tokens "${CHUNK:-2048}" --resident 2176 --batches 1 --prefill "$prefill"
bench "job-$shape" --max-model-len 4352 --max-num-seqs 320 --num-prompts "${PROMPTS:-256}" \
    --input-len 128 --output-len "${OUTPUT:-2048}"
for len in ${LENGTHS:-8192 16384}; do
    for policy in zip full; do
        budget=
        [ $policy = full ] || budget="--kv-budget ${BUDGET:-2048}"
        bench "steady-$policy-$len" --kv-policy $policy $budget --max-model-len 17408 \
            --max-num-seqs "${SEQS:-512}" --input-len 128 --output-len "$len" \
            --steady-steps "${STEPS:-1000}"
    done
    ratio "steady zip / full at $len" "$(figure "steady-zip-$len" output_tokens_per_second)" \
        "$(figure "steady-full-$len" output_tokens_per_second)"
done
shape=${DENSE:-qwen3-8b}
bench "prefill-$shape" --max-model-len 17408 --max-num-seqs 8 \
    --max-num-batched-tokens "$prefill" --resident 2176 --batches 1 --prefill "$prefill"

# rate RUN GFLOP: TFLOP/s of the products of a prefill of $prefill tokens; a token has GFLOP of them.
rate() {
    ms=$(sed -n 's/^   "products_ms": \([0-9.e+-]*\),*$/\1/p' "$out/$1.json" 2>/dev/null | tail -n 1)
    awk -v n="$prefill" -v gflop="$2" -v ms="${ms:-0}" 'BEGIN { print ms > 0 ? n * gflop / ms / 1000 : 0 }'
}
# Products of a token: 2 x the weights of all layers that it takes, 2.73 and 6.95 billion.
of_experts=$(rate "decode-$SHAPE" 5.46)
echo "products of a prefill: $of_experts TFLOP/s"
ratio "beside $shape" "$of_experts" "$(rate "prefill-$shape" 13.9)"
ratio "in chunks" "$(rate "chunks-$SHAPE" 5.46)" "$of_experts"
exit $failed
