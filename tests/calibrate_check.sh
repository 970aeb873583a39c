#!/bin/sh
# Runs `cinch calibrate` on the bundled reasoner: the file that it writes, and the errors for wrong
# texts and options. BUILD is the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
model=examples/tiny-reasoner
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# refuse TEXT ARGUMENTS...: cinch calibrate must exit with 1, print TEXT and write no file.
refuse() {
    text=$1
    shift
    got=0
    "$cinch" calibrate "$@" -o "$dir/refused" >"$dir/out" 2>&1 </dev/null || got=$?
    [ "$got" = 1 ] && grep -qF -e "$text" "$dir/out" && [ ! -e "$dir/refused" ] && return
    echo "cinch calibrate $*: expected exit code 1 and '$text', got exit code $got:"
    cat "$dir/out"
    exit 1
}

# calibrate NAME ARGUMENTS...: writes $dir/NAME.
calibrate() {
    name=$1
    shift
    "$cinch" calibrate --model $model -o "$dir/$name" "$@" >"$dir/log" 2>&1 || {
        cat "$dir/log"
        exit 1
    }
}

head -c 3000 README.md >"$dir/a.txt"
head -c 2000 docs/GLOSSARY.md >"$dir/b.txt"
calibrate one --text "$dir/a.txt" "$dir/b.txt"
grep -q 'b.txt: [0-9]* tokens' "$dir/log"
tokens=$(sed -n 's/.*txt: \([0-9]*\) tokens$/\1/p' "$dir/log" | awk '{ n += $1 } END { print n }')
grep -aq '"importance":"max","tokens":"'"$tokens"'"' "$dir/one"
grep -aq '"channels":{"dtype":"U8","shape":\[6,2,16\]' "$dir/one"
grep -aq '"offsets":{"dtype":"F32","shape":\[6,2,16\]' "$dir/one"

# The same text gives the same bytes; other windows give other channels.
calibrate again --text "$dir/a.txt" "$dir/b.txt"
cmp "$dir/one" "$dir/again"
calibrate short --calibrate-len 32 --text "$dir/a.txt" "$dir/b.txt"
tail -c 192 "$dir/one" >"$dir/want"
tail -c 192 "$dir/short" | cmp -s - "$dir/want" && {
    echo "calibrate: short: the channels are those of the defaults"
    exit 1
}

# Without -o the file goes beside the model.
mkdir "$dir/model"
ln -s "$PWD/$model"/*.json "$PWD/$model"/model-*.safetensors "$dir/model"
"$cinch" calibrate --model "$dir/model" --text "$dir/a.txt" "$dir/b.txt" >"$dir/log" 2>&1
cmp "$dir/one" "$dir/model/select.safetensors"

: >"$dir/empty.txt"
refuse "--text is missing" --model $model
refuse "--model is missing" --text "$dir/a.txt"
refuse "empty.txt: expected text, got an empty file" --model $model --text "$dir/empty.txt"
printf 'text\377' >"$dir/bytes.txt"
refuse "bytes.txt: byte 5 is not UTF-8: expected text" --model $model --text "$dir/bytes.txt"
refuse "nowhere.txt" --model $model --text "$dir/a.txt" "$dir/nowhere.txt"
refuse "--calibrate-len 9000 exceeds the context length of 8192" --model $model --text "$dir/a.txt" \
    --calibrate-len 9000
refuse "calibrate-len 8: expected" --model $model --text "$dir/a.txt" --calibrate-len 8
refuse "--importance mean: the option no longer exists" --model $model --text "$dir/a.txt" --importance mean
refuse "--chat-template has no effect on a text file" --model $model --text "$dir/a.txt" \
    --chat-template chatml
refuse "is an option of the engine section" --model $model --text "$dir/a.txt" --device cpu
echo "calibrate: ok"
