#!/bin/sh
# Runs the curl scripts of examples/ against a server that needs a key, with and without the key.
# BUILD is the build directory.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
trap clean_up EXIT

# expect TEXT: the last output must contain TEXT.
expect() {
    grep -qF -e "$1" "$dir/out" && return
    echo "no '$1' in:"
    cat "$dir/out"
    exit 1
}

key=a-key-for-the-test
serve --kv-policies full,zip --kv-cache-memory-bytes 64M --api-key $key --spool "$dir/spool"
examples/serve_chat.sh "$url" $key >"$dir/out"
expect '511135'
expect 'data: [DONE]'
expect '"finish_reason":"length"'
expect '"policy":"zip"'
! grep -q '"compressions":0,.*zip' "$dir/out"
! examples/serve_chat.sh "$url" >"$dir/out" 2>&1
expect 'invalid_api_key'
examples/serve_batch.sh "$url" examples/serve_batch.jsonl $key >"$dir/out"
expect 'started batch_'
expect '511135'
[ "$(grep -c '"custom_id"' "$dir/out")" = 3 ]
# A failed line is in the error file. When all lines fail, the error file is the only one.
cat >"$dir/failing.jsonl" <<'J'
{"custom_id": "wrong", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}
J
examples/serve_batch.sh "$url" "$dir/failing.jsonl" $key >"$dir/out"
expect '"custom_id":"wrong"'
stop
echo "serve examples: ok"
