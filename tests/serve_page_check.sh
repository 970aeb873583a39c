#!/bin/sh
# Opens the server's page in a headless Chromium while requests run. The page must show the real
# state, also in one column, and its content security policy must not block the page's own code.
# BUILD is the build directory. Prints SKIPPED without a Chromium; with REQUIRE_REFERENCES=1 that
# is a failure.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
trap clean_up EXIT

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
    skip "no chromium"
key=a-key-for-the-test

# open_page WIDTH: writes the page after a few polls to $dir/page and its console to $dir/console.
# Sends the key in the way a browser sends typed credentials.
open_page() {
    timeout 60 "$browser" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage \
        --user-data-dir="$dir/profile" --window-size="$1,900" --enable-logging=stderr \
        --virtual-time-budget=5000 --dump-dom "$(echo "$url" | sed "s|//|//operator:$key@|")/" \
        >"$dir/page" 2>"$dir/console"
    if grep -qi 'CONSOLE.*\(refused\|violat\|error\)' "$dir/console"; then
        grep CONSOLE "$dir/console"
        exit 1
    fi
}

# expect PATTERN: the page must match PATTERN.
expect() {
    tr '\n' ' ' <"$dir/page" | grep -qE "$1" && return
    echo "the page has no $1:"
    sed '/<style/,/<\/style>/d; /<script/,/<\/script>/d' "$dir/page"
    exit 1
}

# ask PATH OPTIONS...: runs curl on a route with the key.
ask() {
    path=$1
    shift
    curl -sS --fail-with-body "$url$path" -H "Authorization: Bearer $key" "$@"
}

serve --kv-policy zip --kv-budget 128 --kv-cache-memory-bytes 64M --api-key "$key" \
    --spool "$dir/spool"
# A job of two requests that end at once, one that fails, and three that keep running.
for i in 1 2 3 4 5 6; do
    case $i in 1 | 2) more='"max_tokens": 2' ;; 3) more='"top_p": 7' ;;
    *) more='"max_tokens": 8000, "ignore_eos": true' ;; esac
    echo '{"custom_id": "'$i'", "method": "POST", "url": "/v1/completions",
        "body": {"prompt": "Sort: 3 1 '$i'", '"$more"'}}' | tr -d '\n'
    echo
done >"$dir/job.jsonl"
file=$(ask /v1/files -F purpose=batch -F "file=@$dir/job.jsonl" | sed 's/.*"id": *"\([^"]*\)".*/\1/')
ask /v1/batches -H 'Content-Type: application/json' -d '{"input_file_id": "'"$file"'",
    "endpoint": "/v1/completions", "completion_window": "24h",
    "metadata": {"name": "<b>night</b> run"}}' >"$dir/batch"
sleep 4
open_page 1280
expect '<span class="id">&lt;b&gt;night&lt;/b&gt; run</span><span class="good">in progress</span>'
expect '<span class="left">about [0-9]+ (s|min|h)[^<]* left</span>'
expect 'aria-valuemax="6" aria-valuenow="3"'
expect '<i class="done" style="width: 33.33[0-9]*%;"></i><i class="failed" style="width: 16.66[0-9]*%'
expect '3 of 6 · 1 failed · batch_'
expect '<span id="model">tiny</span>'
expect '<span id="state" class="good" role="status">working</span>'
expect '<span id="running">3</span>'
expect '<span id="rate">[1-9][0-9,]*</span>'
expect '<span id="kv">[1-9][0-9]? %</span>'
expect '<div class="note" id="freed">[0-9.]+ .iB in total, by [0-9,]+ compressions?</div>'
expect '<path class="line first" d="M[0-9]'
expect 'id="message" role="alert" hidden'
expect '<th scope="row">length limit reached</th><td>2</td>'
open_page 500 # one column, as on a phone
expect '<span id="running">3</span>'
expect 'id="chart-kv"[^>]*viewBox="0 0 4[0-9][0-9] '
curl -sS "$url/" -o "$dir/refused" -w '%{http_code}' | grep -qx 401
kill -KILL "$served"
served=""
echo "serve page: ok"
