#!/bin/sh
# make_deb.sh - makes a Debian package of the program that was built in $BUILD, for `make deb`:
# program, library, manual page, completion, systemd unit. The libraries that it needs become its
# dependencies. Needs dpkg-dev. Writes $OUT/cinch_$VERSION_amd64.deb.
set -eu
command -v dpkg-shlibdeps >/dev/null || {
    echo "make deb: dpkg-shlibdeps is missing: apt-get install dpkg-dev" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
root=$work/debian/cinch
doc=$root/usr/share/doc/cinch
architecture=$(dpkg --print-architecture)

"$MAKE" --no-print-directory -s BUILD="$BUILD" ARCH="$ARCH" install PREFIX=/usr DESTDIR="$root"
strip --strip-unneeded "$root/usr/bin/cinch"
strip --strip-debug "$root/usr/lib/libcinch.a"
gzip -9n "$root/usr/share/man/man1/cinch.1"

# The unit without a model. The administrator writes the model and the other options to
# /etc/default/cinch.
install -d "$root/lib/systemd/system" "$root/etc/default" "$doc" "$root/DEBIAN"
sed -e '/^ExecStart=/,/[^\\]$/d' -e '/^LoadCredential=/d' -e '/^Type=exec/a\
EnvironmentFile=/etc/default/cinch\
ExecStart=/usr/bin/cinch serve --spool ${STATE_DIRECTORY} $CINCH_OPTIONS' \
    examples/deploy/systemd/cinch.service >"$root/lib/systemd/system/cinch.service"
grep -q '^ExecStart=/usr/bin/cinch serve' "$root/lib/systemd/system/cinch.service"
cat >"$root/etc/default/cinch" <<'T'
# Options of `cinch serve` in cinch.service. --model is required, see cinch(1).
CINCH_OPTIONS="--model /srv/models/my-model --host 127.0.0.1 --port 8000"
T
echo /etc/default/cinch >"$root/DEBIAN/conffiles"

cp -r README.md docs/DEPLOY.md docs/CONFIG.md examples/deploy/systemd examples/deploy/nginx \
    examples/deploy/haproxy examples/deploy/prometheus "$doc"
cp LICENSE "$doc/copyright"
# A package that was built after `make cuda` has the backend.
if [ -e "$root/usr/lib/cinch/cinch-cuda.so" ]; then
    gpu="GPU: this package has the CUDA backend, so --device auto uses the first GPU. It
needs NVIDIA's driver and libcublasLt.so.13 (package libcublas-13-0 of NVIDIA).
DEPLOY.md has the device permissions of the service."
    where="Runs on the CPU and on NVIDIA GPUs."
else
    gpu="GPU: this package runs on the CPU. The CUDA backend is one file, which is built
from the source of the same version (CUDA 13; make cuda finds nvcc or fetches
it from PyPI):

    make cuda ARCH=$ARCH
    install -D build/cinch-cuda.so /usr/lib/cinch/cinch-cuda.so

With it, --device auto uses the first GPU. DEPLOY.md has the device permissions
of the service."
    where="Runs on the CPU; README.Debian says how to add the CUDA backend."
fi
cat >"$doc/README.Debian" <<T
cinch for Debian

The program needs a processor with $ARCH and says so on an older one.

Service: set the model in /etc/default/cinch, then systemctl enable --now cinch.

$gpu
T

# dpkg-shlibdeps reads a source package's control file.
printf 'Source: cinch\n\nPackage: cinch\nArchitecture: any\n' >"$work/debian/control"
libraries=$(cd "$work" && dpkg-shlibdeps -O debian/cinch/usr/bin/cinch | sed -n 's/^shlibs:Depends=//p')
[ -n "$libraries" ]
cat >"$root/DEBIAN/control" <<T
Package: cinch
Version: $VERSION
Architecture: $architecture
Maintainer: cinch maintainers <cinch@localhost>
Section: science
Priority: optional
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: $libraries
Suggests: bash-completion, nginx-light
Description: inference engine for large language models
 Answers files of prompts, or HTTP requests with OpenAI's API, as many at once
 as memory allows, and caps the KV memory of each request.
 .
 Needs a processor with $ARCH. $where
T
cat >"$root/DEBIAN/postinst" <<'T'
#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
T
cat >"$root/DEBIAN/prerm" <<'T'
#!/bin/sh
set -e
[ "$1" != remove ] || [ ! -d /run/systemd/system ] || systemctl stop cinch.service || :
T
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
mkdir -p "$OUT"
package=$OUT/cinch_${VERSION}_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
