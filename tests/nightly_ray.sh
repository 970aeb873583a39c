#!/bin/bash
# nightly_ray.sh - examples/deploy/ray/answer.py with Ray from PyPI and two actors on the CPU. A
# server is killed: the answers are those of run-batch, each once. A second run answers nothing
# again. A server that cannot start ends the run. BUILD is the build directory.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
trap 'rm -rf "$dir"' EXIT
need_python ray "ray[data]==2.60.0"
for i in $(seq 1 80); do
    echo "{\"custom_id\": \"r$i\", \"url\": \"/v1/chat/completions\", \"body\": {\"max_tokens\": 100," \
        "\"temperature\": 0, \"ignore_eos\": true, \"messages\": [{\"role\": \"user\"," \
        "\"content\": \"Sort: $i 3\"}]}}"
done >"$dir/in.jsonl"
"$cinch" run-batch --model examples/tiny-reasoner -i "$dir/in.jsonl" -o "$dir/want" --device cpu \
    --kv-cache-memory-bytes 64M --progress none >"$dir/log" 2>&1

# The program that the actors start: its process and its socket are known.
cat >"$dir/cinch" <<E
#!/bin/sh
echo "\$\$ \$5" >>"$dir/servers"
exec "$cinch" "\$@"
E
chmod +x "$dir/cinch"
: >"$dir/servers"
# answer MODEL OUT_DIR OPTION...
answer() {
    local model=$1 out=$2
    shift 2
    CINCH="$dir/cinch" RAY_USAGE_STATS_ENABLED=0 RAY_TMPDIR="$dir" timeout 600 "$python" \
        examples/deploy/ray/answer.py "$model" "$dir/in.jsonl" "$out" --actors 2 \
        --gpus 0 --local-cpus 8 -- --device cpu --threads 1 \
        --kv-cache-memory-bytes 32M "$@" >"$dir/log" 2>&1
}
# fails TEXT MODEL OPTION...: the run ends, and names the cause.
fails() {
    local text=$1 got=0 model=$2
    shift 2
    answer "$model" "$dir/none" "$@" || got=$?
    [ $got = 1 ] && grep -q "RuntimeError: the server did not start: .*$text" "$dir/log" ||
        { echo "$model $*: exit code $got"; tail -n 40 "$dir/log"; exit 1; }
}
fails 'no-such/model' no-such/model
fails 'no-such-option' examples/tiny-reasoner --no-such-option
: >"$dir/servers"
answer examples/tiny-reasoner "$dir/out" &
run=$!
# busy: prints the process of a server that runs requests.
busy() {
    while read -r process socket; do
        curl -s --unix-socket "$socket" http://localhost/stats | grep -q '"running":[1-9]' || continue
        echo "$process"
        return
    done <"$dir/servers"
}
tries=0
while victim=$(busy) && [ -z "$victim" ]; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] && kill -0 $run || { tail -n 40 "$dir/log"; exit 1; }
    sleep 0.2
done
kill -KILL "$victim"
wait $run || { tail -n 40 "$dir/log"; exit 1; }
[ "$(wc -l <"$dir/servers")" -ge 3 ] || { echo "no server was started again"; exit 1; }
"$python" - "$dir" <<'P'
import glob, json, sys
dir = sys.argv[1]
text = lambda body: body["choices"][0]["message"]["content"]
want = {}
for line in map(json.loads, open(dir + "/want")):
    want[line["custom_id"]] = text(line["response"]["body"])
rows = [json.loads(line) for path in glob.glob(dir + "/out/*") for line in open(path)]
assert len(rows) == len({row["custom_id"] for row in rows}) == len(want) == 80, len(rows)
for row in rows:
    assert row["status"] == 200, row
    assert text(json.loads(row["response"])) == want[row["custom_id"]], row
P
lines=$(cat "$dir"/out/* | wc -l)
answer examples/tiny-reasoner "$dir/out" || { tail -n 40 "$dir/log"; exit 1; }
[ "$(cat "$dir"/out/* | wc -l)" = "$lines" ] || { echo "lines are answered again"; exit 1; }
echo "nightly ray: ok"
