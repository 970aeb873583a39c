#!/bin/sh
# The prefix cache under compression. A request of policy zip or window leaves the common beginning
# of its prompt in the cache, as one of policy full does. Then 200 requests run one after another:
# all but a tenth of their prompt tokens come from the cache. BUILD is the build directory.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
trap clean_up EXIT
n=${PREFIX_REQUESTS:-200}

fail() {
    echo "prefix: $*"
    exit 1
}

# body NUMBER POLICY: prints a request. Its prompt has 600 tokens that all requests of the policy
# have, and 30 others. Its first event is at 640 tokens.
body() {
    awk -v number="$1" -v policy="$2" 'BEGIN {
        printf "{\"model\": \"tiny\", \"max_tokens\": 14, \"temperature\": 0, \"ignore_eos\": true"
        printf ", \"kv\": {\"policy\": \"%s\"%s}", policy, policy == "full" ? "" : ", \"budget\": 128"
        printf ", \"prompt\": [%d, ", length(policy)
        for (i = 1; i < 600; i++) printf "%d, ", 70 + 7 * i % 60
        for (i = 0; i < 29; i++) printf "%d, ", 70 + (number + i) % 60
        printf "%d]}\n", 70 + number % 7
    }'
}

# cached: prints the cached tokens of each answer on its input.
cached() { sed -n 's/.*"cached_tokens":\([0-9]*\).*/\1/p' | tr '\n' ' '; }

serve --kv-policies full,window,zip --threads 2
for policy in full zip window; do
    for i in 1 2 3 4; do
        body $i $policy >"$dir/body"
        curl -sS --fail-with-body "$url/v1/completions" -H 'Content-Type: application/json' \
            -d @"$dir/body" >>"$dir/$policy" || fail "$policy: $(cat "$dir/$policy")"
        echo >>"$dir/$policy"
    done
    got=$(cached <"$dir/$policy")
    [ "$got" = "0 576 576 576 " ] || fail "policy $policy: cached tokens $got"
    events=$(grep -c '"compressions":1,' "$dir/$policy") || true
    [ $policy = full ] || [ "$events" = 4 ] || fail "policy $policy: $(cat "$dir/$policy")"
done
stop

for i in $(seq "$n"); do
    printf '{"custom_id": "%s", "method": "POST", "url": "/v1/completions", "body": %s}\n' "$i" \
        "$(body "$i" zip)"
done >"$dir/in"
"$cinch" run-batch --model examples/tiny-reasoner --served-model-name tiny -i "$dir/in" \
    -o "$dir/out" --kv-policies zip --max-num-seqs 1 --progress none --threads 2 >"$dir/log" 2>&1
sed -n 's/^tokens: \([0-9]*\) prompt (\([0-9]*\) from the prefix cache).*/\1 \2/p' "$dir/log" |
    awk -v n="$n" '{ found = 1; computed = $1 - $2 }
        END { print "prefix: " n " requests, prompts of " $1 " tokens, " computed " computed"
              exit !(found && computed * 10 <= $1) }' || fail "$(cat "$dir/log")"
[ "$(grep -c '"compressions":1,' "$dir/out")" = "$n" ] || fail "not every request was compressed"
echo "prefix: ok"
