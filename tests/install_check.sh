#!/bin/sh
# Installs into a temporary directory and checks the installed program and manual page. Builds
# every example with only pkg-config and the installed header and library.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
${MAKE:-make} --no-print-directory -s install PREFIX="$dir/usr"
"$dir/usr/bin/cinch" version | grep -q '^cinch [0-9]'
grep -q '^\.TH CINCH 1' "$dir/usr/share/man/man1/cinch.1"

PKG_CONFIG_PATH=$dir/usr/lib/pkgconfig
export PKG_CONFIG_PATH
cat >"$dir/version.c" <<'C'
#include <cinch.h>
#include <stdio.h>
int main(void)
{
    cn_config *c = cn_config_create();
    int bad = cn_config_set(c, "max-num-seqs", "0") == CN_OK;
    puts(cn_last_error());
    cn_config_free(c);
    return bad;
}
C
for source in "$dir/version.c" examples/*.c; do
    [ -e "$source" ] || continue
    # shellcheck disable=SC2046
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror "$source" -o "$dir/program" \
        $(pkg-config --cflags --libs cinch)
done
${CC:-cc} "$dir/version.c" -o "$dir/version" $(pkg-config --cflags --libs cinch)
"$dir/version" | grep -q 'max-num-seqs 0'

# The files of a staged installation must not contain the path of the staging directory.
${MAKE:-make} --no-print-directory -s install PREFIX=/usr DESTDIR="$dir/stage"
grep -q '^prefix=/usr$' "$dir/stage/usr/lib/pkgconfig/cinch.pc"
echo "install: ok"
