#!/bin/sh
# Chats are answered while the compressed requests of a batch hold all KV memory, and the answers of
# the batch equal those of run-batch. BUILD is the build directory.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
trap clean_up EXIT
python=${PYTHON:-python3}
kv="--kv-policy zip --kv-budget 64 --block-size 32 --seed 3 --threads 2"

$python tests/clients/swap.py make 8 700 "$dir/requests.jsonl"
# shellcheck disable=SC2086
"$cinch" run-batch --model examples/tiny-reasoner --served-model-name tiny $kv \
    -i "$dir/requests.jsonl" -o "$dir/output.jsonl" --progress none --log-level error
# shellcheck disable=SC2086
serve $kv --spool "$dir/spool" --num-gpu-blocks-override 14 --max-model-len 1024 \
    --enable-prefix-caching=false --swap-space 0.2
$python tests/clients/swap.py talk "$url" "$dir/requests.jsonl" "$dir/output.jsonl"
stop
echo "serve swap: ok"
