#!/bin/bash
# nginx_check.sh - two servers behind nginx with examples/deploy/nginx/servers.conf. Files are those
# of the first. It is killed: the answers that it had begun fail, their second try succeeds, and no
# other fails. In its place one that answers 503: no request fails. BUILD is the build directory.
# Prints SKIPPED without nginx; with REQUIRE_REFERENCES=1 that is a failure.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
proxy="" first="" second=""
end() {
    kill $proxy 2>/dev/null || true
    kill -KILL $first $second 2>/dev/null || true
    rm -rf "$dir"
}
trap end EXIT
command -v nginx >/dev/null || skip "no nginx"

serve --device cpu --threads 1 --kv-cache-memory-bytes 32M --max-num-seqs 16
first=$served one=${url#*//}
serve --device cpu --threads 1 --kv-cache-memory-bytes 32M --max-num-seqs 16
second=$served two=${url#*//}
port=$("${PYTHON:-python3}" -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
{
    echo "daemon off; pid $dir/nginx.pid; error_log $dir/nginx.log; events {} http { access_log off;"
    for place in client_body proxy fastcgi uwsgi scgi; do echo "${place}_temp_path $dir/$place;"; done
    echo 'add_header X-Upstream $upstream_addr always;'
    sed "s|127.0.0.1:8000|127.0.0.1:$port|; s|127.0.0.1:8001|$one|; s|127.0.0.1:8002|$two|" \
        examples/deploy/nginx/servers.conf
    echo "}"
} >"$dir/nginx.conf"
nginx -t -q -c "$dir/nginx.conf"
nginx -c "$dir/nginx.conf" &
proxy=$!

"${PYTHON:-python3}" - "$port" "$first" "$one" "$two" <<'P'
import http.client, http.server, json, os, signal, socket, sys, threading, time
port, first, one, two = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]


class Call(threading.Thread):
    """A streamed request; ok: it ended as it should."""

    def __init__(self, n_tokens):
        super().__init__()
        self.n_tokens, self.at, self.ok, self.begun = n_tokens, None, False, threading.Event()
        self.start()

    def run(self):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        body = {"model": "tiny", "max_tokens": self.n_tokens, "ignore_eos": True, "stream": True,
                "messages": [{"role": "user", "content": "Sort: 3 1 2"}]}
        try:
            c.request("POST", "/v1/chat/completions", json.dumps(body),
                      {"Content-Type": "application/json"})
            r = c.getresponse()
            self.at = r.getheader("X-Upstream")
            text = r.read(1)
            self.begun.set()
            text += r.read()
            self.ok = r.status == 200 and text.rstrip().endswith(b"[DONE]")
        except (OSError, http.client.HTTPException):
            pass
        finally:
            self.begun.set()


def wait_until(open_, at):
    """Until the port takes connections, or does not."""
    for i in range(1200):
        try:
            socket.create_connection(("127.0.0.1", at), 5).close()
            if open_:
                return
        except OSError:
            if not open_:
                return
        time.sleep(0.1)
    sys.exit(f"port {at}: expected open {open_}")


def files_at():
    """The server that answers for files."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    c.request("GET", "/v1/files")
    return c.getresponse().getheader("X-Upstream")


class Refusing(http.server.BaseHTTPRequestHandler):
    """As a server that loads."""

    n_refused = 0

    def do_POST(self):
        Refusing.n_refused += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


wait_until(True, port)
for i in range(4):
    assert files_at() == one, "files are on two servers"
calls = [Call(800) for i in range(8)] # none ends before the kill
for c in calls:
    c.begun.wait()
had = [c for c in calls if c.at == one]
assert len(had) == 4 and sum(c.at == two for c in calls) == 4, [c.at for c in calls]
os.kill(first, signal.SIGKILL)
wait_until(False, int(one.split(":")[1])) # the kernel takes connections for a dying process
later = [Call(8) for i in range(8)]
for c in calls + later:
    c.join()
assert not any(c.ok for c in had), "an answer that the killed server had begun succeeds"
bad = [c.at for c in calls + later if not c.ok and c not in had]
assert not bad, f"others fail: {bad}"
again = [Call(8) for c in had]
for c in again:
    c.join()
assert all(c.ok for c in again), "a second try fails"

http.server.ThreadingHTTPServer.allow_reuse_address = True
refusing = http.server.ThreadingHTTPServer(("127.0.0.1", int(one.split(":")[1])), Refusing)
threading.Thread(target=refusing.serve_forever, daemon=True).start()
until = time.time() + 120
while Refusing.n_refused < 2 and time.time() < until:
    later = [Call(2) for i in range(4)]
    for c in later:
        c.join()
    assert all(c.ok for c in later), "a request fails although a server accepts it"
assert Refusing.n_refused >= 2, "nginx does not try the first server again"
P
echo "nginx: ok"
