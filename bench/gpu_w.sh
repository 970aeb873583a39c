#!/bin/sh
# gpu_w.sh OUTDIR [full|zip]... - runs workload W: 160 requests at once, each with 128 prompt tokens
# and exactly 4,096 output tokens. See gpu_lib.sh.
#   PEER    output tokens/s of another engine on the same GPU, for the ratio
. "$(dirname "$0")/gpu_lib.sh"
shift
for policy in "${@:-full}"; do
    bench "w-$policy" --kv-policy "$policy" --max-model-len 4352 --max-num-seqs 160 \
        --input-len 128 --output-len 4096 --num-prompts 160 --timeline "$out/w-$policy.csv"
    ratio "w-$policy / peer" "$(figure "w-$policy" output_tokens_per_second)" "${PEER:-0}"
done
ratio "zip / full" "$(figure w-zip output_tokens_per_second)" \
    "$(figure w-full output_tokens_per_second)"
exit $failed
