#!/bin/sh
# With --device cuda and a GPU backend that is missing, damaged or of another build, cinch prints
# one line that names the way out and exits with 1. With --device auto it uses the CPU.
set -eu
build=$(realpath "${BUILD:-build}")
model=$(realpath examples/tiny-reasoner)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin"
cp "$build/cinch" "$dir/bin/cinch"
head -1 examples/prompts.jsonl >"$dir/in.jsonl"

# run DEVICE: runs one prompt. Sets $got to the exit code; standard error is in $dir/err.
run() {
    got=0
    rm -f "$dir/out.jsonl"
    "$dir/bin/cinch" run-batch --model "$model" --device "$1" --max-tokens 2 --log-level error \
        --prompt-field prompt -i "$dir/in.jsonl" -o "$dir/out.jsonl" \
        2>"$dir/err" >/dev/null || got=$?
}

# refused TEXT: --device cuda must fail with one line that contains TEXT and the way out.
refused() {
    run cuda
    [ "$got" = 1 ] && [ "$(wc -l <"$dir/err")" = 1 ] && grep -qF -e "$1" "$dir/err" &&
        grep -qF -e "--device cpu" "$dir/err" && return
    echo "--device cuda: expected exit code 1 and one line with '$1', got exit code $got:"
    cat "$dir/err"
    exit 1
}

refused "not found in"
run auto
[ "$got" = 0 ] || { echo "--device auto: exit $got"; cat "$dir/err"; exit 1; }
head -c 4096 /dev/zero >"$dir/bin/cinch-cuda.so"
refused "cinch-cuda.so is damaged or was built for other libraries: rebuild it (make cuda)"
echo "int nothing;" >"$dir/other.c"
"${CC:-cc}" -shared -fPIC -o "$dir/libneeded.so.7" "$dir/other.c"
"${CC:-cc}" -shared -fPIC -Wl,--no-as-needed -o "$dir/bin/cinch-cuda.so" "$dir/other.c" \
    "$dir/libneeded.so.7"
mv "$dir/libneeded.so.7" "$dir/elsewhere"
refused "cinch-cuda.so needs libneeded.so.7, which is missing or has another version: install"
"${CC:-cc}" -shared -fPIC -o "$dir/bin/cinch-cuda.so" "$dir/other.c"
refused "no cn_backend_cuda_open"
# header_sum DIR: prints the checksum of the shared headers that the Makefile in DIR computes.
# shellcheck disable=SC2016 # make expands it
header_sum() {
    "${MAKE:-make}" -s --no-print-directory -C "$1" BUILD=build \
        --eval='header-sum: ; @echo $(HEADER_SUM)' header-sum
}

# The checksum depends on the contents of the headers, not only on the sizes of the structs.
mkdir "$dir/tree"
cp --parents Makefile engine/*.h engine/base/*.h paged/*.h "$dir/tree"
sum=$(header_sum "$dir/tree")
[ "$sum" = "$(cat "$build/header-sum")" ] || { echo "header sum $sum of equal headers"; exit 1; }
sed -i 's/uint32_t device;/uint32_t other;/; s/uint32_t beside;/uint32_t device;/
    s/uint32_t other;/uint32_t beside;/' "$dir/tree/engine/ops.h"
[ "$sum" != "$(header_sum "$dir/tree")" ] || { echo "equal sums of other headers"; exit 1; }

# The real backend on a machine without a GPU fails too: no driver, no device, or another build.
if [ -e "$build/cinch-cuda.so" ] && [ ! -e /dev/nvidia0 ]; then
    cp "$build/cinch-cuda.so" "$dir/bin/cinch-cuda.so"
    refused "cuda"
    # A program with another sum refuses it before it looks for a device.
    # shellcheck disable=SC2046
    "${CC:-cc}" -I. -D_GNU_SOURCE -DCN_HEADER_SUM=1 -o "$dir/bin/cinch" engine/start/device_choice.c \
        "$build/engine/cmd/main.o" "$build/libcinch.a" \
        $(pkg-config --cflags --libs jansson libpcre2-8 libutf8proc libevent_core libmd) \
        -lopenblas -lm -ldl -pthread
    refused "built from different headers"
fi
