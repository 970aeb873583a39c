#!/bin/sh
# Runs bench/plot.py on files that cinch writes. Every kind of plot must be a valid SVG with the
# series, points and labels of its input, and the same bytes each time. docs/plots must match
# docs/plots/data. Input that cannot be drawn gives one line and exit code 1. BUILD is the build
# directory. Prints SKIPPED without the Python of `make plot-env`; with REQUIRE_REFERENCES=1 that
# is a failure.
set -eu
build=${BUILD:-build}
cinch=$build/cinch
python=$build/plot-env/bin/python
model=examples/tiny-reasoner
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

if ! "$python" -c 'import matplotlib' 2>/dev/null; then
    echo "SKIPPED plot_check: no $python with matplotlib: run make plot-env"
    [ "${REQUIRE_REFERENCES:-0}" = 0 ]
    exit
fi

fail() {
    echo "$1; the plot has:"
    cut -c1-120 "$dir/seen"
    exit 1
}

# draw ARGUMENTS...: draws $dir/plot.svg twice, which must give the same bytes. Lists the contents
# of the plot in $dir/seen.
draw() {
    "$python" bench/plot.py "$@" -o "$dir/plot.svg"
    "$python" bench/plot.py "$@" -o "$dir/again.svg"
    cmp "$dir/plot.svg" "$dir/again.svg"
    "$python" tests/plot_series.py "$dir/plot.svg" >"$dir/seen"
}

# Checks of the last plot. shows TEXT...: it has these labels. count N: it has N series.
# points ID N: the series ID has N points.
shows() {
    for text in "$@"; do
        grep -qxF -e "text $text" "$dir/seen" || fail "no label '$text'"
    done
}
count() {
    [ "$(grep -c '^series ' "$dir/seen")" = "$1" ] || fail "expected $1 series"
}
points() {
    grep -qE "^series $1 $2 " "$dir/seen" || fail "expected $2 points of $1"
}
# level ID: prints the height of the last point of a series. For a bar, that point is on its top.
level() {
    sed -n "s/^series $1 [0-9]* .*,//p" "$dir/seen"
}
# evenly A B C: A must differ from C, and B must be their mean.
evenly() {
    awk -v a="$1" -v b="$2" -v c="$3" 'BEGIN { d = 2 * b - a - c
        exit !(a != "" && b != "" && c - a > 1 && d < 0.1 && d > -0.1) }' ||
        fail "expected $1, $2, $3 to be evenly apart"
}

# refused TEXT ARGUMENTS...: plot.py must print one line with TEXT, exit with 1 and write no file.
refused() {
    text=$1
    shift
    got=0
    rm -f "$dir/none.svg"
    "$python" bench/plot.py "$@" >"$dir/seen" 2>&1 || got=$?
    [ $got = 1 ] && [ "$(wc -l <"$dir/seen")" = 1 ] && grep -qF -e "$text" "$dir/seen" &&
        [ ! -e "$dir/none.svg" ] ||
        fail "plot.py $*: expected exit code 1 and one line with '$text', got exit code $got"
}

# ---- compare ----

# compare NAME OPTIONS...: runs cinch compare and writes $dir/NAME.json.
compare() {
    name=$1
    shift
    "$cinch" compare --model $model --prompt-field prompt --block-size 32 --limit 2 \
        --max-tokens 40 --no-window-baseline --progress none --json "$dir/$name.json" "$@" >"$dir/log" 2>&1 ||
        { cat "$dir/log"; exit 1; }
}

compare graded -i $model/prompts/sums.jsonl $model/prompts/hops.jsonl --answer-field answer \
    --arms full,zip:64:no-global,zip:32,window:64
draw compare "$dir/graded.json"
count 6
for panel in 0 1; do
    points "series-$panel-0-full" 1
    points "series-$panel-1-zip" 2
    points "series-$panel-2-window" 1
done
shows sums hops full zip:64:no-global zip:32 window:64 "full KV" zip window \
    "exact match, % of the prompts, with the 95 % interval" "KV peak,"
# Each point is labelled with its KV tokens: two tasks, four arms.
sed -n 's/.*"peak_tokens_mean": \([0-9.]*\).*/\1/p' "$dir/graded.json" >"$dir/peaks"
[ "$(wc -l <"$dir/peaks")" = 8 ]
while read -r peak; do shows "$(LC_ALL=C printf '%.0f' "$peak")"; done <"$dir/peaks"

compare alone -i $model/prompts/sums.jsonl --arms full,zip:32
draw compare "$dir/alone.json"
count 2
shows sums "tokens that full KV would have chosen too, %"

# The height of a point is its share: three arms with 0, 50 and 100 % of exact matches.
for share in 0 0.5 1; do
    cat <<J
${comma:-}{"arm": "a$share", "kv": {"policy": "zip"}, "kv_memory": {"peak_tokens_mean": 1234},
 "exact_match": {"share": $share, "low_95": $share, "high_95": $share}}
J
    comma=", "
done >"$dir/arms"
echo "{\"complete\": true, \"tasks\": [{\"task\": \"t\", \"arms\": [$(cat "$dir/arms")]}]}" \
    >"$dir/shares.json"
draw compare "$dir/shares.json"
shows 1,234
# shellcheck disable=SC2046
evenly $(sed -n 's/,[^ ]*//g; s/^series series-0-1-zip 3 //p' "$dir/seen")

# ---- timeline ----

# bench NAME OPTIONS...: writes the figures and the timeline of a run that preempts requests.
bench() {
    name=$1
    shift
    "$cinch" bench throughput --model $model --block-size 32 --num-prompts 8 --input-len 8 \
        --output-len 96 --kv-cache-memory-bytes 2M --max-num-seqs 8 --timeline "$dir/$name.csv" \
        --timeline-interval 0.01 --output-json "$dir/$name.json" "$@" >"$dir/log" 2>&1 ||
        { cat "$dir/log"; exit 1; }
}

bench one --temperature 0
bench two --temperature 0 --kv-policy zip --kv-budget 32
draw timeline "first run=$dir/one.csv" "second & last=$dir/two.csv" --smooth 0
count 8
for panel in 0 1 2 3; do
    points "series-$panel-0-first-run" $(($(wc -l <"$dir/one.csv") - 1))
    points "series-$panel-1-second-last" $(($(wc -l <"$dir/two.csv") - 1))
done
shows "first run" "second & last" "output tokens/s" tokens/s "requests waiting" requests \
    "tokens recomputed so far" tokens "time, seconds" "requests that get a token in a step, mean"
draw timeline "first run=$dir/one.csv" --smooth 1000
count 3
points series-0-0-first-run 1

# Each panel shows its own column. In every column, the second timeline is the mean of the others.
for n in 0 1 2; do
    printf 'time_s,steps,output_tokens,waiting,recomputed_tokens\n%s\n%s\n' \
        "1,10,$((n * 40)),$((n * 3)),$((n * 50))" "2,10,$((n * 20)),$((n * 5)),$((n * 60))" \
        >"$dir/level$n.csv"
done
draw timeline a="$dir/level0.csv" b="$dir/level1.csv" c="$dir/level2.csv" --smooth 0
count 12
for panel in 0 1 2 3; do
    evenly "$(level series-$panel-0-a)" "$(level series-$panel-1-b)" "$(level series-$panel-2-c)"
done
# Panels whose values are all zero are omitted, except the first.
draw timeline a="$dir/level0.csv"
count 1

# ---- bench ----

draw bench one="$dir/one.json" two="$dir/two.json" --title Title --xlabel Runs
count 2
shows one two Title Runs "output tokens/s"
draw bench "here/full=$dir/one.json" "here/zip=$dir/two.json" "there/zip=$dir/one.json" \
    --metric total_output_tokens
count 3
shows here there full zip "total output tokens" 768
for group in 0 1; do points "series-$group-1-zip" 4; done
points series-0-0-full 4

# Heights and labels show the figures of bench throughput and of bench serve.
echo '{"output_tokens_per_second": 0}' >"$dir/level0.json"
echo '{"output_throughput": 1234.4}' >"$dir/level1.json"
echo '{"output_tokens_per_second": 2468.8}' >"$dir/level2.json"
draw bench bar/a="$dir/level0.json" bar/b="$dir/level1.json" bar/c="$dir/level2.json"
shows 1,234 2,469
evenly "$(level series-0-0-a)" "$(level series-0-1-b)" "$(level series-0-2-c)"

# The file that bench/gpu_workloads.sh writes can be drawn.
CINCH=$cinch SHAPE=../../$model DEVICE=cpu POOL=64M SEQS=8 PROMPTS=2 bench/gpu_workloads.sh \
    "$dir/workloads" gsm8k >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
draw bench "$dir/workloads/throughput.json"
count 5
shows gsm8k full zip "not asynchronous" "not hybrid" "no prefix sharing"

# ---- the plots of docs/ ----

mkdir "$dir/docs"
"${MAKE:-make}" --no-print-directory BUILD="$build" PLOTS="$dir/docs" plots >"$dir/log" 2>&1 ||
    { cat "$dir/log"; exit 1; }
for plot in docs/plots/*.svg; do
    "$python" tests/plot_series.py "$plot" "$dir/docs/$(basename "$plot")" ||
        { echo "$plot does not match docs/plots/data: run make plots"; exit 1; }
done
for plot in "$dir"/docs/*.svg; do [ -e "docs/plots/$(basename "$plot")" ]; done

# ---- formats and bad input ----

"$python" bench/plot.py bench one="$dir/one.json" -o "$dir/plot.png"
"$python" bench/plot.py bench one="$dir/one.json" -o "$dir/again.png"
cmp "$dir/plot.png" "$dir/again.png"
[ "$(head -c 4 "$dir/plot.png" | tail -c 3)" = PNG ]

none="$dir/none.svg"
echo '{' >"$dir/broken.json"
echo '{"tasks": []}' >"$dir/empty.json"
awk 'BEGIN { for (i = 0; i < 200000; i++) printf "[" }' >"$dir/deep.json"
echo "{\"x\": 1$(printf '%0400d' 0)}" >"$dir/huge.json"
printf '\377' >"$dir/bytes.json"
: >"$dir/nothing.csv"
sed 1q "$dir/one.csv" >"$dir/header.csv"
sed 's/^\([0-9.]*\),[0-9]*/\1,x/' "$dir/one.csv" >"$dir/letters.csv"
cut -d, -f1-4 "$dir/one.csv" >"$dir/columns.csv"
sed 's/"policy": "zip"/"policy": "zap"/' "$dir/graded.json" >"$dir/policy.json"
sed 's/"share": [0-9.]*/"share": null/' "$dir/graded.json" >"$dir/share.json"
refused "nowhere.json: No such file" compare "$dir/nowhere.json" -o "$none"
refused "nowhere.csv: No such file" timeline a="$dir/nowhere.csv" -o "$none"
refused "nowhere.json: No such file" bench a="$dir/nowhere.json" -o "$none"
refused "broken.json: expected JSON" compare "$dir/broken.json" -o "$none"
refused "bytes.json: expected UTF-8 text" bench a="$dir/bytes.json" -o "$none"
refused "one.json: expected a list as tasks, got null" compare "$dir/one.json" -o "$none"
refused "empty.json: expected at least one task" compare "$dir/empty.json" -o "$none"
refused "deep.json: expected" compare "$dir/deep.json" -o "$none"
refused "huge.json: expected a number as x" bench a="$dir/huge.json" --metric x -o "$none"
refused "policy.json: expected a policy of full, zip, window, got zap" compare "$dir/policy.json" \
    -o "$none"
refused "share.json: expected a number as exact_match.share, got null" compare "$dir/share.json" \
    -o "$none"
refused "nothing.csv: expected the column time_s" timeline a="$dir/nothing.csv" -o "$none"
refused "columns.csv: expected the column waiting" timeline a="$dir/columns.csv" -o "$none"
refused "header.csv: expected rows" timeline a="$dir/header.csv" -o "$none"
refused "letters.csv: line 2: expected numbers" timeline a="$dir/letters.csv" -o "$none"
refused "expected NAME=FILE, got '$dir/one.csv'" timeline "$dir/one.csv" -o "$none"
refused "the name a is given twice" timeline a="$dir/one.csv" a="$dir/two.csv" -o "$none"
refused "the name a/b is given twice" bench a/b="$dir/one.json" a/b="$dir/two.json" -o "$none"
refused "a single result is drawn as NAME=$dir/one.json" bench "$dir/one.json" -o "$none"
refused "expected a number as nothing, got null" bench a="$dir/one.json" --metric nothing -o "$none"
refused "expected a number as backend, got a string" bench a="$dir/one.json" --metric backend \
    -o "$none"
refused "none.pdf: expected a name that ends in .svg or .png" bench a="$dir/one.json" \
    -o "$dir/none.pdf"
refused "/no/such.svg: No such file" bench a="$dir/one.json" -o /no/such.svg
echo "plot: ok"
