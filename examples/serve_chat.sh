#!/bin/sh
# Sends a chat (whole, then as a stream) and a request with a compressed KV cache, with curl.
#   examples/serve_chat.sh http://127.0.0.1:8000 [KEY]
# Start the server first: cinch serve --model DIR --kv-policies full,zip
set -eu
url=$1
set -- -sS --fail-with-body -H 'Content-Type: application/json' ${2:+-H "Authorization: Bearer $2"}

echo "== the whole answer"
curl "$@" "$url/v1/chat/completions" -d '{
  "messages": [{"role": "user", "content": "Compute 677 * 755 by hand."}],
  "temperature": 0
}'
echo

echo "== as server-sent events"
curl "$@" -N "$url/v1/chat/completions" -d '{
  "messages": [{"role": "user", "content": "Sort: 5 3 9 1"}],
  "temperature": 0, "max_tokens": 30,
  "stream": true, "stream_options": {"include_usage": true}
}'

echo "== with a KV budget of 128 tokens: see usage.kv"
curl "$@" "$url/v1/completions" -d '{
  "prompt": "Compute 677 * 755 by hand.", "max_tokens": 400, "temperature": 0, "ignore_eos": true,
  "kv": {"policy": "zip", "budget": 128, "window": 16}
}'
echo
