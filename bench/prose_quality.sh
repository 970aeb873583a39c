#!/bin/sh
# prose_quality.sh OUTDIR [OPTION...] - eviction on examples/prose-base and held-out documents. Forces the
# 64 documents of the example, on which knobs were chosen, and 117 others, which are reported, with
# `cinch compare`, which takes the options, for example --arms zip:256,zip:512 --device cuda.
#
# The corpus of the checkpoint is made again in OUTDIR, which takes 20 minutes and 3 GB: Debian 12's
# documentation packages in the versions that corpus.md names. bench/prose_texts.py says which documents are
# taken. The folder keeps second.jsonl; a second run uses it. Environment: CINCH (build/cinch), BUILD
# (build), ONLY (first or second: those documents alone).
set -eu
cd "$(dirname "$0")/.."
out=${1:?usage: $0 OUTDIR [OPTION...]}
shift
. tests/lib/serve.sh
mkdir -p "$out"
out=$(realpath "$out")
example=examples/prose-base
if [ ! -s "$out/second.jsonl" ]; then
    command -v mandoc >/dev/null || skip "no mandoc: apt-get install mandoc"
    need_python prose lxml==6.1.3 xxhash==4.1.0 numpy==2.4.6 tokenizers==0.23.3
    mkdir -p "$out/packages"
    sed -nE 's/^\| ([^ _]+)_(\S+)_(all|amd64) \|.*/\1=\2/p' $example/corpus.md |
        (cd "$out/packages" && xargs apt-get download -qq)
    "$python" $example/make_corpus.py extract "$out/packages" "$out/corpus"
    "$python" $example/make_corpus.py merge "$out/corpus"
    "$python" bench/prose_texts.py "$out/corpus" "$out/second.tmp"
    mv "$out/second.tmp" "$out/second.jsonl"
fi
cp $example/documents.jsonl "$out/first.jsonl"
texts=
for half in ${ONLY:-first second}; do texts="$texts $out/$half.jsonl"; done
# shellcheck disable=SC2086
exec "${CINCH:-build/cinch}" compare --model $example -i $texts --prompt-field prompt \
    --continue-field continuation --id-field id --block-size 64 "$@"
