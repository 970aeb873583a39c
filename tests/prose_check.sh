#!/bin/sh
# Runs the command of README's section on selection: forces four documents of examples/prose-base.
# Compares their likelihood with full KV with that of the independent reference, and every arm with
# README's table. Skipped where the checkpoint is not there. BUILD is the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
model=examples/prose-base
if [ ! -e $model/documents.jsonl ]; then
    echo "prose: skipped: $model is missing, the natural-text checkpoint of 25 MB"
    exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$cinch" compare --model $model -i $model/documents.jsonl --prompt-field prompt \
    --continue-field continuation --id-field id --arms full,ds:256,window:256 --limit 4 --device cpu \
    --progress none --json "$dir/out.json" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
python3 - "$dir/out.json" $model/reference.json README.md <<'END'
import json, sys
task = json.load(open(sys.argv[1]))["tasks"][0]
want = json.load(open(sys.argv[2]))["full"]
arm = task["arms"][0]
got = arm["by_document"]["nll"]
if len(got) != 4 or arm["tokens"] != 4 * 255:
    sys.exit(f"prose: expected 4 documents of 255 tokens, got {len(got)} and {arm['tokens']} tokens")
for document, nll, reference in zip(task["documents"], got, want):
    if abs(nll - reference) > 2e-3:
        sys.exit(f"prose: {document['id']}: expected an NLL of {reference}, got {nll}")
rows = [line.split("|") for line in open(sys.argv[3])]
shown = {row[1].strip(): float(row[2]) for row in rows if len(row) == 11 and row[2].strip()[0].isdigit()}
for arm in task["arms"]:
    nll = sum(arm["by_document"]["nll"]) / 4
    if abs(nll - shown[arm["arm"]]) > 6e-4:
        sys.exit(f"prose: README shows an NLL of {shown[arm['arm']]} for {arm['arm']}, got {nll:.4f}")
END
echo "prose: ok"
