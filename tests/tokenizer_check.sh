#!/bin/sh
# Token ids and decoded texts must equal those of the package tokenizers. They are compared on
# TOKENIZER_TEXTS (2000) random texts, for the bundled checkpoint, the small tokenizers of
# tests/golden/tokenizer and its variants with other pre-tokenizers, and the 150k vocabulary of Qwen,
# which the package dashscope contains. Both packages come from PyPI on the first run and stay in
# BUILD/reference. Prints SKIPPED without them; with REQUIRE_REFERENCES=1 that is a failure.
set -eu
build=${BUILD:-build}
here=tests/golden/tokenizer
reference=$build/reference
python=${PYTHON:-python3}
texts=${TOKENIZER_TEXTS:-2000}

skip() {
    echo "SKIPPED tokenizer_check: $1"
    [ "${REQUIRE_REFERENCES:-0}" = 0 ]
    exit
}

mkdir -p "$reference"
if ! "$python" -c 'import tokenizers' 2>/dev/null; then
    if [ ! -x "$reference/venv/bin/python" ]; then
        "$python" -m venv "$reference/venv" || skip "no python3 with venv"
    fi
    python=$reference/venv/bin/python
    "$python" -c 'import tokenizers' 2>/dev/null ||
        "$python" -m pip install -q tokenizers==0.23.3 ||
        skip "pip cannot install the package tokenizers"
fi
if [ ! -s "$reference/qwen/tokenizer.json" ]; then
    "$python" -m pip download -q --no-deps -d "$reference" dashscope ||
        skip "pip cannot download the package dashscope, which has the Qwen vocabulary"
    "$python" -m zipfile -e "$reference"/dashscope-*.whl "$reference/dashscope"
    "$python" $here/qwen_tokenizer.py "$reference/dashscope/dashscope/resources/qwen.tiktoken" \
        "$reference/qwen"
fi
"$python" $here/compare.py "$build/cinch" examples/tiny-reasoner $here/llama3 $here/gpt2 \
    "$reference/qwen" --count "$texts" --long
"$python" $here/variants.py "$reference/variants"
"$python" $here/compare.py "$build/cinch" "$reference"/variants/* --count $((texts / 5)) --long
