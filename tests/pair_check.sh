#!/bin/sh
# The GPU backend with a CUDA runtime that needs no GPU (tests/fake_cuda). Steps with a home run on
# two devices and on one in both roles: every call must enter its own device, and memory must be as
# planned. A device that is missing, is not a peer, is lost or is full ends in one line.
set -eu
build=$(realpath "${BUILD:-build}")
dense=$(realpath examples/tiny-reasoner)
model=$dense
if [ ! -e "$build/tests/fake_cuda/cinch-cuda.so" ]; then
    echo "pair_check: no GPU backend to check: make cuda builds it"
    exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp "$build/cinch" "$build/tests/fake_cuda/cinch-cuda.so" "$dir"
export XDG_CACHE_HOME="$dir/cache"
text=$(printf '%0900d' 0)
for i in 1 2 3; do printf '{"id": "%s", "prompt": "%s%s"}\n' $i $i "$text"; done >"$dir/in.jsonl"

home="--home-space 0.25" seqs=4 keep=
# run OPTIONS...: three requests with a home. Sets $got; standard error is in $dir/err.
run() {
    got=0
    [ -n "$keep" ] || rm -f "$dir/out.jsonl"
    # shellcheck disable=SC2086 # options are words
    "$dir/cinch" run-batch --model "$model" --load-format dummy --block-size 64 --max-tokens 200 \
        --ignore-eos --max-model-len 1408 --max-num-seqs "$seqs" --max-num-batched-tokens 256 \
        --kv-select spade --select-tokens 128 $home --prompt-field prompt \
        --id-field id -i "$dir/in.jsonl" -o "$dir/out.jsonl" --log-level info "$@" \
        --summary-json "$dir/summary.json" 2>"$dir/err" >/dev/null || got=$?
}

fail() {
    echo "pair_check: $1, exit code $got:"
    cat "$dir/err"
    exit 1
}

# works TEXT OPTIONS...: all requests end, exchanges ran, and the log has TEXT.
works() {
    want=$1
    shift
    run "$@"
    [ "$got" = 0 ] || fail "'$*' failed"
    [ "$(wc -l <"$dir/out.jsonl")" = 3 ] || fail "'$*': expected 3 answers"
    grep -q '"exchanges": [1-9]' "$dir/summary.json" || fail "'$*': no exchanges"
    grep -qF -e "$want" "$dir/err" || fail "'$*': expected '$want'"
}

# refused TEXT OPTIONS...: one line of error, with TEXT, and exit code 1, or 3 if a GPU is lost.
refused() {
    want=$1 code=1
    [ -z "${FAKE_LOST:-}" ] || code=3
    shift
    run "$@"
    [ "$got" = $code ] || fail "'$*': expected exit code $code"
    [ "$(grep -c '^error:' "$dir/err")" = 1 ] || fail "'$*': expected one line of error"
    grep '^error:' "$dir/err" | grep -qF -e "$want" || fail "'$*': expected '$want'"
}

# planned OPTIONS...: `cinch plan` prints as many blocks as the engine has.
planned() {
    blocks=$("$dir/cinch" plan --model "$model" --load-format dummy --block-size 64 --max-model-len 1408 \
        --max-num-seqs 4 --max-num-batched-tokens 256 --kv-select spade --select-tokens 128 \
        --home-space 0.25 "$@" 2>"$dir/err" | sed -n 's/.* N_total = \([0-9]*\) blocks.*/\1/p')
    [ -n "$blocks" ] || fail "plan '$*' failed"
    works " $((blocks * 64)) tokens;" "$@"
}

# Every function of the backend enters its device.
cp "$build/tests/test_enter_cuda" "$dir"
got=0
"$dir/test_enter_cuda" >"$dir/err" 2>&1 || got=$?
[ "$got" = 0 ] || fail "test_enter_cuda failed"
! grep SKIPPED "$dir/err" || fail "test_enter_cuda tested nothing"

peer="--kv-home peer --device cuda:0"
export FAKE_GPUS=2
# shellcheck disable=SC2086 # options are words
{
    works "cache device: GPU 1" $peer --cache-device auto
    works "cache device: GPU 1" $peer --cache-device cuda:1 --select-keys rows
    works "cache device: GPU 0" --kv-home peer --device cuda:1 --cache-device cuda:0
    works "cache device: GPU 0" $peer --cache-device cuda:0
    works "cache device: GPU 0" $peer --cache-device cuda:0 --enforce-eager \
        --select-dense-layers 0 --packs 1
    works "cache device: GPU 1" $peer --cache-device cuda:1 --kv-select tls --select-tiles 4
    works "cache device: GPU 1" $peer --cache-device cuda:1 --kv-select tls --select-tiles 4 \
        --kv-cache-dtype fp8
    FAKE_REPORT=1 works "kv home host" --kv-home host --device cuda
    grep -q '^info: host memory: 0.25 GiB pinned in ' "$dir/err" || fail "home host is not pinned"
    # The copy engine copies to host memory.
    grep -q 'kernels of GPU 0, [1-9][0-9]* 2-D copies' "$dir/err" || fail "puts of home host"
    works "recorded 6 decode graphs" --kv-home host --kv-homes host --device cuda
    works "recorded 24 decode graphs" --kv-home host --device cuda
    works "kv home host" --kv-home host --device cuda --kv-policies full,zip --kv-budget 128
    works "cache device: GPU 1" $peer --cache-device auto --kv-cache-memory-bytes 256M
    works "cache device: GPU 0" $peer --cache-device cuda:0 --kv-cache-memory-bytes 256M
    works "kv home host" --kv-home host --device cuda --kv-cache-memory-bytes 256M
    planned $peer --cache-device cuda:0
    planned $peer --cache-device cuda:1
    planned $peer --cache-device cuda:1 --kv-select tls --select-tiles 4 --kv-cache-dtype fp8
    planned --kv-home host --device cuda
    refused "--cache-device cuda:5: expected cuda:0 to cuda:1" $peer --cache-device cuda:5
    refused "exceeds 70 % of the machine" --kv-home host --device cuda --home-space 60000
    refused "lower --home-space" $peer --cache-device cuda:1 --home-space 16
    refused "--select-tokens 40000: kv home peer supports at most 29" $peer --cache-device cuda:1 \
        --select-tokens 40000
    refused "expected cpu beside a model on cpu" --kv-home peer --device cpu --cache-device cuda:1
    refused "expected cuda:N beside a model on cuda" $peer --cache-device cpu
    FAKE_PEERS=0 refused "GPU 0 and GPU 1 cannot address each other's memory" $peer \
        --cache-device cuda:1
    FAKE_PEERS=0 refused "none of 2 GPUs is a peer of GPU 0" $peer --cache-device auto
    FAKE_GPUS=1 refused "none of 1 GPUs is a peer of GPU 0" $peer --cache-device auto
    FAKE_GPUS=1 works "cache device: GPU 0" $peer --cache-device cuda:0
    FAKE_LOST=1:60 refused "of GPU 1 in " $peer --cache-device cuda:1
    # A GPU that fails during exchanges with host memory, after two thirds of the kernels of three
    # requests one after the other: finished answers stay, and a resumed run has the others.
    seqs=1
    FAKE_REPORT=1 works "kv home host" --kv-home host --device cuda
    kernels=$(sed -n 's/^fake CUDA: \([0-9]*\) kernels.*/\1/p' "$dir/err")
    export FAKE_LOST="0:$((kernels * 2 / 3))"
    run --kv-home host --device cuda
    unset FAKE_LOST
    n=$(wc -l <"$dir/out.jsonl")
    [ "$got" = 3 ] && grep -q '^error: .* of GPU 0 in ' "$dir/err" || fail "a lost GPU in home host"
    [ "$n" -ge 1 ] && [ "$n" -lt 3 ] || fail "a lost GPU: $n answers stay"
    keep=1
    cp "$dir/out.jsonl" "$dir/first"
    works "kv home host" --kv-home host --device cuda --resume
    head -n "$n" "$dir/out.jsonl" | cmp -s - "$dir/first" || fail "a resumed run lost answers"
    seqs=4 keep=
    FAKE_LOST=0:3000 refused "of GPU 0 in " $peer --cache-device cuda:1
    # A model with experts.
    mkdir "$dir/experts"
    cp "$model"/*token*.json "$model/generation_config.json" "$dir/experts"
    sed -e 's/Qwen3ForCausalLM/Qwen3MoeForCausalLM/' \
        -e 's/^{/{"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128,/' \
        "$model/config.json" >"$dir/experts/config.json"
    model="$dir/experts"
    works "kv home host" --kv-home host --device cuda
    works "cache device: GPU 1" $peer --cache-device auto
    planned --kv-home host --device cuda
}

# `auto` does not leave a GPU that lacks what the options ask for; it does leave one that fails.
model=$dense home=
refused "--kv-cache-dtype fp8: the cuda backend does not support it with selectors that can rank" \
    --kv-cache-dtype fp8
refused "the cuda backend does not support it with selectors that can rank" --kv-cache-dtype fp8 \
    --kv-home peer --home-space 0.25 --cache-device auto
FAKE_GPUS=0 run --kv-cache-dtype fp8
[ "$got" = 0 ] || fail "auto without a GPU failed"

# Without an algorithm of cuBLASLt own kernels multiply. Products with FP8 weights are not timed: of
# a dense model only the head is.
for library in 0 1; do
    for type in auto fp8; do
        rm -rf "$dir/cache"
        FAKE_LIBRARY=$library run --device cuda --quantization $type
        [ "$got" = 0 ] || fail "weights $type, cuBLASLt $library"
    done
    n=$(grep -c 'timing matrix products' "$dir/err") || true
    [ "$n" = 1 ] || fail "FP8 weights: $n products were timed, expected 1"
done

# Lists of a retrieval head are made in the graphs of steps: plain ones, and those with lists.
run --kv-select spec --device cuda
[ "$got" = 0 ] || fail "spec failed"
grep -q 'recorded 12 decode graphs' "$dir/err" || fail "spec: expected 12 graphs"
