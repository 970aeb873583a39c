#!/bin/sh
# Every command names what --model lacks first: GGUF files before all else, an architecture that is
# not supported before a tokenizer that is not. `cinch plan` refuses what the engine refuses. BUILD is
# the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
echo "The quick brown fox." >"$dir/text"

# refused TEXT MODEL: every command must exit with 1 and print TEXT.
refused() {
    while read -r command; do
        got=0
        # shellcheck disable=SC2086
        "$cinch" $command --model "$2" >"$dir/log" 2>&1 </dev/null || got=$?
        [ $got = 1 ] && grep -qF -e "$1" "$dir/log" && continue
        echo "cinch $command --model $2: expected exit code 1 and '$1', got exit code $got:"
        cat "$dir/log"
        exit 1
    done <<C
plan
plan --gpu-memory 80G
tokenize --text x
tokenize --text 1 --decode
calibrate --text $dir/text -o $dir/channels
run-batch -i examples/prompts.jsonl -o $dir/o --prompt-field prompt --device cpu
serve --port 0 --device cpu
compare -i examples/prompts.jsonl --prompt-field prompt --arms zip --device cpu
bench throughput --device cpu
C
}

# A tokenizer of another kind, alone and with an architecture that is not supported.
cp -r examples/tiny-reasoner "$dir/unigram"
echo '{"version":"1.0","model":{"type":"Unigram"}}' >"$dir/unigram/tokenizer.json"
refused 'model type "Unigram" is not supported' "$dir/unigram"
cp -r "$dir/unigram" "$dir/gemma"
sed -i 's/Qwen3ForCausalLM/Gemma3ForCausalLM/' "$dir/gemma/config.json"
refused 'architectures: "Gemma3ForCausalLM" is not supported; supported are' "$dir/gemma"
rm "$dir/gemma/tokenizer.json"
refused 'architectures: "Gemma3ForCausalLM" is not supported; supported are' "$dir/gemma"

# GGUF: a file, one without the suffix, a directory, one beside a tokenizer, and one with a config.
printf 'GGUF\003' >"$dir/tiny.Q4_0.gguf"
cp "$dir/tiny.Q4_0.gguf" "$dir/blob"
mkdir "$dir/only"
cp "$dir/tiny.Q4_0.gguf" "$dir/only"
cp -r "$dir/only" "$dir/beside"
cp "$dir/unigram/tokenizer.json" "$dir/beside"
refused "--model $dir/tiny.Q4_0.gguf is a GGUF file, which is not supported: convert it" \
    "$dir/tiny.Q4_0.gguf"
refused "--model $dir/blob is a GGUF file" "$dir/blob"
refused "--model $dir/only has GGUF weights, tiny.Q4_0.gguf, which are not supported: convert" \
    "$dir/only"
refused "--model $dir/beside has GGUF weights, tiny.Q4_0.gguf" "$dir/beside"
refused "--model $dir/text is a file: expected the directory of a checkpoint" "$dir/text"
cd "$dir" # a relative path that looks like the name of a repository
for command in plan "tokenize --text x"; do
    # shellcheck disable=SC2086
    ! "$cinch" $command --model only/tiny.Q4_0.gguf >log 2>&1
    grep -qF -- "--model only/tiny.Q4_0.gguf is a GGUF file" log
done
cp "$OLDPWD"/examples/tiny-reasoner/*.json "$dir/only"
rm "$dir/only/model.safetensors.index.json"
"$cinch" plan --model "$dir/only" >log 2>&1 || { cat log; exit 1; } # memory needs no weights
! "$cinch" bench throughput --device cpu --model "$dir/only" >log 2>&1
grep -qF "has GGUF weights, tiny.Q4_0.gguf" log

# A tokenizer is not needed for a plan, but one that is named must be there.
rm "$dir/only/tokenizer.json"
"$cinch" plan --model "$dir/only" >log 2>&1 || { cat log; exit 1; }
! "$cinch" plan --model "$dir/only" --tokenizer "$dir/unigram" >log 2>&1
grep -qF 'model type "Unigram" is not supported' log
! "$cinch" plan --model "$dir/only" --tokenizer "$dir/only" >log 2>&1
grep -qF "save_pretrained" log
echo "model_dir_check: ok"
