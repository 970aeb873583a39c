#!/bin/sh
# Runs many clients from another process. The streams must equal the output of run-batch, the
# server's memory must not grow, and misbehaving clients must not block others. BUILD is the build
# directory. The defaults keep the test short; docs/BENCH.md has the figures of STREAMS=1000
# REQUESTS=20000 CROWD=300.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
trap clean_up EXIT
python=${PYTHON:-python3}
load=tests/clients/load.py

$python $load make "${STREAMS:-200}" "${TOKENS:-24}" "$dir/requests.jsonl"
"$cinch" run-batch --model examples/tiny-reasoner -i "$dir/requests.jsonl" -o "$dir/output.jsonl" \
    --progress none --log-level error
serve --max-num-seqs 256
$python $load streams "$url" "$dir/requests.jsonl" "$dir/output.jsonl"
$python $load steady "$url" "${REQUESTS:-500}" 32 "${GROWTH_KIB:-4096}"
stop

# Two thirds of the crowd occupy every connection; the last third exceeds the limit.
crowd=${CROWD:-60}
serve --max-connections $((crowd * 2)) --request-timeout 2 --idle-timeout 5
$python $load rude "$url" "$crowd"
stop
echo "serve load: ok"
