#!/usr/bin/env python3
"""Compares cinch with transformers' continuous batching on the same GPU. All requests have the same
prompt and output lengths (default: workload W), on a shape of bench/shapes with random weights.

    python3 bench/gpu_transformers.py [--shape qwen3-8b] [--requests 160] [--output-len 4096]

Both get random prompts, sample at temperature 1 and never stop early. transformers runs in bf16 with
torch's paged attention (--attention selects another). It chooses its blocks, batch and CUDA graphs
itself, after a warm-up of all requests with 16 tokens. Neither time includes loading. Each has the
GPU alone: transformers runs first, in a separate process. Needs torch and transformers. Prints a
line for each and the ratio, and writes JSON with --json.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--shape", default="qwen3-8b", help="folder of bench/shapes")
    p.add_argument("--requests", type=int, default=160)
    p.add_argument("--input-len", type=int, default=128)
    p.add_argument("--output-len", type=int, default=4096)
    p.add_argument("--cinch", default=str(ROOT / "build/cinch"))
    p.add_argument("--device", default="cuda")
    p.add_argument("--attention", default="sdpa", help="transformers' attn_implementation")
    p.add_argument("--json", help="also write the figures here")
    p.add_argument("--transformers-only", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


def run_transformers(a):
    """Runs transformers. Prints one line of JSON: {"name": ..., "seconds": ...}."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(ROOT / "bench/shapes" / a.shape)
    with torch.device(a.device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=f"paged|{a.attention}").eval()
    prompts = torch.randint(config.vocab_size, (a.requests, a.input_len)).tolist()

    def generate(n):
        settings = transformers.GenerationConfig(
            max_new_tokens=n, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1,
            pad_token_id=0)
        began = time.perf_counter()
        with torch.no_grad():
            outputs = model.generate_batch(prompts, settings, progress_bar=False)
        made = sum(len(o.generated_tokens) for o in outputs.values())
        if made != a.requests * n:
            sys.exit(f"transformers: expected {a.requests * n} tokens, got {made}")
        return time.perf_counter() - began

    generate(16)
    print(json.dumps({"name": f"transformers {transformers.__version__}",
                      "seconds": generate(a.output_len)}))


def time_transformers():
    done = subprocess.run([sys.executable, *sys.argv, "--transformers-only"], check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def time_cinch(a):
    with tempfile.TemporaryDirectory() as folder:
        figures = pathlib.Path(folder) / "figures.json"
        command = [a.cinch, "bench", "throughput", "--model", ROOT / "bench/shapes" / a.shape,
                   "--load-format", "dummy", "--device", a.device, "--max-num-seqs", a.requests,
                   "--num-prompts", a.requests, "--input-len", a.input_len, "--output-len",
                   a.output_len, "--max-model-len", a.input_len + a.output_len + 128,
                   "--temperature", 1, "--output-json", figures]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
        seconds = json.loads(figures.read_text())["elapsed_time"]
    version = subprocess.run([a.cinch, "version"], check=True, capture_output=True, text=True)
    return {"name": version.stdout.strip(), "seconds": seconds}


def main():
    a = arguments()
    if a.transformers_only:
        return run_transformers(a)
    n_output = a.requests * a.output_len
    runs = [time_transformers(), time_cinch(a)]
    for run in runs:
        run["output_tokens_per_s"] = n_output / run["seconds"]
        print(f"{run['name']}: {run['seconds']:.1f} s, {run['output_tokens_per_s']:.0f} output tokens/s")
    ratio = runs[0]["seconds"] / runs[1]["seconds"]
    print(f"ratio {ratio:.2f}")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps({"shape": a.shape, "requests": a.requests,
                                                    "input_len": a.input_len,
                                                    "output_len": a.output_len, "runs": runs,
                                                    "ratio": ratio}, indent=1) + "\n")


if __name__ == "__main__":
    main()
