#!/bin/sh
# gpu_fp8.sh OUTDIR [PART]... - FP8 weights beside bf16, in the same build, with the bars of the
# figures. Parts: products, steps (decode steps and a prefill), steady (zip; FP8 weights with FP8 KV
# beside bf16 weights and KV). See gpu_lib.sh.
#   BATCHES (64,8,1), PREFILL (16384) of steps; OUTPUT (8192), STEADY (1500), SEQS (448) of steady
. "$(dirname "$0")/gpu_lib.sh"
shift
parts=" ${*:-products steps steady} "

if part products; then
    "$(dirname "$cinch")/bench/bench_kernel" fp8 | tee "$out/fp8-products.txt"
    for rows in '1 0.85' '8 0.85' '64 0.76'; do
        share=$(sed -n "s/^layer  *${rows% *} .* \([0-9.]*\) %.*/\1/p" "$out/fp8-products.txt" | head -n 1)
        bar "products of ${rows% *} rows, % of their floor" "${share:-0}" 100 least "${rows##* }"
    done
    times=$(sed -n 's/^layer  *4096  *\([0-9.]*\) .*bf16  *\([0-9.]*\) .*/\1 \2/p' "$out/fp8-products.txt" | head -n 1)
    bar "products of 4,096 rows, us" "${times% *}" "${times##* }" most 0.62
fi
for type in fp8 auto; do
    # shellcheck disable=SC2086 # options are words
    ! part steps || bench "fp8-steps-$type" --quantization $type --resident "${RESIDENT:-512}" \
        --batches "${BATCHES:-64,8,1}" --max-num-seqs "${MOST:-64}" \
        --max-model-len "${CONTEXT:-17408}" --max-num-batched-tokens "${BATCHED:-16384}" \
        --prefill "${PREFILL:-16384}" ${OPTIONS-}
    # shellcheck disable=SC2086
    ! part steady || bench "fp8-steady-$type" --quantization $type --kv-cache-dtype $type \
        --kv-policy zip --kv-budget "${BUDGET:-2048}" --max-model-len "${CONTEXT:-17408}" \
        --max-num-seqs "${SEQS:-448}" --input-len 128 --output-len "${OUTPUT:-8192}" \
        --steady-steps "${STEADY:-1500}" ${OPTIONS-}
done
bar "prefill, ms" "$(prefill fp8-steps-fp8)" "$(prefill fp8-steps-auto)" most 0.80
tokens=output_tokens_per_second
bar "steady state, tokens/s" "$(figure fp8-steady-fp8 $tokens)" "$(figure fp8-steady-auto $tokens)" \
    least 1.8
exit $failed
