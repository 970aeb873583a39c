#!/bin/sh
# Checks docs/DEPLOY.md and the files that it names: systemd accepts the unit, cinch accepts its command line, and
# nginx and haproxy with this configuration pass a stream on without buffering it. BUILD is the build
# directory. Prints SKIPPED for each program that is not installed; with REQUIRE_REFERENCES=1
# a missing program is a failure.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
proxy=""
trap '[ -z "$proxy" ] || kill "$proxy" 2>/dev/null || true; clean_up' EXIT
doc=docs/DEPLOY.md
files=examples/deploy

# Every file and every option that the page names must exist.
grep -oE '`(systemd|nginx|haproxy|prometheus)/[a-z.]+`' $doc | tr -d '`' | while read -r file; do
    [ -f "$files/$file" ] || { echo "$doc: there is no $files/$file"; exit 1; }
done
grep -ohE '[^a-z-]--[a-z][a-z-]+' $doc $files/systemd/* | sed 's/.*--/--/' | sort -u | while read -r option; do
    grep -q "^| \`$option\`" docs/CONFIG.md || { echo "$doc: there is no $option"; exit 1; }
done

# free_port: prints a port that nothing uses.
free_port() {
    "${PYTHON:-python3}" -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# until_ok URL LOG: waits until the URL is answered; prints the log if it is not.
until_ok() {
    tries=0
    until curl -skf "$1" >"$dir/health"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { cat "$2"; exit 1; }
        sleep 0.1
    done
}

# until_state PATTERN: waits until the check of haproxy has this state.
until_state() {
    tries=0
    until check_state | grep -qE "^$1"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { check_state; cat "$dir/haproxy.log"; exit 1; }
        sleep 0.1
    done
}

# end_proxy: ends the proxy.
end_proxy() {
    kill "$proxy"
    wait "$proxy" || true
    proxy=""
}

# is_prompt URL: a stream through a proxy comes in pieces while the answer is made.
is_prompt() {
    "${PYTHON:-python3}" - "$1" <<'P'
import http.client, json, ssl, sys, time, urllib.parse
place = urllib.parse.urlparse(sys.argv[1])
if place.scheme == "https":
    c = http.client.HTTPSConnection(place.hostname, place.port, timeout=60,
                                    context=ssl._create_unverified_context())
else:
    c = http.client.HTTPConnection(place.hostname, place.port, timeout=600)
# Whether pieces came while the answer was made, not together at its end. On a busy machine the server
# may send many tokens in one piece, so a stream may be asked for again.
def comes_in_pieces(n):
    started = time.time()
    c.request("POST", "/v1/completions", json.dumps(
        {"prompt": "Sort: 3 1 2", "max_tokens": n, "ignore_eos": True, "stream": True}),
        {"Content-Type": "application/json", "Authorization": "Bearer a-key-for-the-test"})
    r = c.getresponse()
    assert r.status == 200 and r.getheader("Content-Type").startswith("text/event-stream"), r.status
    times, last = [], b""
    while line := r.readline():
        if line.startswith(b"data:"):
            times.append(time.time())
            last = line
    assert last == b"data: [DONE]\n", last
    middle = (times[0] + times[-1]) / 2
    return (len(times) > n / 4 and sum(t < middle for t in times) > len(times) / 10 and
            times[-1] - times[0] > (times[-1] - started) / 4)
# A short answer fits a buffer of the proxy, a long one does not.
for n in 16, 300:
    assert any(comes_in_pieces(n) for _ in range(5)), n
P
}

# ---- the unit ----

cp $files/systemd/cinch.service "$dir/cinch.service"
words=$(sed -n '/^ExecStart=/,/[^\\]$/p' "$dir/cinch.service" | tr -d '\\\n' |
    sed "s|^ExecStart=/usr/local/bin/cinch||; s|[$]{[A-Z_]*}|$dir|g")
# shellcheck disable=SC2086
"$cinch" $words --help >/dev/null
if command -v systemd-analyze >/dev/null; then
    mkdir "$dir/cinch.service.d"
    cp $files/systemd/gpu.conf "$dir/cinch.service.d/gpu.conf"
    # The man page and the program are not installed at the unit's paths.
    sed -i "s|/usr/local/bin/cinch|$cinch|; /^Documentation=/d" "$dir/cinch.service"
    systemd-analyze verify "$dir/cinch.service" >"$dir/verify" 2>&1 || bad=1
    if [ -n "${bad:-}" ] || grep -q "cinch" "$dir/verify"; then
        cat "$dir/verify"
        exit 1
    fi
else
    skip "no systemd-analyze"
fi

for setting in MemoryMax= LimitCORE=0 TasksMax=; do
    grep -q "^$setting" "$dir/cinch.service" || { echo "the unit has no $setting"; exit 1; }
done

# ---- the key file ----

# A file that the group may read is a warning, one that everybody may read an error.
echo "night-shift:0123456789abcdef0123" >"$dir/keys"
chmod 640 "$dir/keys"
serve --api-key-file "$dir/keys"
grep -q "^warning: .*keys: the key file is readable or writable by its group" "$dir/serve.log" ||
    { echo "no warning about the key file"; cat "$dir/serve.log"; exit 1; }
stop
chmod 600 "$dir/keys"
serve --api-key-file "$dir/keys"
if grep -q "key file is" "$dir/serve.log"; then echo "a needless warning"; exit 1; fi
stop

# ---- nginx ----

command -v nginx >/dev/null && command -v openssl >/dev/null || skip "no nginx, or no openssl"
serve --api-key a-key-for-the-test
openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 1 -keyout "$dir/tls.key" \
    -out "$dir/tls.pem" 2>/dev/null
port=$(free_port)
{
    echo "daemon off; pid $dir/nginx.pid; error_log $dir/nginx.log; events {} http { access_log off;"
    for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path $dir/$kind;"; done
    sed "s|listen 443 ssl|listen 127.0.0.1:$port ssl|; s|127.0.0.1:8000|${url#*//}|
        s|/etc/ssl/certs/[^;]*|$dir/tls.pem|; s|/etc/ssl/private/[^;]*|$dir/tls.key|" $files/nginx/cinch.conf
    echo "}"
} >"$dir/nginx.conf"
nginx -t -q -c "$dir/nginx.conf"
nginx -c "$dir/nginx.conf" &
proxy=$!
until_ok "https://127.0.0.1:$port/health" "$dir/nginx.log"
grep -q '"ok"' "$dir/health"
is_prompt "https://127.0.0.1:$port"
[ "$(curl -sk -o "$dir/out" -w '%{http_code}' "https://127.0.0.1:$port/v1/models")" = 401 ]
# A burst beyond the limit is answered 429 by nginx.
curl -sk --parallel --parallel-max 40 -o /dev/null -w '%{http_code}\n' \
    "https://127.0.0.1:$port/health?[1-600]" >"$dir/codes" 2>/dev/null
grep -q 429 "$dir/codes" || { echo "nginx limits no requests"; sort "$dir/codes" | uniq -c; exit 1; }
end_proxy

# nginx's defaults buffer replies and speak HTTP/1.0 to the server. Streams come at once all the same.
port=$(free_port)
{
    sed -n '/^daemon off/,/_temp_path/p' "$dir/nginx.conf"
    sed -n '/_temp_path/p' "$dir/nginx.conf" | tail -n +2
    echo "server { listen 127.0.0.1:$port; location / { proxy_pass $url; } } }"
} >"$dir/plain.conf"
nginx -c "$dir/plain.conf" &
proxy=$!
until_ok "http://127.0.0.1:$port/health" "$dir/nginx.log"
is_prompt "http://127.0.0.1:$port"
end_proxy

# ---- haproxy ----

command -v haproxy >/dev/null || skip "no haproxy"
# check_state: the state of the server in the view of haproxy, such as UP and L7OK.
check_state() {
    curl -s "http://127.0.0.1:$stats/;csv" | awk -F, '$1 == "cinch" && $2 == "one" { print $18, $37 }'
}
# The check of the page, and the one without a path.
for check in "GET /health" ""; do
    port=$(free_port)
    stats=$(free_port)
    sed "s|bind :8080|bind 127.0.0.1:$port|; s|127.0.0.1:8000|${url#*//}|
        s|option httpchk GET /health|option httpchk $check|; s|inter 2s|inter 100ms|" \
        $files/haproxy/haproxy.cfg >"$dir/haproxy.cfg"
    printf 'frontend stats\n    bind 127.0.0.1:%s\n    stats enable\n    stats uri /\n' "$stats" \
        >>"$dir/haproxy.cfg"
    haproxy -c -q -f "$dir/haproxy.cfg"
    haproxy -db -f "$dir/haproxy.cfg" >"$dir/haproxy.log" 2>&1 &
    proxy=$!
    until_ok "http://127.0.0.1:$port/health" "$dir/haproxy.log"
    is_prompt "http://127.0.0.1:$port"
    until_state "UP L7OK$"
    [ -n "$check" ] || break
    end_proxy
done
# A server that has stopped is down.
stop
until_state DOWN
end_proxy
echo "deploy: ok"
