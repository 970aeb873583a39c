#!/bin/sh
# Checks that no option is silently ignored: code outside engine/options must read the field of
# every option that a command takes. BUILD is the build directory.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
table=engine/options/option_table.c

# One line per option: its name and the last part of its field.
sed -n 's/^    ROW([A-Z_]*, "\([a-z0-9-]*\)", [A-Z0-9]*, \([a-z0-9_]*\.\)*\([a-z0-9_]*\), .*/\1 \3/p' \
    $table >"$dir/rows"
[ "$(grep -c '^    ROW(' $table)" = "$(wc -l <"$dir/rows")" ] || {
    echo "$table: a row does not begin with ROW(SECTION, name, type, field, default"
    exit 1
}

bad=0
while read -r name field; do
    grep -q "^| \`--$name\`" docs/CONFIG.md || continue
    grep -qE "(->|\.)$field\b" $(ls engine/*.c engine/*/*.c engine/*/*/*.c compress/*.c | grep -v '/option[a-z_]*\.c$') ||
        { echo "--$name: no code reads $field"; bad=1; }
done <"$dir/rows"
exit $bad
