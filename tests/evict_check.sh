#!/bin/sh
# Eviction by every rule, end to end on both bundled checkpoints, against an independent program in
# NumPy that was written from DESIGN.md section 2: the likelihood of forced texts must be equal. NumPy
# comes from PyPI on the first run and stays in BUILD/reference. Prints SKIPPED without it or without
# the checkpoints; with REQUIRE_REFERENCES=1 that is a failure. BUILD is the build directory.
set -eu
. tests/lib/serve.sh
cinch=$(realpath "${BUILD:-build}/cinch")
prose=examples/prose-base
reasoner=examples/tiny-reasoner
[ -e $prose/documents.jsonl ] || skip "$prose is missing, the natural-text checkpoint of 25 MB"
python=${BUILD:-build}/plot-env/bin/python # of `make plot-env`
"$python" -c 'import numpy' 2>/dev/null || need_python evict numpy==2.4.6
export OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# same MODEL BLOCK ARMS: cinch and the reference agree about the texts of $dir/texts.
same() {
    "$cinch" compare --model "$1" -i "$dir/texts" --prompt-field prompt --continue-field continuation \
        --id-field id --block-size "$2" --device cpu --no-window-baseline --progress none \
        --kv-cache-memory-bytes 256M --json "$dir/out.json" --arms "$3" >"$dir/log" 2>&1 &&
        "$python" tests/golden/evict_reference.py "$cinch" "$1" "$dir/out.json" "$dir/texts" \
            --block-size "$2" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
}

# Documentation. The last block of the prompt is partly full.
python3 - $prose/documents.jsonl >"$dir/texts" <<'P'
import json, sys
text = json.loads(open(sys.argv[1]).readlines()[3])["prompt"][2000:]
print(json.dumps({"id": "text", "prompt": text[:1200], "continuation": text[1200:1900]}))
P
same $prose 32 full,window:128,zip:128:rule=zipage,zip:128,zip:128:observe=128:recent=0.25:pooling=never,\
zip:128:rule=peak,zip:128:rule=peak:observe=100:alpha=0.9:redundancy=flash,\
zip:128:head_rule=mean:redundancy=none,zip:128:rule=follow,zip:192:rule=follow:window=5:sinks=0:recent=0.25,\
zip:128:rule=zipage:window=48:alpha=0.5:pooling=always:combine=subtract

# The reasoner, with its prompts as texts.
python3 - $reasoner/prompts/story.jsonl >"$dir/texts" <<'P'
import json, sys
prompt, more = [json.loads(line)["prompt"] for line in open(sys.argv[1]).readlines()[:2]]
print(json.dumps({"id": "story", "prompt": prompt, "continuation": more}))
P
same $reasoner 16 full,zip:64,zip:64:rule=peak:move=fill,zip:64:rule=zipage:move=fill,\
zip:96:rule=scaled:no-global:sinks=0:recent=40,zip:64:redundancy=none:observe=48,\
zip:64:rule=follow:sinks=11:recent=20,zip:64:rule=follow:recent=16:move=fill,\
zip:64:rule=peak:observe=200:p=0.9:tau=0.1:lambda=0.6,zip:64:rule=peak:head_rule=mean
echo "evict: ok"
