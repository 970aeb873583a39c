#!/bin/sh
# Checks what a command prints when it loads a model: one line that says what it runs on; that
# SIGHUP makes a server open its access log again; and how a server prints an IPv6 address. BUILD is
# the build directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
model=examples/tiny-reasoner
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
head -2 examples/prompts.jsonl >"$dir/in"
echo "The quick brown fox jumps over the lazy dog." >"$dir/text"

# says TEXT ARGUMENTS...: the command must succeed and print one line at start that has TEXT.
says() {
    text=$1
    shift
    "$cinch" "$@" --model $model >"$dir/log" 2>&1 </dev/null ||
        { echo "cinch $*: failed"; cat "$dir/log"; exit 1; }
    [ "$(grep -c "^info: tiny-reasoner (Qwen3ForCausalLM, 10.8M parameters) on $text" "$dir/log")" = 1 ] ||
        { echo "cinch $*: expected one line with '$text'"; cat "$dir/log"; exit 1; }
}

cpu="cpu: --device cpu; float32"
says "$cpu; KV 7.9 MiB, 1280 tokens; policy zip, requests may choose full, budget 512 tokens; 2 requests of any length" \
    run-batch -i "$dir/in" -o "$dir/out" --prompt-field prompt --max-tokens 2 --device cpu \
    --kv-cache-memory-bytes 8M --kv-policy zip --kv-budget 500
says "$cpu; KV .*; policy full; .* at once" bench throughput --num-prompts 1 --input-len 4 \
    --output-len 2 --device cpu
says "$cpu; KV .*; policy full, requests may choose window, zip, budget 64 tokens; " compare -i "$dir/in" \
    --prompt-field prompt --arms zip:64 --max-tokens 2 --device cpu
says "cpu: calibration runs on the CPU; float32$" calibrate --text "$dir/text" -o "$dir/channels"
[ -e /dev/nvidiactl ] || says "cpu: no GPU found; float32" bench throughput --num-prompts 1 \
    --input-len 4 --output-len 2

. tests/lib/serve.sh
trap clean_up EXIT
serve --device cpu
grep -q "^info: .* on $cpu; KV" "$dir/serve.log" || { cat "$dir/serve.log"; exit 1; }

mv "$dir/access.log" "$dir/access.log.1"
kill -HUP "$served"
tries=0
until [ -e "$dir/access.log" ]; do
    tries=$((tries + 1))
    [ $tries -lt 1200 ] || { echo "SIGHUP: no new access log"; exit 1; }
    sleep 0.1
done
stop

# A line of the access log that is cut off, as on a full disk, does not spoil the next one. The limit
# is 4,096 bytes a file.
rm "$dir/access.log"
trap '' XFSZ
ulimit -S -f 8
serve --device cpu
ulimit -S -f unlimited
trap - XFSZ
"${PYTHON:-python3}" - "$url" "$dir/access.log" "$served" <<'P'
import json, os, resource, signal, sys, time, urllib.request
url, path, pid = sys.argv[1], sys.argv[2], int(sys.argv[3])
get = lambda n: [urllib.request.urlopen(url + "/health").read() for _ in range(n)]
get(40)
os.kill(pid, signal.SIGHUP) # opens the same file again
time.sleep(0.5)
hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
get(5)
def parses(line):
    try:
        return json.loads(line)["path"] == "/health"
    except ValueError:
        return False
for _ in range(600): # a line is written after its reply
    good = [parses(line) for line in open(path).read().splitlines()]
    if all(good[-5:]):
        break
    time.sleep(0.1)
assert sum(good) >= 10 and good.count(False) == 1 and all(good[-5:]), good
metrics = urllib.request.urlopen(url + "/metrics").read().decode()
lost = [l for l in metrics.splitlines() if l.startswith("cinch_access_log_lines_lost_total")]
assert int(float(lost[0].split()[-1])) == 45 - sum(good), (lost, sum(good))
P
grep -q "^warning: a line of the access log cannot be written" "$dir/serve.log"
stop

# An IPv6 address is in brackets in the URL that the server prints, and in the access log.
if grep -q '^0*1 .* lo$' /proc/net/if_inet6 2>/dev/null; then
    serve --device cpu --host ::1
    case $url in "http://[::1]:"[1-9]*) ;; *) echo "--host ::1: prints $url"; exit 1 ;; esac
    "${PYTHON:-python3}" -c "import urllib.request; urllib.request.urlopen('$url/health')"
    stop
    grep -q '"remote": *"\[::1\]:[1-9][0-9]*"' "$dir/access.log" ||
        { echo "--host ::1: no address in brackets in:"; cat "$dir/access.log"; exit 1; }
fi
echo "start: ok"
