#!/bin/bash
# nightly_routers.sh - vllm-router and sglang-router from PyPI before two servers: answers and streams
# are right, without a warning for what the routers add to each body. One server is killed: later
# requests succeed. BUILD is the build directory.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
router="" first="" second=""
end() {
    kill $router 2>/dev/null || true
    kill -KILL $first $second 2>/dev/null || true
    rm -rf "$dir"
}
trap end EXIT
need_python routers vllm-router==0.1.17 sglang-router==0.3.2
port=$("$python" -c 'import socket
s = [socket.socket() for i in range(2)]
for at in s: at.bind(("127.0.0.1", 0))
print(*(at.getsockname()[1] for at in s))')

# through MODULE: starts two servers behind the router, and asks.
through() {
    serve --device cpu --threads 1 --kv-cache-memory-bytes 32M --max-num-seqs 16
    first=$served one=$url
    serve --device cpu --threads 1 --kv-cache-memory-bytes 32M --max-num-seqs 16
    second=$served two=$url
    "$python" -m "$1" --host 127.0.0.1 --port "${port% *}" --policy round_robin \
        --worker-urls "$one" "$two" --prometheus-host 127.0.0.1 --prometheus-port "${port#* }" \
        >"$dir/router.log" 2>&1 &
    router=$!
    "$python" tests/clients/routers.py "http://127.0.0.1:${port% *}" "$one" "$two" "$first" ||
        { tail -n 20 "$dir/router.log"; exit 1; }
    kill $router
    wait $router 2>/dev/null || true
    router=""
    stop # the second
    echo "$1: ok"
}
through vllm_router.launch_router
through sglang_router.launch_router
