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
    timeout 600 "$browser" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage \
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
# Long enough for a compression of each running line, and for a rate.
tries=0
until ask /stats | grep -qE '"compressions":([3-9]|[1-9][0-9])'; do
    tries=$((tries + 1))
    [ $tries -lt 3000 ] || { echo "no compressions"; ask /stats; exit 1; }
    sleep 0.2
done
sleep 2
open_page 1280
expect '<span class="id">&lt;b&gt;night&lt;/b&gt; run</span><span class="good">in progress</span>'
expect '<span class="left">about [0-9]+ (s|min|h)[^<]* left, done about ([A-Z][a-z][a-z],? )?[0-2][0-9]:[0-5][0-9]</span>'
expect 'aria-valuemax="100" aria-valuenow="[0-9]+"'
expect '<i class="done" style="width: [0-9.]+%;"></i><i class="failed" style="width: 16.66[0-9]*%'
expect 'job.jsonl · 3 of 6 lines · 1 failed · [0-9,k. ]+ of about [0-9,k. ]+ output tokens · batch_'
expect '<span class="key" id="key-done">done</span><span class="key failed" id="key-failed">failed</span>'
expect '<span class="key">in use</span><span class="key pale">prefix cache</span>'
expect '<th colspan="4" scope="colgroup">batch requests</th>'
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
rm -r "$dir/spool"

# ---- in a browser that is told its size and colours ----

need_python page playwright==1.65.2
# browse WHAT...: runs the client.
browse() {
    "$python" tests/clients/page.py "$browser" "$url/" "$key" "$@" || exit 1
}

# job NAME LINES BODY: starts a job of equal lines and sets $batch. The file is NAME.jsonl.
job() {
    for i in $(seq 1 "$2"); do
        echo '{"custom_id": "'"$i"'", "method": "POST", "url": "/v1/completions", "body": {'"$3"'}}'
    done >"$dir/$1.jsonl"
    file=$(ask /v1/files -F purpose=batch -F "file=@$dir/$1.jsonl" | sed 's/.*"id": *"\([^"]*\)".*/\1/')
    batch=$(ask /v1/batches -H 'Content-Type: application/json' -d '{"input_file_id": "'"$file"'",
        "endpoint": "/v1/completions", "completion_window": "24h"}' |
        sed 's/.*"id": *"\(batch_[^"]*\)".*/\1/')
}

# Without a spool the page says how batches are enabled.
serve --kv-cache-memory-bytes 64M --api-key "$key"
browse text 'Batches are off. To enable them, start the server with --spool DIR'
kill -KILL "$served"
served=""

serve --kv-cache-memory-bytes 64M --api-key "$key" --spool "$dir/spool" --max-num-seqs 8
browse text 'No batch jobs\.' 'no request yet'
for i in 1 2 3 4 5 6; do job "old-$i" 1 '"prompt": "Sort: 3 1", "max_tokens": 2'; done
echo nonsense >"$dir/broken.jsonl"
file=$(ask /v1/files -F purpose=batch -F "file=@$dir/broken.jsonl" | sed 's/.*"id": *"\([^"]*\)".*/\1/')
ask /v1/batches -H 'Content-Type: application/json' -d '{"input_file_id": "'"$file"'",
    "endpoint": "/v1/completions", "completion_window": "24h"}' >"$dir/batch"
tries=0
until ask "/v1/batches?limit=9" >"$dir/list" && ! grep -qE '"status":"(validating|in_progress|finalizing)"' "$dir/list"; do
    tries=$((tries + 1))
    [ $tries -lt 3000 ] || { echo "the jobs do not end"; cat "$dir/list"; exit 1; }
    sleep 0.2
done
browse look
browse text '7 finished jobs, 1 failed'
open_page 1280
expect 'line 1: the line: column 8: not JSON'
# Lines so long that none has finished when the job is shown, however late that is.
job night 24 '"prompt": "Sort: 3 1", "max_tokens": 8000, "ignore_eos": true'
sleep 2
browse text 'night\.jsonl' '0 of 24 lines' 'of at most [0-9.,]+( k)? output tokens' \
    'at most [0-9]+ (s|min|h)( [0-9]+ min)? left, done by ([A-Z][a-z][a-z],? )?[0-2][0-9]:[0-5][0-9]'
ask "/v1/batches/$batch/cancel" -X POST >"$dir/batch"
job night-0 24 '"prompt": "Sort: 3 1", "max_tokens": 900, "ignore_eos": true'
# The time left must be right for one of two jobs. A job whose halves cannot be compared does not
# count: other programs left the server more of the CPUs in one of them.
wrong=0
for again in 1 2 3 4 5 6; do
    got=0
    "$python" tests/clients/page.py "$browser" "$url/" "$key" time "$served" || got=$?
    [ $got != 0 ] || break
    [ $got = 4 ] || wrong=$((wrong + 1))
    [ $wrong -lt 3 ] || { echo "the time left is wrong"; exit 1; }
    [ $again -lt 6 ] || { echo "the machine is too busy to judge the time left"; break; }
    job "night-$again" 24 '"prompt": "Sort: 3 1", "max_tokens": 900, "ignore_eos": true'
done
echo "serve page: ok"
