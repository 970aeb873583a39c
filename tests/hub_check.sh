#!/bin/sh
# Checks that --model org/name finds a snapshot in the Hugging Face cache, where its variables say,
# and otherwise names the command that downloads it. BUILD is the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
model=$(realpath examples/tiny-reasoner)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
unset HF_HOME HF_HUB_CACHE XDG_CACHE_HOME
export HOME="$dir/home"
commit=0123456789abcdef0123456789abcdef01234567

fail() {
    echo "$1"
    cat "$dir/log"
    exit 1
}

# store CACHE: puts the checkpoint into a cache as huggingface_hub does, blobs and links.
store() {
    repository=$1/models--acme--tiny-1
    mkdir -p "$repository/refs" "$repository/snapshots/$commit"
    printf %s $commit >"$repository/refs/main"
    ln -s "$model"/* "$repository/snapshots/$commit"
}

# found VARIABLE=VALUE...: the plan must find acme/tiny-1 with this environment.
found() {
    env "$@" "$cinch" plan --model acme/tiny-1 >"$dir/log" 2>&1 || fail "not found with $*"
    grep -q "Qwen3ForCausalLM, 10.8 M parameters" "$dir/log" || fail "another model with $*"
}

# missing CACHE VARIABLE=VALUE...: the error must name the cache and the command.
missing() {
    cache=$1
    shift
    ! env "$@" "$cinch" plan --model acme/tiny-1 >"$dir/log" 2>&1 || fail "found with $*"
    grep -qF "not in the Hugging Face cache $cache; to download it: hf download acme/tiny-1" \
        "$dir/log" || fail "no command with $*"
}

missing "$dir/home/.cache/huggingface/hub" A=a
missing "$dir/x/huggingface/hub" XDG_CACHE_HOME="$dir/x"
missing "$dir/h/hub" HF_HOME="$dir/h" XDG_CACHE_HOME="$dir/x"
missing "$dir/c" HF_HUB_CACHE="$dir/c" HF_HOME="$dir/h"
for cache in "$dir/home/.cache/huggingface/hub" "$dir/x/huggingface/hub" "$dir/h/hub" "$dir/c"; do
    store "$cache"
done
found A=a
found XDG_CACHE_HOME="$dir/x"
found HF_HOME="$dir/h"
found HF_HUB_CACHE="$dir/c" HF_HOME="$dir/nothing"

# Without refs/main the only snapshot counts. Of two, none does.
rm -r "$dir/c/models--acme--tiny-1/refs"
found HF_HUB_CACHE="$dir/c"
mkdir "$dir/c/models--acme--tiny-1/snapshots/f"
missing "$dir/c" HF_HUB_CACHE="$dir/c"
# A download that was broken off before its files has a ref alone.
rm -r "$dir/h/hub/models--acme--tiny-1/snapshots"
missing "$dir/h/hub" HF_HOME="$dir/h"

# A directory of that name comes first, and other names are paths.
mkdir -p "$dir/acme"
ln -s "$model" "$dir/acme/tiny-1"
(cd "$dir" && HOME=/none "$cinch" plan --model acme/tiny-1 >"$dir/log" 2>&1) || fail "directory"
! "$cinch" plan --model ../acme/tiny-1 >"$dir/log" 2>&1 || fail "a path"
grep -q "no such directory: expected" "$dir/log" || fail "a path is no name"

# Answers have the given name.
head -1 examples/prompts.jsonl >"$dir/in"
"$cinch" run-batch --model acme/tiny-1 -i "$dir/in" -o "$dir/out" --prompt-field prompt \
    --max-tokens 1 >"$dir/log" 2>&1 || fail "run-batch"
grep -q '"model":"acme/tiny-1"' "$dir/out" || fail "the answer has another name"
echo "hub: ok"
