#!/bin/sh
# gpu_decode.sh OUTDIR - times decode steps and prefills. Prints decode steps with the read
# bandwidth of the same run, prefills with their matrix products alone, and the GPU's idle time
# between two steps. See gpu_lib.sh.
# The first run is one request of one token: it times the whole process, from start to exit.
#   RESIDENT (2176)  BATCHES (168,128,64,32,8,1)  PREFILL (4096,16384)  BATCHED (8192)
# The largest batch comes first, so that its prompts are in the prefix cache for the others.
. "$(dirname "$0")/gpu_lib.sh"
began=$(date +%s.%N)
bench "start-$shape" --max-model-len 17408 --max-num-seqs 168 --num-prompts 1 --input-len 1 \
    --output-len 1
awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "start to end of one token: %.1f s\n", b - a }' |
    tee "$out/start-$shape.txt"
bench "decode-$shape" --max-model-len 17408 --max-num-seqs 168 \
    --max-num-batched-tokens "${BATCHED:-8192}" \
    --resident "${RESIDENT:-2176}" --batches "${BATCHES:-168,128,64,32,8,1}" \
    --prefill "${PREFILL:-4096,16384}"
exit $failed
