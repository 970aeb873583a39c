#!/bin/sh
# package_try.sh - installs the packages of `make deb` and `make wheel`, for `make package-check`: the
# deb in a fresh chroot of Debian, the wheel in a fresh virtual environment. Runs both programs on
# one prompt. With qemu-user also on a processor that is too old. Needs root and debootstrap for the
# deb; prints SKIPPED without them, which is a failure with REQUIRE_REFERENCES=1.
set -eu
. tests/lib/serve.sh
dir=$(mktemp -d)
chroot=$dir/root
trap 'rm -rf "$dir"' EXIT
version=$(sed -n 's/.*define CINCH_VERSION "\(.*\)"/\1/p' engine/cinch.h)
deb=$(ls build/cinch_"$version"_*.deb)
wheel=$(ls build/cinch-"$version"-*.whl)

# fail TEXT: prints the log.
fail() {
    echo "$1"
    cat "$dir/log"
    exit 1
}

# ---- the wheel ----

"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install -q --no-index "$wheel" >"$dir/log" 2>&1 || fail "pip"
head -1 examples/prompts.jsonl >"$dir/in"
"$dir/venv/bin/cinch" run-batch --model examples/tiny-reasoner -i "$dir/in" -o "$dir/out" \
    --prompt-field prompt --max-tokens 4 >"$dir/log" 2>&1 || fail "the program of the wheel"
grep -q '^1 answered' "$dir/log" || fail "no answer"
[ "$("$dir/venv/bin/cinch" version)" = "cinch $version" ]
"$dir/venv/bin/python" -m pip show -f cinch >"$dir/log"
grep -q 'bin/cinch' "$dir/log" || fail "pip does not know the program"
unzip -p "$wheel" '*/METADATA' 2>/dev/null | grep -q 'CUDA backend' ||
    "$dir/venv/bin/python" -c "import importlib.metadata as m
assert 'CUDA backend' in m.metadata('cinch').get_payload()" || fail "no word on CUDA"

# ---- an old processor ----

# too_old PROGRAM: it must refuse a processor without AVX2 in one sentence.
too_old() {
    got=0
    qemu-x86_64 -cpu Nehalem "$1" version >"$dir/log" 2>&1 || got=$?
    [ $got = 1 ] && grep -q '^error: this processor lacks avx, avx2, .*x86-64-v3' "$dir/log" ||
        fail "an old processor: exit $got"
}
command -v qemu-x86_64 >/dev/null || skip "no qemu-x86_64"
too_old "$dir/venv/bin/cinch"

# ---- the deb ----

[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || skip "needs root and debootstrap"
release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
debootstrap --variant=minbase "$release" "$chroot" >"$dir/log" 2>&1 || fail "debootstrap"
cp "$deb" "$chroot/tmp/cinch.deb"
cp -r examples/tiny-reasoner "$dir/in" "$chroot/tmp"
chroot "$chroot" sh -eu >"$dir/log" 2>&1 <<'S' || fail "the deb"
export DEBIAN_FRONTEND=noninteractive
! dpkg -s libjansson4 || exit 1 # must come as a dependency
apt-get update -qq
apt-get install -y -qq --no-install-recommends /tmp/cinch.deb
cinch run-batch --model /tmp/tiny-reasoner -i /tmp/in -o /tmp/out --prompt-field prompt --max-tokens 4
grep -q '"finish_reason"' /tmp/out
test -e /usr/share/bash-completion/completions/cinch
zcat /usr/share/man/man1/cinch.1.gz | grep -q '^.TH CINCH'
grep -q 'make cuda' /usr/share/doc/cinch/README.Debian
grep -q '^ExecStart=/usr/bin/cinch serve' /lib/systemd/system/cinch.service
apt-get remove -y -qq cinch
test ! -e /usr/bin/cinch
S
dpkg-deb -x "$deb" "$dir/deb"
too_old "$dir/deb/usr/bin/cinch"
if command -v systemd-analyze >/dev/null; then
    unit=$dir/cinch.service
    sed "s|/usr/bin/cinch|$dir/deb/usr/bin/cinch|; s|/etc/default/cinch|$dir/deb/etc/default/cinch|
        /^Documentation=/d" "$dir/deb/lib/systemd/system/cinch.service" >"$unit"
    systemd-analyze verify "$unit" >"$dir/log" 2>&1 || fail "the unit"
    ! grep -q cinch "$dir/log" || fail "the unit"
fi
echo "packages: ok"
