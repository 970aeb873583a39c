#!/bin/sh
# Runs `cinch bench throughput` and `cinch plan`. Checks the lines and fields that scripts read, the
# counts of each dataset, and refused plans. BUILD is the build directory.
set -eu
cinch=${BUILD:-build}/cinch
model=examples/tiny-reasoner
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "$1:"
    cat "$dir/out"
    exit 1
}

# bench FIELD=PATTERN... -- OPTIONS...: runs a benchmark. Each FIELD must be in its JSON, with a
# value that matches PATTERN.
bench() {
    wants=""
    while [ "$1" != -- ]; do
        wants="$wants $1"
        shift
    done
    shift
    "$cinch" bench throughput --model $model --kv-cache-memory-bytes 64M --output-json "$dir/out" \
        "$@" >"$dir/line"
    grep -qE '^Throughput: [0-9.]+ requests/s, [0-9.]+ total tokens/s, [0-9.]+ output tokens/s$' \
        "$dir/line" || fail "no throughput line"
    for want in $wants; do
        grep -qE "^ \"${want%=*}\": ${want#*=}" "$dir/out" || fail "no $want"
    done
}

bench elapsed_time=[0-9] requests_per_second=[0-9] tokens_per_second=[0-9] num_requests=5, \
    total_num_tokens=60, total_output_tokens=20, -- --num-prompts 5 --input-len 8 --output-len 4

bench num_requests=9, -- --num-prompts 9 --input-len 20 --output-len 8 --random-range-ratio 0.5
! grep -q '"total_output_tokens": 72,' "$dir/out" || fail "lengths do not vary"

cat >"$dir/custom.jsonl" <<'J'
{"prompt": "Sort: 3 1 2", "output_tokens": 7}
{"prompt": "Sort: 2 1"}
J
bench num_requests=2, total_output_tokens=135, -- --dataset-name custom \
    --dataset-path "$dir/custom.jsonl"
bench num_requests=1, total_output_tokens=3, -- --dataset-name custom \
    --dataset-path "$dir/custom.jsonl" --num-prompts 1 --output-len 3

# Dummy weights need only config.json.
mkdir "$dir/config-alone"
cp $model/config.json "$dir/config-alone"
bench total_output_tokens=20, -- --model "$dir/config-alone" --load-format dummy \
    --num-prompts 5 --input-len 8 --output-len 4

# A workload file sets the lengths, and can give prompts a shared prefix.
cat >"$dir/workload.jsonl" <<'J'
{"prompt_tokens": 200, "output_tokens": 3, "prefix": 1, "prefix_tokens": 128}
{"prompt_tokens": 150, "output_tokens": 4, "prefix": 1, "prefix_tokens": 128}
{"prompt_tokens": 150, "output_tokens": 5}
{"prompt_tokens": 9000, "output_tokens": 5}
J
bench num_requests=3, total_input_tokens=500, total_output_tokens=12, cached_tokens=128, \
    -- --workload "$dir/workload.jsonl" --max-num-seqs 1

# The rows of a timeline add up to the totals of the run.
bench total_output_tokens=160, -- --num-prompts 8 --input-len 8 --output-len 20 --timeline \
    "$dir/timeline" --timeline-interval 0.001
[ "$(awk -F, 'NR > 1 { n += $3 } END { print n }' "$dir/timeline")" = 160 ] || fail "timeline"

# Steady state: --max-num-seqs requests of all ages, all of them running.
timeline="--timeline $dir/timeline"
steady="--steady-steps 20 --warmup-steps 4 --input-len 10 --output-len 130 --max-num-seqs 8"
"$cinch" bench throughput --model $model --kv-cache-memory-bytes 64M --output-json "$dir/out" \
    $steady $timeline >"$dir/line"
for want in '"steps": 20' '"aged_requests": 8' '"mean_batch": 8.0' '"blocks_total": 170' \
    '"preemptions": 0' '"stalled_share": 0.0'; do
    grep -qF -e "$want" "$dir/out" || fail "no $want"
done
grep -q '^Steady state: [0-9.]* output tokens/s, 20 steps' "$dir/line" || fail "no steady line"

# Single steps: decode steps of each batch size, and a prefill with its matrix products alone.
"$cinch" bench throughput --model $model --kv-cache-memory-bytes 64M --output-json "$dir/out" \
    --resident 100 --batches 3,1 --decode-steps 8 --prefill 40 >"$dir/line"
for want in '"batch": 3' '"batch": 1' '"tokens": 40'; do
    grep -qF -e "$want" "$dir/out" || fail "no $want"
done

# Arms on the same prompts. Of each row, layer and head `ds` reads 10 bytes of labels twice and 6 of
# scores for 500 candidates (mean of the 64 steps of a block), and K and V of 164.5 tokens.
"$cinch" bench throughput --model $model --kv-cache-memory-bytes 64M --output-json "$dir/out" \
    --block-size 64 --resident 80 --batches 3x600,2 --decode-steps 8 --select-dense-layers 0 \
    --arms ds:64,tls:64:select_tiles=4 >"$dir/line"
bytes=$((43276800 + 3 * 6 * 2 * (500 * 26 + 512 * 329 / 2)))
for want in '"batch": 3' '"resident": 600.0' '"batch": 2' '"arm": "full"' '"arm": "ds:64"' \
    "\"bytes_per_step\": $bytes.0" '"bytes_per_step": 54336000.0' '"weight_bytes": 43276800'; do
    grep -qF -e "$want" "$dir/out" || fail "no $want"
done
[ "$(grep -c '"arm": "tls:64:select_tiles=4"' "$dir/out")" = 2 ] || fail "arms of each batch"
grep -q '^decode, batch 3, 600 resident, ds:64: [0-9.]* ms per step' "$dir/line" || fail "no arm"

# Requests with another home: their exchanges are timed too.
"$cinch" bench throughput --model $model --kv-cache-memory-bytes 64M --output-json "$dir/out" \
    --block-size 64 --resident 300 --batches 2 --decode-steps 8 --select-dense-layers 0 --packs 2 \
    --kv-home peer --cache-device cpu --home-space 0.2 --kv-select spade --select-tokens 64 \
    --device cpu --max-num-seqs 4 --max-model-len 1024 >"$dir/line"
for want in '"attended": 2' '"moved_share": 0.' '"exchange_ms": ' '"stall_ms": '; do
    grep -qF -e "$want" "$dir/out" || fail "no $want"
done

# What an arm keeps on the device: 7 blocks for tiles, for the policy and to grow into each, and 23
# for one prompt. Full KV does not fit and is left out, unless it is named.
home() {
    "$cinch" bench throughput --model $model --output-json "$dir/json" --device cpu --block-size 64 \
        --resident 96 --batches 6x1500,2 --decode-steps 8 --home-space 0.2 --max-num-seqs 8 \
        --max-model-len 2048 "$@" >"$dir/out" 2>&1
}
tls=tls:128:home=host:select_tiles=4:select_cap=2
home --num-gpu-blocks-override 58 --arms $tls || fail "what is at home does not count"
for want in "^decode, batch 6, 1500 resident, full: left out: .* need 144 KV blocks .* has 58" \
    "^decode, batch 6, [0-9]* resident, $tls: " "^decode, batch 2, 96 resident, full: [0-9]"; do
    grep -q -e "$want" "$dir/out" || fail "no '$want'"
done
# A prompt with a home goes there while it is computed. 1,024 tokens have 16 blocks.
"$cinch" bench throughput --model $model --device cpu --block-size 64 --prefill 1024 \
    --max-model-len 2048 --max-num-batched-tokens 256 --home-space 0.2 --max-num-seqs 2 \
    --kv-select tls --kv-home host --select-tokens 128 --select-tiles 4 >"$dir/out" 2>&1
grep -qE "^prefill of 1024 tokens: .*, [456].[0-9] MiB went home meanwhile$" "$dir/out" ||
    fail "a prompt did not go home"
# Forced churn: of 16 tiles a tenth enters in each step; of a quarter the cap leaves out some.
churned() {
    home --num-gpu-blocks-override 200 --batches 3x1500 --decode-steps 20 --select-dense-layers 0 \
        --arms tls:512:home=host:select_tiles=16:select_cap=2 --select-churn "$1" ||
        fail "churn $1"
    grep -qE "exchange: .* $2 % of the area replaced .*, $3 % missed " "$dir/out" ||
        fail "churn $1: not $2 % replaced and $3 % missed"
}
churned 0.1 "(9.4|10.[0-6])" 0.0
churned 0.25 "12.[0-5]" "1[0-9].[0-9]"
churned 0.25,0.1 "(9.4|10.[0-6])" 0.0
grep -q "churn 0.25: " "$dir/out" || fail "no row of the first churn"
# Checked before weights are read: there are none.
mkdir "$dir/weightless"
cp $model/*config.json $model/tokenizer.json "$dir/weightless"
for arms in "58 full,$tls" "57 $tls"; do
    home --model "$dir/weightless" --num-gpu-blocks-override ${arms% *} --arms "${arms#* }" &&
        fail "not refused: $arms"
    grep -q "^error: .*6 requests of .* KV blocks .*, but the pool has ${arms% *}" "$dir/out" ||
        fail "not refused by its blocks: $arms"
done

# The bars of bench/gpu_select.sh: S0 4 ms, 1 GB of selection and 2 of 36 layers of 18 GB.
row() { printf '  {\n   "batch": 8,\n   "resident": %s,\n   "ms_per_step": %s,\n   "bytes_per_step": %s,\n   "arm": "%s"\n  },\n' "$@"; }
{
    row 32768.0 12.0 33000000000.0 full
    row 32768.0 6.0 16000000000.0 ds:2048
    row 32768.0 6.0 16000000000.0 tls:2048
    row 32768.0 6.0 16000000000.0 spec:2048
    row 97.0 4.0 15000000000.0 full
    row 97.0 4.0 15000000000.0 ds:2048
    printf ' "weight_bytes": 15000000000,\n "read_bytes_per_second": 1e12\n'
} >"$dir/json"
for dense in 0 2; do
    awk -v base=96 -v layers=36 -v dense_layers=$dense -f bench/select_bars.awk "$dir/json" \
        >"$dir/out"
    case $dense in # 4 + 1 / 0.85 + 0.25 and 0.5; 4 + 0 / 0.85 + 1 / 0.9 + 34 / 36 of the launches
    0) ds=5.426 tls=5.676 spec=5.176 ;;
    2) ds=5.347 tls=5.583 spec=5.111 ;;
    esac
    grep -q "^8 x 32768, $dense dense layers, S0 4.000 ms$" "$dir/out" || fail "no S0"
    grep -q " ds:2048 * 6.000 ms *2.00 x dense  bar *$ds ms" "$dir/out" || fail "no bar $ds"
    grep -q " tls:2048 .*bar *$tls ms" "$dir/out" || fail "no bar $tls"
    grep -q " spec:2048 .*bar *$spec ms" "$dir/out" || fail "no bar $spec"
    [ "$(wc -l <"$dir/out")" = 5 ] || fail "lines of a batch"
done

# The bars of bench/gpu_pair.sh: S0 4 ms, 3 GB attended, 242 MB moved, keys of 19 GB.
away() {
    printf '  {\n   "batch": 8,\n   "resident": %s,\n   "ms_per_step": %s,\n   "bytes_per_step": %s,\n' \
        "$1" "$2" "$3"
    printf '   "arm": "%s",\n   "attended": 2000.0,\n   "moved_share": 0.1,\n' "$4"
    printf '   "missed_share": 0.2,\n   "moved_bytes": 242000000.0,\n   "exchange_ms": %s,\n' "$5"
    printf '   "stall_ms": %s\n  },\n' "$6"
}
ends() { printf ' "weight_bytes": 15000000000,\n "read_bytes_per_second": 1e12\n'; }
labels=spade:2048:home=peer
mkdir "$dir/pair"
{
    row 32768.0 36.0 53000000000.0 full
    away 32768.0 7.0 18000000000.0 $labels 2.0 0.1
    away 32768.0 22.0 18000000000.0 $labels:select_keys=rows 21.0 14.0
    away 32768.0 8.0 18000000000.0 tls:1024:home=peer 2.0 0.11
    row 96.0 4.0 15000000000.0 full
    ends
} >"$dir/pair/pair.json"
{ away 32768.0 9.0 18000000000.0 $labels 1.5 1.4 && ends; } >"$dir/pair/serial.json"
{
    row 8192.0 5.0 16000000000.0 zip:2560
    away 8192.0 5.5 16000000000.0 zip:2048:select=spade:home=peer 1.0 0.0
    ends
} >"$dir/pair/zip.json"
{ row 32768.0 35.9 53000000000.0 full && ends; } >"$dir/pair/plain.json"
for one in 0 1; do
    awk -v base=96 -v layers=36 -v dense_layers=0 -v one=$one -f bench/pair_bars.awk \
        "$dir/pair/pair.json" "$dir/pair/serial.json" "$dir/pair/zip.json" "$dir/pair/plain.json" \
        >"$dir/out"
    case $one in # two: 4 + 3 / 0.85 + 0.24; 19 / 0.88 + 0.12. One: 1.1 (4 + 32 * 1904 / 32672 + 1.5)
    0) set -- "$labels * 7.000 ms  bar  7.769  of it 0.901  met" "keys=rows .* bar 21.711 .* MISSED" \
        "tls:1024:home=peer .* bar  8.019 .* met" "stall 0.100 ms, hidden 95.0 % (95 %: met)" \
        "hidden 94.5 % (95 %: MISSED)" "= 1.100 (1.06: MISSED)" "36.000 / 35.900 ms = 1.0028 (1.01: met)" ;;
    1) set -- "$labels * 7.000 ms  bar  8.101 .* met" "keys=rows .* no bar" \
        "9.000 ms one after the other, exchange 1.500 ms" "= 1.100 (on two GPUs 1.06: -)" ;;
    esac
    for want in "$@"; do grep -q -e "$want" "$dir/out" || fail "one=$one: no '$want'"; done
done

# The script itself, with the CPU instead of GPUs.
CINCH=$cinch DEVICE=cpu CACHE=auto SHAPE=../../$model BATCH=2x700 FEW=2 RESIDENT=60 TOKENS=128 \
    TILES=2 TILE_CHURN=1 CHURN=13 GIB=0.1 ZIP_GIB=0.1 ZIP_BATCH=2x700 STEPS=2 CONTEXT=1024 \
    CHUNK=512 OPTIONS="--kv-cache-memory-bytes 64M --block-size 64" \
    bench/gpu_pair.sh "$dir/both" pair serial zip plain dense >"$dir/out" || fail "gpu_pair.sh"
for want in "replaced [0-9.]* %, missed [0-9.]* %; exchange [0-9.]* ms, stall [0-9.]* ms" \
    "^2 x [0-9]*  spade:128:home=peer:select_cap=13 * [0-9.]* ms one after the other" \
    "^zip:128:select=spade.* / zip:160, 2 x" "^full, with a home declared / without, 2 x" \
    "^with two dense layers:"; do
    grep -q -e "$want" "$dir/out" || fail "gpu_pair.sh: no '$want'"
done

# The bars of bench/gpu_host.sh: the largest batch of full KV, and the home's best.
host_row() {
    printf '  {\n   "batch": %s,\n   "resident": 98304.0,\n   "ms_per_step": %s,\n' "$1" "$2"
    [ "$3" = full ] || printf '   "moved_entries": 368.0,\n   "missed_entries": %s,\n' "$4"
    [ "$3" = full ] || printf '   "moved_bytes": 50000000.0,\n   "exchange_ms": 1.0,\n'
    [ "$3" = full ] || printf '   "churn": %s,\n' "$5"
    printf '   "stall_ms": 0.1,\n   "arm": "%s"\n  },\n' "$3"
}
{
    host_row 3 20.0 full
    host_row 3 5.0 tls:1024:home=host 0.0 0.01
    host_row 6 6.0 tls:1024:home=host 2.0 0.01
    host_row 6 9.0 tls:1024:home=host 2.0 0.1
} >"$dir/long.json"
cp "$dir/long.json" "$dir/most.json"
awk -f bench/host_bars.awk "$dir/long.json" >"$dir/out"
awk -f bench/host_bars.awk "$dir/most.json" >>"$dir/out"
for want in "^long: 6 x 98304 .* missed 2.0 tiles of a request (none: MISSED), 50.0 GB/s" \
    "^long: 3 x 98304  tls.* missed 0.0 tiles of a request (none: met)" \
    "^long, churn 1 %: home host, batch 6 / full KV, batch 3: 1000.0 / 150.0 tokens/s = 6.67 (5: met)" \
    "^long, churn 10 %: home host, batch 6 .* = 4.44 (5: MISSED)" \
    "^most, churn 1 %: home host, .* (3: met)"; do
    grep -q -e "$want" "$dir/out" || fail "host_bars.awk: no '$want'"
done

# The script itself, with the CPU instead of a GPU.
CINCH=$cinch DEVICE=cpu SHAPE=../../$model FULL=2x700 LONG=3x700 MOST=2x500,3x500 HELD=2x700 \
    RESIDENT=60 TOKENS=128 TILES=4 CAP=1 GIB=0.1 STEPS=2 CONTEXT=1024 CHUNK=512 KV=64M \
    OPTIONS="--block-size 64" bench/gpu_host.sh "$dir/host" long most device >"$dir/out" ||
    fail "gpu_host.sh"
for want in "^long: 3 x [0-9]*  tls:128:home=host:.*, churn 10 %: .* tokens/s; moved " \
    "^info: kv home host" "^most, churn 3 %: home host, batch [23] / full KV, batch [23]: " "^device: 2 x [0-9]*  quest:128: "; do
    grep -q -e "$want" "$dir/out" || fail "gpu_host.sh: no '$want'"
done

# The script itself, with the CPU instead of a GPU.
BASELINE=$cinch CINCH=$cinch DEVICE=cpu SHAPE=../../$model DENSE=0 TOKENS=64 LESS=32 RESIDENT=60 \
    BATCHES=2x400,2 STEPS=2 SEQS=2 CONTEXT=1024 OUTPUT=150 STEADY=4 ZIP_SEQS=2 SAME=2 HELD=200 \
    OPTIONS="--kv-cache-memory-bytes 64M --block-size 64" bench/gpu_select.sh "$dir/gpu" >"$dir/out" ||
    fail "gpu_select.sh"
for want in '^2 x 400, 0 dense layers, S0 [0-9.]* ms$' '^  ds:64:select_group=mean .* x dense' \
    '^Steady state: ' '^zip, this build / the older one: [0-9.]* / [0-9.]* ms = [0-9.]*'; do
    grep -q "$want" "$dir/out" || fail "no $want"
done

CINCH=$cinch DEVICE=cpu SHAPE=../../$model DENSE=0 TOKENS=64 BATCHES=2x400,2 RESIDENT=60 STEPS=2 \
    CONTEXT=1024 INPUT=200 OUTPUTS=100 STEADY=4 SEQS=2 \
    OPTIONS="--kv-cache-memory-bytes 64M --block-size 64" bench/gpu_spec.sh "$dir/gpu" >"$dir/out" ||
    fail "gpu_spec.sh"
for want in '^2 x 400, 0 dense layers, S0 [0-9.]* ms$' '^  spec:64 .* x dense' \
    '^steady spec / full at 200 + 100: '; do
    grep -q "$want" "$dir/out" || fail "gpu_spec.sh: no $want"
done

CINCH=$cinch DEVICE=cpu SHAPE=../../$model BUDGET=512 BATCHES=3,2 SAME=2 RESIDENT=60 MOST=4 CONTEXT=1024 \
    BATCHED=256 PREFILL=200 HELD=2x300 FEW=60 TOKENS=64 LONG=1024 SEQS=2 OUTPUT=100 STEADY=4 NEW=20 \
    QUEUE=3 PEER=1 OPTIONS="--kv-cache-memory-bytes 64M --block-size 64" \
    bench/gpu_kv8.sh "$dir/gpu" steps select steady queue >"$dir/out" || fail "gpu_kv8.sh"
for want in '^prefill, ms: .* (at most 1.08: ' '^tls at 2x300, ms: .* (at most 1: ' \
    '^steady state, tokens/s: .* (at least 1.55: ' '^queue beside another engine, tokens/s: .*: met)'; do
    grep -q "$want" "$dir/out" || fail "gpu_kv8.sh: no $want"
done

CINCH=$cinch DEVICE=cpu SHAPE=../../$model BUDGET=512 BATCHES=3,2 RESIDENT=60 MOST=4 CONTEXT=1024 \
    BATCHED=256 PREFILL=200 SEQS=2 OUTPUT=100 STEADY=4 \
    OPTIONS="--kv-cache-memory-bytes 64M --block-size 64" \
    bench/gpu_fp8.sh "$dir/gpu" steps steady >"$dir/out" || fail "gpu_fp8.sh"
for want in '^prefill, ms: .* (at most 0.80: ' '^steady state, tokens/s: .* (at least 1.8: '; do
    grep -q "$want" "$dir/out" || fail "gpu_fp8.sh: no $want"
done

# refused TEXT ARGUMENTS...: cinch must fail with an error that contains TEXT.
refused() {
    text=$1
    shift
    "$cinch" "$@" >"$dir/out" 2>&1 && fail "not refused: $*"
    grep -qF -e "$text" "$dir/out" || fail "no '$text'"
}
refused "expected one word, throughput" bench --model $model
refused "--select-churn needs --resident" bench throughput --model $model --select-churn 0.1
refused "--select-churn needs a home besides the device" bench throughput --model $model \
    --resident 96 --batches 2 --select-churn 0.1
refused "no arm has home=peer or home=host" bench throughput --model $model \
    --resident 96 --batches 2 --select-churn 0.1 --arms tls:128
for churn in 0 0.1,2 0.1, nan; do
    refused "--select-churn $churn: expected shares above 0" bench throughput --model $model \
        --resident 96 --batches 2 --select-churn $churn --arms tls:128
done
refused "--host-memory has no effect on a GPU" plan --model $model --gpu-memory 80G --host-memory 9
refused "expected one word, throughput" bench latency --model $model
refused "/no/such" bench throughput --model $model --dataset-name custom --dataset-path /no/such
echo '{"prompt": 5}' >"$dir/bad.jsonl"
refused "line 1: prompt" bench throughput --model $model --dataset-name custom \
    --dataset-path "$dir/bad.jsonl"
refused "there is no tokenizer.json" bench throughput --model "$dir/config-alone" \
    --load-format dummy --dataset-name custom --dataset-path "$dir/custom.jsonl"
refused "config-alone/tokenizer.json" bench throughput --model "$dir/config-alone"
refused "no request fits: prompt and output of each exceed the context of 8192 tokens" bench throughput --model $model --input-len 9000

refused "cannot hold --resident 2000" bench throughput --model $model --resident 2000 \
    --batches 8 --kv-cache-memory-bytes 64M
# What cannot fit ends the command before anything runs, also an arm after one that fits.
away="spade:1024:home=host"
refused "arm $away: memory cannot hold --resident 6000" bench throughput --model $model \
    --arms $away --resident 6000 --batches 16 --home-space 0.2 --kv-cache-memory-bytes 2G
grep -q "need 1536 blocks of 64 tokens in kv home host at once, which has 546: " "$dir/out" ||
    fail "no numbers"
grep -q "running" "$dir/out" && fail "an arm ran before the refusal"
wide=window:1984:select=spade:select_tokens=256:home=host
refused "arm $wide: memory cannot hold --resident 2048 for every batch of --batches 6: 6 requests at once need a query slot each, but memory has room for 5" \
    bench throughput --model $model --arms full,$wide --resident 2048 --batches 6 --decode-steps 8 \
    --home-space 0.5 --num-gpu-blocks-override 210
refused "need 65 KV blocks of 64 tokens, but the pool has 42" bench throughput --model $model \
    --num-prompts 2 --input-len 4000 --output-len 100 --kv-cache-memory-bytes 16M
refused "need 65 KV blocks" bench throughput --model $model --steady-steps 10 \
    --input-len 4000 --output-len 100 --kv-cache-memory-bytes 16M
refused "arm zip:256: --decode-steps 64: with blocks of 64 tokens a compressed request has an event within the timed steps; lower it to 53" \
    bench throughput --model $model --load-format dummy --device cpu --max-num-seqs 4 \
    --resident 1500 --batches 2 --arms zip:256
refused "--resident 10 is too small" bench throughput --model $model --resident 10
refused "--batches 1,,2" bench throughput --model $model --resident 100 --batches 1,,2
refused "after the x" bench throughput --model $model --resident 100 --batches 8x
refused "--arms needs --resident" bench throughput --model $model --arms ds:64
refused "--arms nothing" bench throughput --model $model --resident 100 --arms nothing
refused "--prefill 0" bench throughput --model $model --prefill 0
refused "choose one" bench throughput --model $model --prefill 8 --steady-steps 4
refused "beyond the context of 8192: lower --resident" bench throughput --model $model \
    --resident 100 --batches 1,1x8190 --decode-steps 4
grep -q "ms per step" "$dir/out" && fail "a batch was timed before the last was checked"
echo '{"prompt_tokens": 5}' >"$dir/bad.jsonl"
refused "line 1: output_tokens" bench throughput --model $model --workload "$dir/bad.jsonl"
refused "/no/such" bench throughput --model $model --timeline /no/such/file

"$cinch" plan --model $model --kv-cache-memory-bytes 64M --json >"$dir/out"
for want in '"num_blocks": 170' '"block_bytes": 393216' '"concurrency_full": 1' \
    '"concurrency_capped": 0' '"parameters": 10819200' '"expected_tokens_per_s"'; do
    grep -qF -e "$want" "$dir/out" || fail "no $want"
done
"$cinch" plan --model $model --kv-cache-memory-bytes 64M --kv-policy zip --kv-budget 384 \
    --kv-window 48 >"$dir/out"
for want in 'N_total = 139 blocks of 64 tokens' 'M = 19 slots of 48 queries' \
    '19 requests of any output length at budget 384'; do
    grep -qF -e "$want" "$dir/out" || fail "no $want"
done
grep -q selection "$dir/out" && fail "a plan without selectors speaks of selection"
# A plan for a GPU that is not here: bf16, blocks of 256, no speeds.
"$cinch" plan --model bench/shapes/qwen3-8b --gpu-memory 80G --kv-policy zip >"$dir/out"
for want in '^device  *a GPU of 80.0 GiB (--gpu-memory), 92 % of it used, 546 MiB assumed for the driver; not measured$' \
    '^weights  *15.3 GiB in bf16$' '^kv cache  *5[5-7].[0-9] GiB, N_total = [0-9]* blocks of 256' \
    '^  *1[67][0-9] requests of any output length at budget 2048'; do
    grep -q -e "$want" "$dir/out" || fail "no $want"
done
grep -qE 'expected|measured now' "$dir/out" && fail "speeds of a GPU that is not here"
"$cinch" plan --model bench/shapes/qwen3-8b --gpu-memory 80G --json >"$dir/out"
grep -q '"expected_tokens_per_s": null' "$dir/out" || fail "no null"
refused "GiB available on the device" plan --model bench/shapes/qwen3-32b --gpu-memory 40G
refused "has latent attention, and the cuda backend lacks the op latent_store" \
    plan --model bench/shapes/glm-4.7-flash --gpu-memory 141G
"$cinch" plan --model bench/shapes/deepseek-v2-lite --device cpu --kv-cache-memory-bytes 1G \
    --max-model-len 8192 --json >"$dir/out" 2>/dev/null
grep -q '"block_bytes": *3981312' "$dir/out" # 64 tokens, 27 layers, 576 f32
"$cinch" plan --model bench/shapes/qwen3-30b-a3b --gpu-memory 141G >"$dir/out"
grep -q '^experts  *8 of 128 for a token in 48 layers' "$dir/out" || fail "no experts on a GPU"
# What the GPU backend would refuse.
refused "--kv-cache-dtype fp8: the cuda backend does not support it" plan \
    --model bench/shapes/qwen3-8b --gpu-memory 80G --kv-cache-dtype fp8 --kv-select oracle
refused "FP8 weights: the cuda backend multiplies them with inputs in e4m3 only" plan \
    --model bench/shapes/qwen3-8b --gpu-memory 80G --quantization fp8 --no-fp8-activations
"$cinch" plan --model bench/shapes/qwen3-8b --gpu-memory 80G --quantization fp8 >"$dir/out"
grep -q '^weights  *8.8 GiB in e4m3 (layers) and bf16$' "$dir/out" || fail "no FP8 weights"
# A head that reads states of layers.
"$cinch" plan --model examples/prose-base --gpu-memory 80G --kv-select spec >"$dir/out"
grep -q '^  *spec  ' "$dir/out" || fail "no row of spec"
# Its machine may have more memory than this one.
"$cinch" plan --model bench/shapes/qwen3-8b --gpu-memory 80G --kv-home host --kv-select spade \
    --home-space 400 --swap-space 9000 --kv-policy zip >"$dir/out"
grep -q '^home  *host, 399.97 GiB' "$dir/out" || fail "no home"
# A cache device that is this GPU takes its memory before the KV cache does: blocks of 36 MiB.
pair="plan --model bench/shapes/qwen3-8b --gpu-memory 80G --kv-select spade --kv-home peer --home-space 18"
for device in 0 1; do
    # shellcheck disable=SC2086
    "$cinch" $pair --cache-device cuda:$device --json >"$dir/out$device"
done
blocks() { sed -n 's/.*"num_blocks": \([0-9]*\).*/\1/p' "$dir/out$1"; }
fewer=$(($(blocks 1) - $(blocks 0)))
test $fewer -ge 512 && test $fewer -le 560 || fail "the cache device takes $fewer blocks"
# shellcheck disable=SC2086
"$cinch" $pair --cache-device cuda:0 | grep -q "% of it used, 19.0 GiB of that for the cache device" ||
    fail "no cache device"
# shellcheck disable=SC2086
refused "cuda:N beside a model on a GPU" $pair --cache-device cpu
# shellcheck disable=SC2086
refused "lower --home-space or --max-num-seqs" $pair --cache-device cuda:0 --home-space 100
refused "70 % of the machine's" plan --model $model --kv-home host --kv-select tls --home-space 9000
# Selection: per token 6 layers x 2 heads of 16 / 2 + 2 bytes of labels and 2 x 64 x 4 / 64 of bounds.
"$cinch" plan --model $model --kv-cache-memory-bytes 600M --kv-selectors ds,spade,tls \
    --select-tokens 256 --select-tiles 2 >"$dir/out"
for want in '^queries .*, M = [0-9]* slots of 17 queries' \
    '^selection    digests of 216 bytes per token, 3.5 % of its K and V; scratch of' \
    ' 1.0x .* 3.0x  at 11 x 4096$' '^ *ds( +[0-9]+){4} +- +[0-9.]+x$' '^ *spade( +[0-9]+){4}' \
    '^ *tls +kv select_tiles of 2: .*raise select_tiles to 5$'; do
    grep -qE -e "$want" "$dir/out" || fail "no $want"
done
"$cinch" plan --model $model --kv-cache-memory-bytes 600M --kv-select ds --select-tokens 256 \
    --json >"$dir/out"
for want in '"digest_bytes_per_token": 120' '"kv_bytes_per_token": 6144' '"select": "ds"' \
    '"batch_tokens": [0-9]' '"expected_speed_up": [12]'; do
    grep -qE -e "$want" "$dir/out" || fail "no $want"
done
# A home: its blocks, the bytes of an exchange, and the batch that hides it.
home="--device cpu --kv-selectors spade --select-tokens 256 --home-space 0.5"
# shellcheck disable=SC2086
"$cinch" plan --model $model $home --kv-homes peer --cache-device cpu >"$dir/out"
grep -q "^home  *peer, 0.50 GiB, N_home = 1339 blocks of 64 tokens, 400896 bytes each" "$dir/out" ||
    fail "no home"
grep -q "^  *room for 10 requests of 8192 tokens" "$dir/out" || fail "no room"
# 4 layers, 2 kv heads, 32 tokens of 2 * 64 f32
grep -q "^exchange  *spade: at most 32 tokens .* 131072 bytes of a request" "$dir/out" ||
    fail "no exchange"
grep -q "^  *over a link .* hidden behind the step .* with 4 packs" "$dir/out" ||
    fail "no hidden batch"
# A step reads the experts of its requests: 8 requests use 52 of 128. With all weights it would be a
# batch of 19. The link and the weights are read at one rate, so neither counts.
"$cinch" plan --model bench/shapes/qwen3-30b-a3b --load-format dummy --device cpu --kv-home host \
    --home-space 16 --host-memory 200 --kv-select tls --select-tokens 1024 --select-tiles 512 \
    --select-cap 512 --packs 2 --kv-cache-memory-bytes 20G --select-dense-layers 0 \
    --max-model-len 40960 --max-num-seqs 8 >"$dir/out" 2>&1
grep -q "hidden behind the step up to a batch of 8, with 2 packs" "$dir/out" || fail "experts read"
# shellcheck disable=SC2086
"$cinch" plan --model $model $home --kv-homes host --kv-selectors spade,tls --select-tiles 5 >"$dir/out"
grep -q "^exchange  *tls: at most 2 tiles of 64 tokens .* 524288 bytes of a request" "$dir/out" ||
    fail "no exchange of tiles"
grep -q "^  *spade: at most 8 tokens .* 32768 bytes of a request" "$dir/out" ||
    fail "no second exchange"
# shellcheck disable=SC2086
"$cinch" plan --model $model $home --kv-homes host --json >"$dir/out"
grep -q '"home": "host"' "$dir/out" || fail "no home in JSON"
tr -d '\n' <"$dir/out" | tr -s ' ' >"$dir/line"
grep -q '"select": "spade", "select_cap": 8, "entry_tokens": 1, .*"link_bytes_per_s": [1-9]' "$dir/line" ||
    fail "no cap of home host"
# The host memory of a CPU is read as fast as its KV cache.
number() { sed -n "s/.*\"$1\": \([^,} ]*\).*/\1/p" "$dir/line"; }
test "$(number link_bytes_per_s)" = "$(number read_bytes_per_s)" ||
    fail "the link of a CPU is not its memory"
# A default home: the space of 10 requests limits those at once, and a step reads what is resident. The
# table of selection is that of KV home device.
speed_ups() { sed -n 's/.*\("selectors": .*\), "homes".*/\1/p' "$dir/line"; }
speed_ups=$(speed_ups)
# shellcheck disable=SC2086
"$cinch" plan --model $model $home --kv-home host --kv-select spade --json >"$dir/out"
tr -d '\n' <"$dir/out" | tr -s ' ' >"$dir/line"
test -n "$speed_ups" && test "$(speed_ups)" = "$speed_ups" || fail "the home changes the table"
number expected_tokens_per_s | awk '{ exit !($1 > 10 && $1 < 1e6) }' || fail "no tokens/s with a home"
# shellcheck disable=SC2086
"$cinch" plan --model $model $home --kv-home host --kv-select spade >"$dir/out"
grep -q "^expected .* 10 requests of 384 resident tokens$" "$dir/out" || fail "not what is resident"
# Both homes in one engine, each with its own size.
# shellcheck disable=SC2086
"$cinch" plan --model $model $home --kv-homes peer,host --cache-device cpu --host-space 0.25 \
    >"$dir/out"
grep -q "^home  *peer, 0.50 GiB, N_home = 1339 blocks" "$dir/out" || fail "no home peer beside host"
grep -q "^home  *host, 0.25 GiB, N_home = 682 blocks" "$dir/out" || fail "no home host beside peer"
# The thresholds of home auto: blocks over requests. With 1,339 and 682 blocks, 64 have 20 and 10.
grep -q "^home auto  *longest requests that fit to their ends" "$dir/out" || fail "no thresholds"
grep -qE "^ +64 +[1-9][0-9]* +1280 +640$" "$dir/out" || fail "no thresholds of 64 requests"
# The largest batches: 10 and 5 of 8,192 tokens, 128 blocks each.
grep -q "^batches  *most requests that fit to their ends" "$dir/out" || fail "no batches"
grep -qE "^ +8192 +[1-9][0-9]* +10 +5$" "$dir/out" || fail "no batches of 8192 tokens"
grep -qE "^ +1024 +[1-9][0-9]* +83 +42$" "$dir/out" || fail "no batches of 1024 tokens"
# N_max is 7 blocks: requests of 4 blocks end before their first event and take no home blocks.
grep -qE "^ +256 +256 +256 +256$" "$dir/out" || fail "no batches of 256 tokens"
# shellcheck disable=SC2086
"$cinch" plan --model $model $home --kv-homes host --packs 1 >"$dir/out"
grep -q "one pack hides nothing; raise --packs" "$dir/out" || fail "no advice on packs"
# shellcheck disable=SC2086
refused "--cache-device is missing" plan --model $model $home --kv-homes peer
refused "select_tiles to 5" plan --model $model --kv-select tls --select-tokens 256 --select-tiles 2
refused "--kv-cache-memory-bytes" plan --model $model --kv-cache-memory-bytes 64K
refused "--max-model-len 9000" plan --model $model --max-model-len 9000
refused "/no/such" plan --model /no/such
# A plan refuses what the engine refuses, and warns when the plan exceeds the machine's memory.
refused "below --max-model-len 8192" plan --model $model --no-enable-chunked-prefill
refused "at most a block of 64" plan --model $model --kv-policy zip --kv-move fill --kv-window 65
"$cinch" plan --model $model --device cpu --kv-cache-memory-bytes 100T --block-size 256 >"$dir/out" 2>&1
grep -q "^warning: planned memory of 102400.* GiB .*lower --kv-cache-memory-bytes" "$dir/out" || fail "no warning"
! "$cinch" plan --model $model --device cpu --kv-cache-memory-bytes 64M 2>&1 | grep warning || fail "a warning"
echo "bench: ok"
