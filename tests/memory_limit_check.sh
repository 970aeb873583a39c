#!/bin/sh
# memory_limit_check.sh - every command under many limits of address space: it works, or ends with
# its error, and never hangs.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
model="--model examples/tiny-reasoner"
printf '{"prompt": "a", "max_tokens": 2}\n' >"$dir/in"
head -c 3000 docs/DESIGN.md >"$dir/text"
small="--kv-cache-memory-bytes 16M --max-model-len 256 --max-num-batched-tokens 64 --max-num-seqs 4"

# try KIB COMMAND...: runs it under the limit.
try() {
    limit=$1
    shift
    rm -f "$dir"/out*
    code=0
    # shellcheck disable=SC2086
    (ulimit -v "$limit" && exec timeout -s KILL 60 "$cinch" $*) >"$dir/stdout" 2>"$dir/log" ||
        code=$?
    if [ $code -gt 127 ] || { [ $code != 0 ] && [ ! -s "$dir/log" ]; }; then
        echo "memory_limit: ulimit -v $limit: cinch $*: exit code $code"
        cat "$dir/log"
        exit 1
    fi
}

for limit in 20000 50000 60000 80000 100000 130000 200000 300000 500000 1000000 2000000; do
    for command in "help" "plan $model" "tokenize $model --text a" \
        "calibrate $model --text $dir/text -o $dir/out" "serve $model --uds $dir/socket" \
        "run-batch $model -i $dir/in -o $dir/out --prompt-field prompt" \
        "compare $model -i $dir/in --prompt-field prompt --arms full" \
        "bench throughput $model --num-prompts 1 --input-len 4 --output-len 2"; do
        try $limit $command
    done
done
# Products of processors whose kernels need buffers.
for core in Haswell Sandybridge; do
    grep -qw "$([ $core = Haswell ] && echo avx2 || echo avx)" /proc/cpuinfo || continue
    export OPENBLAS_CORETYPE=$core
    for limit in 130000 160000 200000 300000 400000 500000 700000 1000000; do
        try $limit "run-batch $model -i $dir/in -o $dir/out --prompt-field prompt $small --threads 2"
    done
    [ $code = 0 ] || { echo "memory_limit: $core: exit code $code"; cat "$dir/log"; exit 1; }
done
echo "memory_limit: ok"
