#!/bin/sh
# Checks the command line: help, version, unknown words and the exit codes of bad options. Every
# command's --help must name every option the command takes, and no other. BUILD is the build
# directory.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# expect CODE TEXT ARGUMENTS...: cinch must exit with CODE and print TEXT, on either output.
expect() {
    code=$1
    text=$2
    shift 2
    got=0
    "$cinch" "$@" >"$dir/out" 2>&1 </dev/null || got=$?
    [ "$got" = "$code" ] && grep -qF -e "$text" "$dir/out" && return
    echo "cinch $*: expected exit code $code and '$text', got exit code $got:"
    cat "$dir/out"
    exit 1
}

version=$(sed -n 's/.*define CINCH_VERSION "\(.*\)"/\1/p' engine/cinch.h)
expect 0 "cinch $version" version
expect 0 "cinch $version" --version
expect 0 "usage: cinch" help
expect 0 "usage: cinch" --help
expect 1 "usage: cinch"
expect 1 "unknown command 'dance'" dance
expect 1 "unknown command 'dance'" help dance
expect 1 "unknown command 'run-bach': did you mean run-batch?" run-bach --model x
expect 1 "unknown command 'serv': did you mean serve?" help serv
expect 1 "expected a command before --model, such as cinch run-batch --model" --model x

# completes WORDS... gives WANTED: what bash offers for the last word.
"${BUILD:-build}/tests/print_docs" bash >"$dir/completion"
completes() {
    wanted=$1
    shift
    got=$(bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cinch; echo "${COMPREPLY[*]}"' \
        "$dir/completion" "$@")
    [ "$got" = "$wanted" ] || { echo "completion of '$*': expected '$wanted', got '$got'"; exit 1; }
}
completes "run-batch" cinch ru
completes "run-batch" cinch help ru
completes "--kv-policy --kv-policies" cinch serve --kv-poli
completes "convex subtract" cinch plan --kv-combine ""
completes "zip" cinch run-batch --model x --kv-policy z
completes "--include-stop-str-in-output --input-len" cinch bench --in
completes "" cinch tokenize --kv-po
expect 1 "unknown option --nonsense" plan --nonsense

decode="tokenize --model examples/tiny-reasoner --decode"
# shellcheck disable=SC2086
expect 0 "&" $decode --text "[5]"
# shellcheck disable=SC2086
expect 1 "token 1 is 99999: expected an id below 2048" $decode --text "5 99999"

# These errors must come before a model is loaded, because a run may take hours: an option without
# the option it needs, an option of another command, a path that cannot be written.
model="--model examples/tiny-reasoner"
while IFS='|' read text arguments; do
    # shellcheck disable=SC2086
    expect 1 "$text" $arguments
done <<T
--render needs --chat|tokenize $model --text x --render
--enable-thinking needs --chat|tokenize $model --text x --enable-thinking on
--text and --file x both set|tokenize $model --text x --file x
--decode converts ids to text, --chat|tokenize $model --text 1 --decode --chat
--decode converts ids to text, --pieces|tokenize $model --text 1 --decode --pieces
--render prints the prompt|tokenize $model --text [] --chat --render --pieces
--decode-steps needs --resident|bench throughput $model --decode-steps 8
--warmup-steps needs --steady-steps|bench throughput $model --warmup-steps 8
--timeline-interval needs --timeline|bench throughput $model --timeline-interval 1
--save-detailed needs --output-json|bench serve $model --save-detailed
--burstiness 2: the option no longer exists|bench serve $model --burstiness 2
--request-rate: bench serve takes this option, bench throughput does not|bench throughput $model --request-rate 5
--api-key: bench serve takes this option, bench throughput does not|bench throughput $model --api-key k
--resident: bench throughput takes this option, bench serve does not|bench serve $model --resident 64
--max-num-seqs: bench throughput takes this option, bench serve does not|bench serve $model --max-num-seqs 64
--output-json $dir/no/x: No such file|bench throughput $model --output-json $dir/no/x
--output-json $dir/no/x: No such file|bench serve $model --output-json $dir/no/x
--summary-json $dir: Is a directory|run-batch $model -i examples/prompts.jsonl -o $dir/o --summary-json $dir
--json $dir/no/x: No such file|compare $model -i examples/prompts.jsonl --arms zip --json $dir/no/x
--json /proc/version/x: Not a directory|compare $model -i examples/prompts.jsonl --arms zip --json /proc/version/x
--plot p.svg: the option no longer exists: write --json FILE|compare $model -i examples/prompts.jsonl --arms zip --plot p.svg
--input-file $dir/no/x: No such file|run-batch $model -i $dir/no/x -o $dir/o
--input-file $dir: Is a directory|compare $model -i $dir --arms zip
--retry-errors needs --resume|run-batch $model -i examples/prompts.jsonl -o $dir/o --retry-errors
--id-field needs --prompt-field|run-batch $model -i examples/prompts.jsonl -o $dir/o --id-field id
--kv-budget needs --kv-policy window|plan $model --kv-budget 2048
--kv-budget needs --kv-policy window|run-batch $model -i examples/prompts.jsonl -o $dir/o --kv-budget 384 --kv-select ds
--kv-window needs --kv-policy zip|serve $model --kv-window 32 --kv-policies full,window
--kv-sinks needs --kv-policy window|bench throughput $model --kv-sinks 8
--kv-global needs --kv-policy zip|run-batch $model -i examples/prompts.jsonl -o $dir/o --no-kv-global
--kv-observe needs --kv-rule scaled or peak|run-batch $model -i examples/prompts.jsonl -o $dir/o --prompt-field prompt --kv-policy zip --kv-rule zipage --kv-observe 64
--kv-recent needs --kv-rule scaled, peak or follow|bench throughput $model --kv-policy zip --kv-rule zipage --kv-recent 0.5
--kv-sinks needs --kv-rule scaled, peak or follow|bench throughput $model --kv-policy zip --kv-rule zipage --kv-sinks 8
--kv-redundancy needs --kv-rule zipage, scaled or peak|bench throughput $model --kv-policy zip --kv-rule follow --kv-redundancy none
--kv-recent needs an arm of --arms with rule scaled, peak or follow|compare $model -i examples/prompts.jsonl --arms zip:64:rule=zipage --no-window-baseline --kv-recent 0.5
--kv-lambda: no effect with kv redundancy none; leave one of them out|bench throughput $model --kv-policy zip --kv-redundancy none --kv-lambda 0.5
--kv-alpha: no effect with kv global false|run-batch $model -i examples/prompts.jsonl -o $dir/o --prompt-field prompt --kv-policy zip --no-kv-global --kv-alpha 0.5
--kv-tau: no effect with redundancy none, which every zip arm|compare $model -i examples/prompts.jsonl --arms zip:64:redundancy=none --no-window-baseline --kv-tau 0.5
--sync-compression needs --kv-policy window|bench throughput $model --sync-compression
--hybrid-scheduling needs --kv-policy window|serve $model --no-hybrid-scheduling
--select-tokens needs --kv-select oracle|run-batch $model -i examples/prompts.jsonl -o $dir/o --select-tokens 64 --kv-policy zip
--select-tiles needs --kv-select tls|plan $model --select-tiles 8 --kv-selectors ds
--select-group needs --kv-select ds or tls|plan $model --select-group mean --kv-select quest
--select-dense-layers needs --kv-select oracle|plan $model --select-dense-layers 1
--select-query needs --kv-home peer or host, with --kv-select tls|plan $model --select-query predicted --kv-select tls
--select-cap needs an arm of --arms that reads it: tls, spade, last or spec, with home=peer or home=host|compare $model -i examples/prompts.jsonl --arms spade:64 --select-cap 4
tls reads select_query only with home=peer or home=host before it|compare $model -i examples/prompts.jsonl --arms tls:64:select_query=predicted:home=host
spade does not read select_query|compare $model -i examples/prompts.jsonl --arms spade:64:home=host:select_query=predicted
--recent-tokens needs --kv-select oracle|plan $model --recent-tokens 1
--kv-policy has no effect on cinch compare|compare $model -i examples/prompts.jsonl --arms zip --kv-policy zip
--kv-selectors has no effect on cinch compare|compare $model -i examples/prompts.jsonl --arms zip --kv-selectors ds
--kv-alpha needs an arm of --arms that reads it: zip|compare $model -i examples/prompts.jsonl --arms window:64 --kv-alpha 0.5
--arms window:64:alpha=1: window does not read alpha: it reads budget sinks|compare $model -i examples/prompts.jsonl --arms window:64:alpha=1
--arms ds:64:budget=64: ds does not read budget|compare $model -i examples/prompts.jsonl --arms ds:64:budget=64
--kv-home has no effect on cinch compare: --arms names|compare $model -i examples/prompts.jsonl --arms spade:64 --kv-home host
--kv-select has no effect on bench throughput --arms|bench throughput $model --resident 64 --arms ds:64 --kv-select ds
--home-space 0.1: no home is declared; add home=peer or home=host to an arm|compare $model -i examples/prompts.jsonl --arms spade:64 --home-space 0.1
--unknown-fields has no effect on a forced continuation|compare $model -i examples/prompts.jsonl --arms zip --prompt-field p --continue-field q --unknown-fields refuse
--chat-template has no effect on a forced continuation|compare $model -i examples/prompts.jsonl --arms zip --prompt-field p --continue-field q --chat-template qwen3
--reasoning-parser has no effect on a forced continuation|compare $model -i examples/prompts.jsonl --arms zip --prompt-field p --continue-field q --reasoning-parser auto
--max-tokens has no effect on bench throughput: |bench throughput $model --output-len 8 --max-tokens 2
--ignore-eos has no effect on bench throughput: |bench throughput $model --no-ignore-eos
--served-model-name has no effect on bench throughput: |bench throughput $model --served-model-name a
--tool-call-parser has no effect on bench throughput: |bench throughput $model --tool-call-parser hermes
--max-tokens has no effect on bench serve: |bench serve $model --output-len 5 --max-tokens 2
--kv-policies has no effect on bench serve: |bench serve $model --kv-policies zip
--kv-selectors has no effect on bench serve: |bench serve $model --kv-selectors ds
--home-space has no effect on bench serve: |bench serve $model --home-space 1
--packs has no effect on bench serve: |bench serve $model --packs 2
--dtype has no effect on bench serve: |bench serve $model --dtype float32
--max-model-len has no effect on bench serve: |bench serve $model --max-model-len 64
--generation-config has no effect on bench serve: |bench serve $model --generation-config vllm
--reasoning-parser has no effect on bench serve: |bench serve $model --reasoning-parser auto
--chat-template has no effect on cinch tokenize: it needs --chat|tokenize $model --chat-template nonsense --text hi
--lengths needs --lines|plan $model --lengths README.md
--lengths README.md: no line is an answer|plan $model --lines 5 --lengths README.md
--lines 0.5: expected|plan $model --lines 0.5
--tokenizer /nonexist: no such directory|plan $model --tokenizer /nonexist
--chat-template has no effect on cinch plan: |plan $model --chat-template /nonexist
--share-prefix-cache is an option of the sharing section|run-batch $model -i examples/prompts.jsonl -o $dir/o --share-prefix-cache
--loop-rescue needs --repetition-max-pattern-size|run-batch $model -i examples/prompts.jsonl -o $dir/o --loop-rescue full --kv-policy zip
--loop-rescue needs --kv-policy window|run-batch $model -i examples/prompts.jsonl -o $dir/o --loop-rescue full --repetition-max-pattern-size 8 --repetition-min-count 2
--loop-rescue needs --kv-policy window|run-batch $model -i examples/prompts.jsonl -o $dir/o --loop-rescue full --repetition-max-pattern-size 8 --repetition-min-count 2 --kv-select spade --kv-home host --home-space 0.1
--repetition-min-count needs --repetition-max-pattern-size|run-batch $model -i examples/prompts.jsonl -o $dir/o --prompt-field q --repetition-min-count 3
--gpu-memory-utilization has no effect with --device cpu|plan $model --device cpu --gpu-memory-utilization 0.5
--max-batches needs --spool|serve $model --max-batches 5
--max-file-bytes needs --spool|serve $model --max-file-bytes 5M
--num-prompts has no effect with --resident|bench throughput $model --resident 64 --num-prompts 5
--input-len has no effect with --prefill|bench throughput $model --prefill 64 --input-len 5
--summary-json -: expected a file; standard output is /dev/stdout|run-batch $model -i examples/prompts.jsonl -o $dir/o --summary-json -
--text -: expected a file|calibrate $model --text - -o $dir/o
arm zip:64:select=ds: kv select ds with kv policy zip|compare $model -i examples/prompts.jsonl --arms zip:64:select=ds
byte 2: expected token ids, got '-2'|tokenize $model --decode --text 1,-2
--steady-steps with --kv-home host: |bench throughput $model --steady-steps 6 --kv-select spade --kv-home host --home-space 1
--workload lengths has its own lengths|bench throughput $model --workload lengths --random-range-ratio 0.5
--packs 2: no home is declared|plan $model --packs 2
--scheduling-policy has no effect on cinch plan: |plan $model --scheduling-policy priority
--reasoning-parser has no effect on cinch plan: |plan $model --reasoning-parser auto
--random-range-ratio has no effect with --steady-steps|bench throughput $model --steady-steps 6 --random-range-ratio 0.5
unexpected argument 'DIR': the checkpoint is given as --model DIR|serve DIR --port 0
unexpected argument 'b': --input-file takes one file; to join several, pipe them|run-batch $model -i a b -o $dir/o
--kv-policies takes a list|plan $model --kv-policy full,zip
--kv-select ds,tls: expected one value, not a list: one of|plan $model --kv-select ds,tls
--gpu-memory plans for a GPU, wherever it is: leave out --device cpu|plan $model --device cpu --gpu-memory 80G
--dtype float32 does not run on a GPU|plan $model --dtype float32 --gpu-memory 80G
--n 200 exceeds --max-n 128|run-batch $model -i examples/prompts.jsonl -o $dir/o --n 200
--n 9 exceeds --max-n 8|serve $model --n 9 --max-n 8
-o needs a value|run-batch $model -o -i x
--output-file needs a value|run-batch $model --output-file -i x
--gpu-memory 512M: expected bytes, with K, M, G, T for powers of 1024, k, m, g, t for powers of 1000, from 1G to|plan $model --gpu-memory 512M
--max-file-bytes 2T: expected bytes, with K, M, G, T for powers of 1024, k, m, g, t for powers of 1000, from 1 to 1T|serve $model --max-file-bytes 2T
--seed 99999999999999999999: expected a whole number from 0 to 18446744073709551615|run-batch $model -i examples/prompts.jsonl -o $dir/o --seed 99999999999999999999
--max-tokens 0: expected a whole number from 1|run-batch $model -i examples/prompts.jsonl -o $dir/o --max-tokens 0
--chat-template chatlm: expected a file, auto, or one of chatml, qwen2, qwen3, llama3, deepseek-r1, none; did you mean chatml?|run-batch $model -i examples/prompts.jsonl -o $dir/u --prompt-field prompt --chat-template chatlm
--chat-template x/y: expected a file, auto, or one of|tokenize $model --chat --text [] --chat-template x/y
--tokenizer nope: no such directory: expected one with tokenizer.json|run-batch $model -i examples/prompts.jsonl -o $dir/o --tokenizer nope
--tokenizer README.md: no such directory|tokenize $model --text x --tokenizer README.md
--gpu-memory 80: expected bytes|plan $model --gpu-memory 80
--kv-budget 256,512: expected one value, not a list: a whole number|plan $model --kv-budget 256,512
--max-model-len 9000: config.json allows at most 8192 tokens|plan $model --max-model-len 9000
--max-tokens 8192: config.json allows 8192 tokens of prompt and output|run-batch $model -i examples/prompts.jsonl -o $dir/o --prompt-field prompt --max-tokens 8192
--max-tokens 64: --max-model-len allows 64 tokens|serve $model --max-model-len 64 --max-tokens 64
no request fits: prompt and output of each exceed the context of 8192 tokens|bench throughput $model --input-len 9000
the input: column 1: not JSON: the text ends too early near '['|tokenize $model --chat --text [
the input: column 4: not JSON: unexpected text near '[nix'|tokenize $model --chat --text [nix
--model Qwen/Qwen3-8B: no such directory|plan --model Qwen/Qwen3-8B
--model README.md is a file: expected the directory|plan --model README.md
T
[ ! -e "$dir/o" ]
printf 'text\377' >"$dir/bytes.txt"
expect 1 "the input: byte 5 is not UTF-8: expected text" tokenize $model --file "$dir/bytes.txt"

# A file that is written must be no other file of the command, whatever the two paths look like.
mkdir "$dir/files"
cp examples/prompts.jsonl "$dir/files/in"
ln -s in "$dir/files/link"
ln "$dir/files/in" "$dir/files/hard"
ln -s new "$dir/files/dangling"
cp -r examples/tiny-reasoner "$dir/model"
ln -s "$dir/model/config.json" "$dir/files/config"
in=$dir/files/in
new=$dir/files/new
batch="run-batch $model --prompt-field prompt --max-tokens 1 -i $in"
while IFS='|' read text arguments; do
    # shellcheck disable=SC2086
    expect 1 "$text" $arguments
    cmp examples/prompts.jsonl "$in"
    [ ! -e "$new" ]
done <<T
--output-file $new is the same file as --summary-json|$batch -o $new --summary-json $new
--output-file $new is the same file as --summary-json|$batch -o $new --summary-json $dir/files/../files/new
--output-file $dir/files/dangling is the same file as --summary-json|$batch -o $dir/files/dangling --summary-json $new
--summary-json $new.cinch-run is the same file as the record beside --output-file|$batch -o $new --summary-json $new.cinch-run
--input-file $new.cinch-run is the same file as the record beside|run-batch $model -i $new.cinch-run -o $new
--summary-json $in is the same file as --input-file|$batch -o $new --summary-json $in
--summary-json $dir/files/link is the same file as --input-file|$batch -o $new --summary-json $dir/files/link
--summary-json $dir/files/hard is the same file as --input-file|$batch -o $new --summary-json $dir/files/hard
--summary-json $in is the same file as --chat-template|run-batch $model -i examples/prompts.jsonl -o $new --chat-template $in --summary-json $in
--output-file $dir/files/link is the same file as --input-file|$batch -o $dir/files/link
--json $in is the same file as --input-file|compare $model -i $in --arms zip --json $in
--json $in is the same file as an input file|compare $model -i examples/prompts.jsonl $in --arms zip --json $in
--output-file $in is the same file as --text|calibrate $model --text $in -o $in
--output-file $dir/model/model-00001-of-00002.safetensors is a file of the checkpoint|calibrate --model $dir/model --text $in -o $dir/model/model-00001-of-00002.safetensors
--output-file $dir/model/tokenizer.json is a file of the checkpoint|calibrate --model $dir/model --text $in -o $dir/model/tokenizer.json
--summary-json $dir/files/config is a file of the checkpoint|run-batch --model $dir/model -i $in -o $new --summary-json $dir/files/config
--json $dir/model/model.safetensors.index.json is a file of the checkpoint|compare --model $dir/model -i $in --arms zip --json $dir/model/model.safetensors.index.json
--output-json $dir/model/config.json is a file of the checkpoint|bench throughput --model $dir/model --output-json $dir/model/config.json
--output-file $in is the same file as an input file|calibrate $model --text x $in -o $in
--output-json $in is the same file as --workload|bench throughput $model --workload $in --output-json $in
--output-json $in is the same file as --dataset-path|bench serve $model --dataset-name custom --dataset-path $in --output-json $in
--timeline $new is the same file as --output-json|bench throughput $model --timeline $new --output-json $new
T
# shellcheck disable=SC2086
"$cinch" $batch -o - --summary-json "$new" >"$new" 2>"$dir/out" && exit 1
grep -qF -e "--output-file - is the same file as --summary-json" "$dir/out"
# shellcheck disable=SC2086
"$cinch" $batch -i - -o "$dir/o" --summary-json "$in" <"$in" 2>"$dir/out" && exit 1
grep -qF "is the same file as --input-file" "$dir/out"
cmp examples/prompts.jsonl "$in"
[ ! -e "$dir/o" ]
# Standard streams and devices may be given twice.
head -2 "$in" >"$dir/two"
# shellcheck disable=SC2086
expect 0 "2 answered" $batch -i "$dir/two" -o /dev/null --summary-json /dev/null
# shellcheck disable=SC2086
expect 0 '"answered": 2' $batch -i "$dir/two" -o - --summary-json /dev/stderr
grep -q "^2 answered, 0 errors" "$dir/out"

# With closed standard streams nothing but answers gets into the output, which can be resumed. The
# exit code says that the summary could not be written.
for resume in --no-resume --resume; do
    got=0
    # shellcheck disable=SC2086
    "$cinch" $batch -i "$dir/two" -o "$dir/closed" $resume <&- >&- 2>&- || got=$?
    [ $got = 1 ]
    [ "$(grep -c '^{"id"' "$dir/closed")" = 2 ]
    [ "$(wc -l <"$dir/closed")" = 2 ]
done

# full TEXT ARGUMENTS...: with a full disk as standard output, cinch must fail and print TEXT.
full() {
    text=$1
    shift
    got=0
    "$cinch" "$@" >/dev/full 2>"$dir/out" || got=$?
    [ "$got" = 1 ] && grep -qF -e "$text" "$dir/out" && return
    echo "cinch $* on a full disk: expected exit code 1 and '$text', got exit code $got:"
    cat "$dir/out"
    exit 1
}
reason="standard output: No space left on device"
full "cinch help: $reason" help
full "cinch version: $reason" --version
full "cinch plan: $reason" plan --help
full "cinch plan: $reason" plan --model examples/tiny-reasoner
full "cinch tokenize: $reason" tokenize --model examples/tiny-reasoner --text x
full "cinch bench: $reason" bench throughput --model examples/tiny-reasoner --num-prompts 1 \
    --input-len 4 --output-len 2
full "cinch compare: $reason" compare --model examples/tiny-reasoner --arms zip:64 --limit 1 \
    --prompt-field prompt -i "$in" --max-tokens 2
# shellcheck disable=SC2086
full "the summary: $reason" $batch -i "$dir/two" -o "$dir/full"
# shellcheck disable=SC2086
expect 1 "the summary: /dev/full: No space left on device" $batch -i "$dir/two" -o "$dir/full2" \
    --summary-json /dev/full
[ "$(grep -c '^{"id"' "$dir/full2")" = 2 ]
expect 1 "$dir: expected a file of JSON lines, got a directory" tokenize --model examples/tiny-reasoner --jsonl --file "$dir"

# A checkpoint that was cloned without git-lfs, file by file.
for file in config.json tokenizer.json model-00001-of-00002.safetensors; do
    rm -rf "$dir/model"
    cp -r examples/tiny-reasoner "$dir/model"
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n' >"$dir/model/$file"
    expect 1 "$dir/model/$file is a git-lfs pointer, not the file: run git lfs pull" \
        bench throughput --model "$dir/model" --num-prompts 1
done

# A time that is past today.
before=$(date -d '1 minute ago' +%H:%M)
if [ "$before" != 23:59 ]; then
    expect 0 "--until $before is past today and means tomorrow: requests are admitted until then, for 23 h" \
        run-batch --model examples/tiny-reasoner -i examples/prompts.jsonl -o "$dir/u" --max-tokens 1 \
        --prompt-field prompt --until "$before"
fi
# A misspelt --answer-field gives a warning, not an error, because lines may lack the field.
echo '{"q": "Sort: 3 1", "answer": "1 3"}' >"$dir/in.jsonl"
for field in anser answer; do
    rm -f "$dir"/o*
    # shellcheck disable=SC2086
    expect 0 "exact match 0/" run-batch $model -i "$dir/in.jsonl" -o "$dir/o" --prompt-field q \
        --answer-field $field --grade exact --max-tokens 2
    case $field:$(grep -c "^warning: --answer-field anser: no line has this field" "$dir/out") in
    anser:1 | answer:0) ;;
    *) cat "$dir/out"; exit 1 ;;
    esac
done
expect 0 "87" tokenize --model examples/tiny-reasoner --text x --no-render

# flags FILE: the options that a help text names, sorted.
flags() {
    sed -n 's/^  \(-[a-z], \)\{0,1\}--\(\[no-\]\)\{0,1\}\([a-z0-9-]*\) .*/\3/p' "$1" | sort
}
for words in "help help" "--help --help" "help -h"; do
    # shellcheck disable=SC2086
    expect 0 "usage: cinch COMMAND" $words
done
commands=$("$cinch" help | sed -n 's/^  \([a-z-]*\)  .*/\1/p' | grep -vx -e help -e version)
[ -n "$commands" ]
for command in $commands; do
    expect 0 "usage: cinch $command" help "$command"
    cp "$dir/out" "$dir/help.text"
    expect 0 "usage: cinch $command" "$command" --help
    cmp "$dir/out" "$dir/help.text"
    flags "$dir/out" >"$dir/usual"
    expect 0 "usage: cinch $command" help "$command" --help-all
    cp "$dir/out" "$dir/help.text"
    expect 0 "usage: cinch $command" "$command" --help-all
    cmp "$dir/out" "$dir/help.text"
    flags "$dir/out" >"$dir/help"
    [ -z "$(comm -23 "$dir/usual" "$dir/help")" ]
    # --help has few options, and says how many it leaves out.
    left=$(comm -13 "$dir/usual" "$dir/help" | wc -l)
    usual=$(wc -l <"$dir/usual")
    [ "$usual" -le 30 ] || { echo "cinch $command --help has $usual options"; exit 1; }
    [ "$left" = 0 ] || "$cinch" "$command" --help | grep -q "^$left more options: cinch $command --help-all"
    if [ "$command" = run-batch ] && [ "$usual" != 20 ]; then
        echo "cinch run-batch --help has $usual options, expected 20"
        exit 1
    fi
    sections=$(sed -n "s/^| \`cinch $command\` | \(.*\) |\$/\1/p" docs/CONFIG.md)
    for section in $sections; do
        sed -n "/^## $section\$/,/^## /s/^| \`--\([a-z0-9-]*\)\`.*/\1/p" docs/CONFIG.md
    done | sort >"$dir/taken"
    [ -s "$dir/taken" ] && cmp "$dir/help" "$dir/taken"
    # An option of a section that the command does not take is refused, not ignored.
    sed -n 's/^| `--\([a-z0-9-]*\)`.*/\1/p' docs/CONFIG.md | sort -u | comm -13 "$dir/taken" - |
        while read -r option; do expect 1 "--$option" "$command" "--$option" 1; done
done

# A closed standard stream cannot be read or written.
for closed in '-i examples/prompts.jsonl -o - >&-' "-i - --prompt-field p -o $dir/unread <&-"; do
    got=0
    eval "$cinch run-batch $model --max-tokens 2 $closed" 2>"$dir/err" || got=$?
    [ $got = 1 ] && grep -q 'Bad file descriptor' "$dir/err" ||
        { echo "$closed: exit code $got"; cat "$dir/err"; exit 1; }
done

# Answers that a disk did not take are a failure, also when each line has one. The first two fsyncs
# are those of the run's record: without and with the kind of device.
cat >"$dir/fsync.c" <<'C'
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
/* Call FAIL_FSYNC of fsync, or FAIL_CLOSE of close of the output, fails with ERRNO. */
static int fails(const char *name)
{
    static int calls;
    const char *number = getenv(name);
    if (!number || calls++ != atoi(number)) return 0;
    errno = atoi(getenv("ERRNO"));
    return 1;
}
int fsync(int fd)
{
    return fails("FAIL_FSYNC") ? -1 : (int)syscall(SYS_fsync, fd);
}
int close(int fd)
{
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    const int failed = n > 7 && strcmp(path + n - 7, "/synced") == 0 && fails("FAIL_CLOSE");
    syscall(SYS_close, fd);
    return failed ? -1 : 0;
}
C
"${CC:-cc}" -shared -fPIC -o "$dir/fsync.so" "$dir/fsync.c"
printf '{"prompt": "a"}\n{"prompt": "b"}\n' >"$dir/two"
# on_disk CODE TEXT NAME=VALUE...: runs two lines on a disk with this fault.
on_disk() {
    want=$1
    text=$2
    shift 2
    rm -f "$dir"/synced*
    got=0
    env LD_PRELOAD="$dir/fsync.so" "$@" "$cinch" run-batch --model "${model#--model }" \
        -i "$dir/two" -o "$dir/synced" --prompt-field prompt --max-tokens 4 \
        >"$dir/out" 2>"$dir/err" || got=$?
    [ $got = "$want" ] && grep -q "$text" "$dir/err" ||
        { echo "$*: exit code $got"; cat "$dir/err"; exit 1; }
}
# The record at the start: nothing is done, and no file is left.
on_disk 1 'synced.cinch-run.tmp: write: No space left' FAIL_FSYNC=0 ERRNO=28
[ ! -e "$dir/synced" ] && [ ! -e "$dir/synced.cinch-run" ]
# The answers at the end: --resume continues.
for fault in "fsync: Input/output error" FAIL_FSYNC=2:5 "fsync: No space left" FAIL_FSYNC=2:28 \
    "close: Input/output error" FAIL_CLOSE=0:5 "close: Disk quota exceeded" FAIL_CLOSE=0:122; do
    case $fault in
    FAIL*) ;;
    *) text=$fault && continue ;;
    esac
    on_disk 3 "synced: $text.*--resume" "${fault%:*}" ERRNO="${fault#*:}"
    [ "$(wc -l <"$dir/synced")" = 2 ]
    "$cinch" run-batch --model "${model#--model }" -i "$dir/two" -o "$dir/synced" --max-tokens 4 \
        --prompt-field prompt --resume >"$dir/out" 2>&1
    grep -q 'nothing was left to do: all 2 lines' "$dir/out"
done

# A request whose arrays find no host memory fails, and the others go on. Its arrays have more than
# 2,000 words.
cat >"$dir/calloc.c" <<'C'
#include <stddef.h>
void *__libc_calloc(size_t n, size_t size);
void *calloc(size_t n, size_t size);
void *calloc(size_t n, size_t size)
{
    return size == 4 && n > 2000 && n < 2400 ? NULL : __libc_calloc(n, size);
}
C
"${CC:-cc}" -shared -fPIC -o "$dir/calloc.so" "$dir/calloc.c"
for n in 2000 4; do
    echo "{\"custom_id\": \"$n\", \"url\": \"/v1/completions\"," \
        "\"body\": {\"prompt\": [5, 6], \"max_tokens\": $n}}"
done >"$dir/large"
got=0
LD_PRELOAD=$dir/calloc.so "$cinch" run-batch --model "${model#--model }" -i "$dir/large" \
    -o "$dir/starved" >"$dir/out" 2>"$dir/err" || got=$?
[ $got = 2 ] && grep -q '"custom_id": *"2000".*out of host memory' "$dir/starved" &&
    grep -q '"custom_id": *"4".*"finish_reason": *"length"' "$dir/starved" ||
    { echo "no host memory: exit code $got"; cat "$dir/err" "$dir/starved"; exit 1; }
echo "cli: ok"
