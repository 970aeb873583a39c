#!/bin/sh
# A GPU asked for where its backend is missing, damaged or another build's: one clear line that says
# what to do, exit code 1. With --device auto the CPU runs instead.
set -eu
build=$(realpath "${BUILD:-build}")
model=$(realpath examples/tiny-reasoner)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin"
cp "$build/cinch" "$dir/bin/cinch"
head -1 examples/prompts.jsonl >"$dir/in.jsonl"

# run DEVICE: exit code in $got, standard error in $dir/err.
run() {
    got=0
    rm -f "$dir/out.jsonl"
    "$dir/bin/cinch" run-batch --model "$model" --device "$1" --max-tokens 2 --log-level error \
        --prompt-field prompt -i "$dir/in.jsonl" -o "$dir/out.jsonl" \
        2>"$dir/err" >/dev/null || got=$?
}

# refused TEXT: --device cuda ends in one line that has the text and the way out.
refused() {
    run cuda
    [ "$got" = 1 ] && [ "$(wc -l <"$dir/err")" = 1 ] && grep -qF -e "$1" "$dir/err" &&
        grep -qF -e "--device cpu" "$dir/err" && return
    echo "--device cuda: exit $got, wanted 1 and one line with '$1':"
    cat "$dir/err"
    exit 1
}

refused "is neither in"
run auto
[ "$got" = 0 ] || { echo "--device auto: exit $got"; cat "$dir/err"; exit 1; }
head -c 4096 /dev/zero >"$dir/bin/cinch-cuda.so"
refused "invalid ELF header"
echo "int nothing;" >"$dir/other.c"
"${CC:-cc}" -shared -fPIC -o "$dir/bin/cinch-cuda.so" "$dir/other.c"
refused "no cn_backend_cuda_open"
# The real one, where it was built and no GPU is: no driver, no device, or other sources.
if [ -e "$build/cinch-cuda.so" ] && [ ! -e /dev/nvidia0 ]; then
    cp "$build/cinch-cuda.so" "$dir/bin/cinch-cuda.so"
    refused "cuda"
fi
