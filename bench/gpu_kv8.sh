#!/bin/sh
# gpu_kv8.sh OUTDIR [PART]... - --kv-cache-dtype fp8 beside the activations' type, in the same build,
# with the bars of the figures. Parts: kernels (decode attention, compression events), steps (decode
# steps under zip, a prefill), select (ds and tls), steady, queue. See gpu_lib.sh.
#   BATCHES (320,168,8), SAME (168,8) those of both types, RESIDENT (2176), PREFILL (16384)
#   HELD    batch x resident tokens of ds and tls (8x32768), TOKENS of a list (2048)
#   OUTPUT  tokens of the steady state (8192), STEADY its steps (1500), SEQS (448)
#   QUEUE   requests at once (320), NEW their output tokens (4096)
#   PEER, PEER_FP8  output tokens/s of another engine for the queue, with KV in 16 and in eight bits
. "$(dirname "$0")/gpu_lib.sh"
shift
parts=" ${*:-kernels steps select steady queue} "
zip="--kv-policy zip --kv-budget ${BUDGET:-2048}"
programs=$(dirname "$cinch")/bench

# at NAME KEY BATCH: a figure of the decode step of that batch, of the last arm.
at() {
    sed -n "/^   \"batch\": $3,/,/^  }/s/^   \"$2\": \([-0-9.e+]*\),\{0,1\}$/\1/p" "$out/$1.json" 2>/dev/null |
        tail -n 1 | grep . || echo 0
}

if part kernels && [ -x "$programs/bench_attn" ]; then
    for form in bf16 fp8; do
        "$programs/bench_attn" all $form | tee "$out/attn-$form.txt"
        "$programs/bench_compress_cuda" $form | tee "$out/events-$form.txt"
    done
    for rows in '168 x 2176' '8 x 32768'; do
        share=$(sed -n "s/^decode *$rows .* \([0-9.]*\) %$/\1/p" "$out/attn-fp8.txt")
        bar "decode attention $rows, % of the read bandwidth" "${share:-0}" 100 least 0.85
    done
    for rows in '1 request  0.78' '8 requests 0.72'; do
        ms() { sed -n "s/^zip, lightning  *${rows% *} .*queued *\([0-9.]*\) ms.*/\1/p" "$out/events-$1.txt"; }
        bar "events of ${rows% *}, ms" "$(ms fp8)" "$(ms bf16)" most "${rows##* }"
    done
fi
for type in fp8 auto; do
    batches=${BATCHES:-320,168,8}
    [ $type = fp8 ] || batches=${SAME:-168,8}
    # shellcheck disable=SC2086 # options are words
    ! part steps || bench "kv8-steps-$type" --kv-cache-dtype $type $zip --max-num-seqs "${MOST:-320}" \
        --max-model-len "${CONTEXT:-17408}" --max-num-batched-tokens "${BATCHED:-16384}" \
        --resident "${RESIDENT:-2176}" --batches "$batches" --prefill "${PREFILL:-16384}" ${OPTIONS-}
    for arm in ds tls; do
        ! part select || bench "kv8-$arm-$type" --kv-cache-dtype $type --resident "${FEW:-96}" \
            --arms "$arm:${TOKENS:-2048}" --batches "${HELD:-8x32768}" --max-num-seqs 8 \
            --max-model-len "${LONG:-33280}" ${OPTIONS-}
    done
    ! part steady || bench "kv8-steady-$type" --kv-cache-dtype $type $zip \
        --max-model-len "${CONTEXT:-17408}" --max-num-seqs "${SEQS:-448}" --input-len 128 \
        --output-len "${OUTPUT:-8192}" --steady-steps "${STEADY:-1500}" ${OPTIONS-}
    ! part queue || bench "kv8-queue-$type" --kv-cache-dtype $type $zip --input-len 128 \
        --max-model-len "$((${NEW:-4096} + 256))" --max-num-seqs "${SEQS:-448}" \
        --output-len "${NEW:-4096}" --num-prompts "${QUEUE:-320}" ${OPTIONS-}
done
most=${BATCHES:-320,168,8}
most=${most%%,*}
bar "step of batch $most, floor / ms" "$(at kv8-steps-fp8 floor_ms "$most")" \
    "$(at kv8-steps-fp8 ms_per_step "$most")" least 0.74
bar "prefill, ms" "$(prefill kv8-steps-fp8)" "$(prefill kv8-steps-auto)" most 1.08
held=${HELD:-8x32768}
for arm in ds tls; do
    bar "$arm at $held, ms" "$(at kv8-$arm-fp8 ms_per_step "${held%x*}")" \
        "$(at kv8-$arm-auto ms_per_step "${held%x*}")" most 1
done
tokens=output_tokens_per_second
bar "steady state, tokens/s" "$(figure kv8-steady-fp8 $tokens)" "$(figure kv8-steady-auto $tokens)" \
    least 1.55
bar "queue beside another engine, tokens/s" "$(figure kv8-queue-fp8 $tokens)" "${PEER:-0}" least 2.1
bar "queue beside another engine in eight bits, tokens/s" "$(figure kv8-queue-fp8 $tokens)" \
    "${PEER_FP8:-0}" least 1.4
exit $failed
