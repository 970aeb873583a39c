#!/bin/sh
# Runs `cinch bench serve` against a running server. Checks the fields that scripts read, counts,
# arrival times, and the errors for a missing server and a missing key. BUILD is the build
# directory.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
trap clean_up EXIT
model=examples/tiny-reasoner

# bench OPTIONS...: runs a benchmark and writes its figures to $dir/out.
bench() {
    "$cinch" bench serve --model $model --base-url "$url" --output-json "$dir/out" "$@" >"$dir/line" ||
        { echo "bench serve $*: failed"; cat "$dir/line"; exit 1; }
}

# expect FIELD=PATTERN...: each FIELD must be in $dir/out with a value that matches PATTERN.
expect() {
    for want in "$@"; do
        grep -qE "^ \"${want%%=*}\": ${want#*=},?\$" "$dir/out" && continue
        echo "no $want in:"
        cat "$dir/out"
        exit 1
    done
}

# refused TEXT OPTIONS...: bench serve must fail with TEXT.
refused() {
    text=$1
    shift
    "$cinch" bench serve --model $model --num-prompts 2 --input-len 8 --output-len 2 "$@" \
        >"$dir/line" 2>&1 && { echo "not refused: $*"; exit 1; }
    grep -qF -e "$text" "$dir/line" && return
    echo "no '$text' in:"
    cat "$dir/line"
    exit 1
}

serve --kv-policies full,zip --kv-cache-memory-bytes 64M
bench --num-prompts 12 --input-len 8 --output-len 6 --max-concurrency 3 --temperature 0
number='[0-9][0-9.e-]*'
expect 'request_rate="inf"' burstiness=1.0 max_concurrency=3 num_prompts=12 completed=12 failed=0 \
    total_input_tokens=96 total_output_tokens=72 max_concurrent_requests=3 request_goodput=null \
    'model_id="tiny"' duration="$number" request_throughput="$number" output_throughput="$number" \
    total_token_throughput="$number" max_output_tokens_per_s="$number"
for metric in ttft tpot itl e2el; do
    for kind in mean median std p90 p99; do expect ${kind}_${metric}_ms="$number"; done
done
grep -qE '^output_throughput +[0-9.]+$' "$dir/line"

# 24 arrivals at 12 per second take about 2 seconds.
for seed in 1 2 3; do
    bench --num-prompts 24 --input-len 4 --output-len 1 --request-rate 12 --seed $seed
    expect request_rate=12.0 'duration=[0-9.]+' completed=24
    "${PYTHON:-python3}" -c "import json, sys
s = json.load(open('$dir/out'))['duration']
sys.exit(not 0.7 < s < 8 and f'24 arrivals at 12 per second took {s} s, expected 0.7 to 8')"
done

bench --num-prompts 3 --input-len 8 --output-len 5 --save-detailed --kv-policy zip --kv-budget 64
"${PYTHON:-python3}" - "$dir/out" <<'P'
import json, sys
f = json.load(open(sys.argv[1]))
assert f["input_lens"] == [8] * 3 and f["output_lens"] == [5] * 3 and f["errors"] == [""] * 3, f
assert all(t > 0 for t in f["ttfts"]) and all(len(g) <= 4 for g in f["itls"])
P
refused "request 1 failed: status 400" --base-url "$url" --kv-policy window
stop
refused "Connection refused" --base-url "$url"
refused "expected http://host:port" --base-url localhost
refused "a port from 1 to 65535" --base-url http://127.0.0.1:99999
serve --api-key a-key-for-the-test
refused "/v1/models: status 401" --base-url "$url"
bench --api-key a-key-for-the-test --num-prompts 2 --input-len 8 --output-len 2
stop

if grep -q '^0*1 .* lo$' /proc/net/if_inet6 2>/dev/null; then
    serve --host ::1
    bench --num-prompts 2 --input-len 8 --output-len 2
    expect completed=2
    stop
fi

# A checkpoint without a tokenizer: prompts are token ids, and the figures count tokens.
model=tests/golden/models/qwen3-bf16
serve --model $model --load-format dummy
bench --num-prompts 3 --input-len 8 --output-len 5
expect completed=3 total_output_tokens=15
stop
echo "serve bench: ok"
