#!/bin/sh
# gpu_steady.sh OUTDIR [OUTPUT_LEN]... - measures the steady state of full KV and of zip with all
# memory in use. Ages are uniform over the output length (default: 8,192 and 16,384), and 1,500
# steps are timed. See gpu_lib.sh.   STEPS (1500)  BUDGET (2048)  SEQS (256)
. "$(dirname "$0")/gpu_lib.sh"
shift
[ $# -gt 0 ] || set -- 8192 16384
for len in "$@"; do
    for policy in zip full; do
        budget=
        [ $policy = full ] || budget="--kv-budget ${BUDGET:-2048}"
        bench "steady-$policy-$len" --kv-policy "$policy" $budget \
            --max-model-len 17408 --max-num-seqs "${SEQS:-256}" --input-len 128 \
            --output-len "$len" --steady-steps "${STEPS:-1500}" \
            --timeline "$out/steady-$policy-$len.csv"
    done
    ratio "steady zip / full at $len" "$(figure "steady-zip-$len" output_tokens_per_second)" \
        "$(figure "steady-full-$len" output_tokens_per_second)"
done
exit $failed
