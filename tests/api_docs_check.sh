#!/bin/sh
# Checks that docs/API.md has every route and every member of a body that the server knows, and no
# other one.
set -eu
doc=docs/API.md
openapi=engine/serve/routes/openapi.json
source=engine/api/api_request.c
responses=engine/api/responses_request.c
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bad=0

# Routes, with ids as {id}.
sed -n 's|^    "\(/[^"]*\)": {|\1|p' $openapi | sort -u >"$dir/routes"
sed -n '/^| route /,/^$/p' $doc | sed 's/|[^|]*|[^|]*|$//' | grep -o '`[^`]*`' | tr -d '`' |
    sort -u >"$dir/told"
diff "$dir/routes" "$dir/told" || { echo "$doc: the routes differ from $openapi"; bad=1; }

# Members that are read, accepted without effect, or accepted at one value; and those of openapi.json.
(sed -n '/^} fields\[\]/,/^};/p;/ harmless\[\]/,/^};/p;/^} neutrals\[\]/,/^};/p' $source
sed -n '/^} responses_fields\[\]/,/^};/p;/^} refused\[\]/,/^};/p' $responses) |
    sed -n 's/^    {\{0,1\}"\([a-z_]*\)",.*/\1/p' >"$dir/members"
[ "$(wc -l <"$dir/members")" -gt 50 ] || { echo "$source: the tables were not found"; exit 1; }
sed -n '/^      "[A-Za-z]*Request": {/,/^      }/s/^          "\([a-z_]*\)":.*/\1/p' \
    $openapi >>"$dir/members"
while read -r name; do
    grep -q "\`$name\`" $doc || { echo "$doc: the member $name is missing"; bad=1; }
done <"$dir/members"

# What the table and the lists of members name must exist.
sed -n '/^| member /,/^$/p' $doc | sed 's/^| \([^|]*\) |.*/\1/' | grep -o '`[^`]*`' >"$dir/named"
sed -n '/^Accepted /,/^$/p' $doc | grep -o '`[a-z_]*`' >>"$dir/named"
[ "$(wc -l <"$dir/named")" -gt 60 ] || { echo "$doc: the members were not found"; exit 1; }
tr -d '`' <"$dir/named" | sort -u | while read -r name; do
    grep -qx "$name" "$dir/members" || echo "$doc: no code reads the member $name"
done >"$dir/unknown"
[ ! -s "$dir/unknown" ] || { cat "$dir/unknown"; bad=1; }
exit $bad
