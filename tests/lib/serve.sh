# serve.sh - functions for checks that use a running server. Source it with ".". Needs $dir, a
# scratch directory, and BUILD.
cinch=$(realpath "${BUILD:-build}/cinch")
served=""

# serve OPTIONS...: starts a server of the bundled checkpoint on a free port; sets $url.
serve() {
    : >"$dir/serve.log"
    "$cinch" serve --model examples/tiny-reasoner --served-model-name tiny --port 0 \
        --access-log "$dir/access.log" "$@" 2>"$dir/serve.log" &
    served=$!
    tries=0
    until url=$(sed -n 's/^info: serving tiny on \(http.*\)/\1/p' "$dir/serve.log") && [ -n "$url" ]; do
        tries=$((tries + 1))
        if [ $tries = 1200 ] || ! kill -0 "$served" 2>/dev/null; then
            echo "the server did not start:"
            cat "$dir/serve.log"
            exit 1
        fi
        sleep 0.1
    done
}

# stop: ends the server with SIGTERM. The server must exit with 0.
stop() {
    kill -TERM "$served"
    wait "$served" || { echo "the server ended with an error:"; cat "$dir/serve.log"; exit 1; }
    served=""
}

# clean_up: kills the server and removes $dir. For the trap on EXIT.
clean_up() {
    [ -z "$served" ] || kill -KILL "$served" 2>/dev/null || true
    rm -rf "$dir"
}

# need_python NAME PACKAGE...: sets $python to a Python with these packages, which come from PyPI on
# the first run, and when the list changes, and stay in BUILD/reference/NAME. Prints SKIPPED and
# exits without them; with REQUIRE_REFERENCES=1 that is a failure.
need_python() {
    venv=${BUILD:-build}/reference/$1
    shift
    python=$venv/bin/python
    if [ "$(cat "$venv/complete" 2>/dev/null)" != "$*" ]; then
        "${PYTHON:-python3}" -m venv "$venv" && "$python" -m pip install -q "$@" &&
            echo "$*" >"$venv/complete" || skip "pip cannot install: $*"
    fi
}

# need_promtool: sets $promtool, which is installed or comes from Debian's package prometheus on the
# first run and stays in BUILD/reference/promtool. Otherwise as need_python.
need_promtool() {
    promtool=$(command -v promtool || true)
    [ -z "$promtool" ] || return 0
    place=$(realpath "${BUILD:-build}")/reference/promtool
    promtool=$place/usr/bin/promtool
    [ ! -x "$promtool" ] || return 0
    mkdir -p "$place"
    (cd "$place" && apt-get download -q prometheus >/dev/null 2>&1 &&
        dpkg-deb --fsys-tarfile prometheus_*.deb | tar xf - ./usr/bin/promtool &&
        rm prometheus_*.deb) || skip "no promtool, and apt-get cannot download prometheus"
}

skip() {
    echo "SKIPPED $(basename "$0" .sh): $1"
    [ "${REQUIRE_REFERENCES:-0}" = 0 ]
    exit
}
