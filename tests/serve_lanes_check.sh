#!/bin/sh
# serve_lanes_check.sh - the package openai against servers with several engines: all its requests and
# batches on two CPU engines, and requests on three GPUs of the fake runtime, of which one is lost meanwhile. Without
# the package, or build/tests/fake_cuda, prints SKIPPED.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
trap clean_up EXIT

fake=$(dirname "$cinch")/tests/fake_cuda/cinch-cuda.so
[ -e "$fake" ] || skip "no fake CUDA runtime: make programs cuda"
need_python clients openai==3.52.0 prometheus_client==0.26.0
key=a-key-for-the-test
(umask 077 && echo "test:$key" >"$dir/keys")
serve --data-parallel-size 2 --device cpu --kv-cache-memory-bytes 128M --api-key-file "$dir/keys" \
    --served-model-name tiny,org/tiny --kv-policies full,zip --kv-selectors ds --select-tokens 64 \
    --tool-call-parser hermes --spool "$dir/spool"
"$python" tests/clients/openai_requests.py "$url" $key
"$python" tests/clients/openai_batches.py "$url" $key
stop
cp "$cinch" "$fake" "$dir"
cinch=$dir/cinch
export XDG_CACHE_HOME="$dir/cache" FAKE_PEERS=0 FAKE_GPUS=3
lanes() {
    serve --load-format dummy --block-size 64 --max-model-len 1024 --max-num-seqs 8 \
        --data-parallel-size 3 --device cuda "$@"
}
lanes # the products are timed: later launches are steps
stop
for at in 1500 2500; do
    FAKE_LOST=1:$at lanes
    "$python" tests/clients/openai_lanes.py "$url" 3
    grep -q '^error: engine 1 failed: .* of its [1-9][0-9]* requests [0-9]* go to other engines$' "$dir/serve.log"
    stop
done
echo "serve lanes: ok"
