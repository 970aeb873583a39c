#!/bin/sh
# Runs the unmodified packages openai, litellm and langchain-openai from PyPI against a running
# server, and checks its metrics with the parser of Prometheus. BUILD is the build directory.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
trap clean_up EXIT

need_python clients openai==3.52.0 prometheus_client==0.26.0
key=a-key-for-the-test
(umask 077 && echo "# API keys
test:$key" >"$dir/keys")
serve --served-model-name tiny,org/tiny --kv-policies full,zip --kv-selectors ds --select-tokens 64 \
    --kv-cache-memory-bytes 128M --tool-call-parser hermes --api-key-file "$dir/keys" --spool "$dir/spool"
"$python" tests/clients/openai_requests.py "$url" $key
"$python" tests/clients/openai_batches.py "$url" $key
clients=$python
need_python frameworks litellm==1.106.2 mcp==2.3.0 langchain-openai==1.7.3
"$python" tests/clients/frameworks.py "$url" $key 2>"$dir/frameworks.log" ||
    { cat "$dir/frameworks.log"; exit 1; }
stop
# The access log has a line of JSON for each request, with the name of the key and never the key.
"$python" - "$dir/access.log" $key <<'P'
import json, sys
text = open(sys.argv[1]).read()
lines = [json.loads(line) for line in text.splitlines()]
assert len(lines) > 25 and sys.argv[2] not in text, len(lines)
assert any("test" in line.values() for line in lines), lines[0]
P
rm "$dir/access.log"
for parser in hermes llama3_json; do
    serve --tool-call-parser $parser --chat-template qwen3 --api-key-file "$dir/keys" \
        --kv-cache-memory-bytes 32M
    "$clients" tests/clients/openai_tools.py "$url" $key
    "$python" tests/clients/framework_tools.py "$url" $key >"$dir/frameworks.log" 2>&1 ||
        { cat "$dir/frameworks.log"; exit 1; }
    grep "^l.*_.*call" "$dir/frameworks.log"
    stop
done
rm "$dir/access.log"
serve --tool-call-parser hermes --chat-template qwen3 --reasoning-parser qwen3 --spool "$dir/spool" \
    --api-key-file "$dir/keys" --kv-cache-memory-bytes 64M
"$clients" tests/clients/openai_responses.py "$url" $key
"$python" tests/clients/framework_responses.py "$url" $key >"$dir/frameworks.log" 2>&1 ||
    { cat "$dir/frameworks.log"; exit 1; }
grep "^l.*_responses$" "$dir/frameworks.log"
stop
rm "$dir/access.log"
serve --served-model-name tiny,alias,org/name:1 --api-key-file "$dir/keys" --root-path /llm \
    --allowed-origins https://a.example,https://b.example --kv-cache-memory-bytes 32M
"$python" tests/clients/http_surface.py "$url" $key "$dir/access.log"
stop
echo "serve clients: ok"
