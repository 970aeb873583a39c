#!/bin/sh
# Forces two documents of examples/prose-base with full KV and compares their likelihood with that
# of the independent reference. Skipped where the checkpoint is not there. BUILD is the build
# directory.
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
    --continue-field continuation --id-field id --arms full --limit 2 --device cpu \
    --progress none --json "$dir/out.json" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
python3 - "$dir/out.json" $model/reference.json <<'END'
import json, sys
task = json.load(open(sys.argv[1]))["tasks"][0]
want = json.load(open(sys.argv[2]))["full"]
arm = task["arms"][0]
got = arm["by_document"]["nll"]
if len(got) != 2 or arm["tokens"] != 2 * 255:
    sys.exit(f"prose: expected 2 documents of 255 tokens, got {len(got)} and {arm['tokens']} tokens")
for document, nll, reference in zip(task["documents"], got, want):
    if abs(nll - reference) > 2e-3:
        sys.exit(f"prose: {document['id']}: expected an NLL of {reference}, got {nll}")
END
echo "prose: ok"
