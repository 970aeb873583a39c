#!/bin/sh
# Runs a file of requests as a batch, with curl: upload, start, wait, download.
#   examples/serve_batch.sh http://127.0.0.1:8000 REQUESTS.jsonl [KEY]
# Start the server first: cinch serve --model DIR --spool DIR
set -eu
url=$1
requests=$2
set -- -sS --fail-with-body ${3:+-H "Authorization: Bearer $3"}

# member NAME: prints a text member of the JSON object on standard input. With jq: jq -r .NAME
member() {
    sed -n 's/.*"'"$1"'": *"\([^"]*\)".*/\1/p'
}

file=$(curl "$@" "$url/v1/files" -F purpose=batch -F "file=@$requests" | member id)
echo "uploaded as $file"
batch=$(curl "$@" "$url/v1/batches" -H 'Content-Type: application/json' -d '{
  "input_file_id": "'"$file"'", "endpoint": "/v1/chat/completions", "completion_window": "24h",
  "metadata": {"name": "the example"}
}' | sed -n 's/.*"id": *"\(batch_[^"]*\)".*/\1/p')
echo "started $batch"
while :; do
    state=$(curl "$@" "$url/v1/batches/$batch")
    case $(echo "$state" | member status) in
    completed) break ;;
    failed | expired | cancelled) echo "$state"; exit 1 ;;
    esac
    sleep 1
done
# Failed requests are in a separate file.
for kind in output_file_id error_file_id; do
    file=$(echo "$state" | member $kind)
    [ -z "$file" ] || curl "$@" "$url/v1/files/$file/content"
done
