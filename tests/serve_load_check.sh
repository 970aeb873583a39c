#!/bin/sh
# Many clients of another process: streams that say what run-batch says, memory that stays, rude
# crowds that keep nobody from an answer. BUILD is the build directory. The defaults are for every
# run of the tests; the figures of docs/BENCH.md are of STREAMS=1000 REQUESTS=20000 CROWD=300.
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

# Two thirds of the crowd fill every connection; the last third would need more.
crowd=${CROWD:-60}
serve --max-connections $((crowd * 2)) --request-timeout 2 --idle-timeout 5
$python $load rude "$url" "$crowd"
stop
echo "serve load: ok"
