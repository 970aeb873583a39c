#!/bin/sh
# Runs lm-eval, guidellm, openai-agents, pydantic-ai, instructor, magentic, smolagents, litellm's
# proxy and schemathesis from PyPI and Debian's promtool against a running server.
# lm-eval's loglikelihoods must equal those of transformers, with the checkpoint, tokenizer and task
# of this tree: nothing is downloaded but the packages. BUILD is the build directory. EXAMPLES is how
# many bodies schemathesis draws for each route, from SEED; 500 make more than 5,000 cases.
set -eu
root=$PWD
dir=$(mktemp -d)
. tests/lib/serve.sh
trap clean_up EXIT

need_python heavy-clients "lm-eval[api]==0.4.13" guidellm==0.8.1 schemathesis==4.32.5 torch==2.15.0 \
    transformers==5.23.0 accelerate==1.15.0 peft==0.21.2
bin=$(realpath "$(dirname "$python")")
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$dir/hf"
serve --kv-cache-memory-bytes 64M --spool "$dir/spool" --max-reply-bytes 4M

"$python" tests/clients/lm_eval_compare.py task "$dir/task"
lm_eval() {
    "$bin/lm_eval" --tasks cinch_choice --include_path "$dir/task" --log_samples "$@" \
        >"$dir/lm_eval.log" 2>&1 || { cat "$dir/lm_eval.log"; exit 1; }
}
lm_eval --model local-completions --batch_size 4 --output_path "$dir/served" --model_args \
    "model=tiny,base_url=$url/v1/completions,tokenizer=examples/tiny-reasoner,tokenizer_backend=huggingface,num_concurrent=2"
lm_eval --model hf --device cpu --output_path "$dir/reference" --model_args \
    "pretrained=examples/tiny-reasoner,dtype=float32"
"$python" tests/clients/lm_eval_compare.py compare "$dir/served" "$dir/reference"

"$bin/guidellm" run --backend "kind=openai_http,target=$url" \
    --tokenizer "kind=hf_auto,model=examples/tiny-reasoner" \
    --data "kind=synthetic_text,prompt_tokens=32,output_tokens=16" \
    --profile "kind=concurrent,streams=2" --constraint "kind=max_requests,count=6" \
    --output "kind=json,path=$dir/guide.json" --disable-console >"$dir/guide.log" 2>&1 ||
    { cat "$dir/guide.log"; exit 1; }
"$python" - "$dir/guide.json" <<'P'
import json, sys
requests = json.load(open(sys.argv[1]))["benchmarks"][0]["requests"]
assert len(requests["successful"]) >= 6 and not requests["errored"], {k: len(v) for k, v in requests.items()}
P
echo "guidellm: ok"

stop
schemas=$bin/schemathesis
need_python agents openai-agents==0.24.0 "pydantic-ai-slim[openai]==2.68.0"
serve --kv-cache-memory-bytes 64M --tool-call-parser hermes --reasoning-parser qwen3 \
    --chat-template qwen3
"$python" tests/clients/agents_responses.py "$url" a-key 2>"$dir/agents.log" ||
    { cat "$dir/agents.log"; exit 1; }
stop

# A short context keeps the answers to random bodies short.
serve --kv-cache-memory-bytes 64M --spool "$dir/spool" --max-model-len 64 --tool-call-parser hermes
# Requests that are valid may still be refused for what the schemas do not say: schema_refusals.py has
# these reasons and replaces positive_data_acceptance, which knows none.
export SCHEMATHESIS_HOOKS=schema_refusals PYTHONPATH="$root/tests/clients"
cd "$dir" # where schemathesis leaves files
"$schemas" run "$url/openapi.json" --url "$url" --checks all --phases fuzzing,coverage \
    --exclude-checks ignored_auth,positive_data_acceptance --max-examples "${EXAMPLES:-120}" \
    --request-timeout 60 --seed "${SEED:-7}" >"$dir/schema.log" 2>&1 || { cat "$dir/schema.log"; exit 1; }
grep generated "$dir/schema.log"
stop

# Typed outputs and forced tool calls: sets, URLs and optional members. The log also has what
# instructor and smolagents print.
cd "$root"
need_python structured-frameworks instructor==1.17.0 magentic==0.41.1 smolagents==1.26.0 \
    openai==3.3.0 pydantic==2.14.4
serve --kv-cache-memory-bytes 64M --tool-call-parser hermes --chat-template qwen3
for script in structured_frameworks agents_tools; do
    "$python" tests/clients/$script.py "$url" >"$dir/$script.log" 2>&1 ||
        { cat "$dir/$script.log"; exit 1; }
    echo "$script: ok"
done
need_python litellm "litellm[proxy]==1.108.7"
"$python" tests/clients/litellm_proxy.py "$(realpath "$(dirname "$python")")/litellm" "$url" "$dir" ||
    { cat "$dir/litellm.log"; exit 1; }
stop

# serve_client_check.sh has the other forms of tool calls.
need_python clients openai==3.52.0 prometheus_client==0.26.0
for parser in qwen3_coder mistral pythonic; do
    template=qwen3
    [ $parser != mistral ] || template=tests/golden/chat_template/templates/mistral_v3.jinja
    serve --kv-cache-memory-bytes 64M --tool-call-parser $parser --chat-template $template
    "$python" tests/clients/openai_tools.py "$url" a-key >"$dir/$parser.log" 2>&1 ||
        { cat "$dir/$parser.log"; exit 1; }
    echo "tool calls, $parser: ok"
    stop
done

# Every metric but vLLM's, whose names clients expect, must please promtool.
cd "$root"
need_promtool
serve --kv-policies full,zip --kv-selectors ds,spade --kv-homes host --home-space 0.2 \
    --kv-cache-memory-bytes 256M --spool "$dir/spool"
for stream in false true; do
    curl -sf -o /dev/null "$url/v1/completions" -H "Content-Type: application/json" \
        -d "{\"prompt\": \"Sort: 3 1 2\", \"max_tokens\": 8, \"stream\": $stream}"
done
curl -sf "$url/metrics" >"$dir/metrics"
n=$(grep -c "^# TYPE cinch_" "$dir/metrics")
"$promtool" check metrics <"$dir/metrics" >"$dir/promtool.log" 2>&1 || true
if grep -v "^vllm:" "$dir/promtool.log" || [ "$n" -lt 20 ]; then exit 1; fi
grep -q "^vllm:" "$dir/promtool.log" # it has read them
echo "promtool: ok, $n metrics of cinch"
stop
echo "nightly clients: ok"
