#!/usr/bin/env python3
"""Compares cinch with transformers' generate(): same checkpoint, prompts, batch, lengths, threads.

    python3 bench/compare_transformers.py [--requests 64] [--output-len 256] [--threads N]

Both run in f32, get the same token ids and generate exactly --output-len greedy tokens for each
prompt; neither stops early. transformers runs all prompts as one left-padded batch with its KV
cache. cinch runs them as one batch with continuous batching, without the prefix cache. Neither time
includes tokenization or loading. Both run --rounds times, alternating; the best time counts. Needs
torch, transformers and tokenizers. Prints one line of figures for each and the ratio, and writes
JSON with --json.
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
    p.add_argument("--model", default=str(ROOT / "examples/tiny-reasoner"))
    p.add_argument("--prompts", help="JSONL with the field prompt; default: the ledger task")
    p.add_argument("--cinch", default=str(ROOT / "build/cinch"))
    p.add_argument("--requests", type=int, default=64)
    p.add_argument("--output-len", type=int, default=256)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--at-least", type=float, help="exit 1 when the ratio is below this")
    p.add_argument("--json", help="also write the figures here")
    return p.parse_args()


def read_prompts(path, n):
    with open(path, encoding="utf-8") as f:
        asked = [json.loads(line)["prompt"] for line in f][:n]
    if len(asked) < n:
        sys.exit(f"{path}: expected {n} prompts, got {len(asked)}: lower --requests")
    return [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in asked]


class Transformers:
    def __init__(self, a, ids):
        import torch
        import transformers

        self.name = f"transformers {transformers.__version__} (torch {torch.__version__})"
        self.torch, self.output_len, self.n = torch, a.output_len, len(ids)
        torch.set_num_threads(a.threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
        self.model.eval()
        longest = max(map(len, ids))
        self.ids = torch.zeros(len(ids), longest, dtype=torch.long)
        self.mask = torch.zeros_like(self.ids)
        for row, prompt in enumerate(ids):
            self.ids[row, longest - len(prompt):] = torch.tensor(prompt)
            self.mask[row, longest - len(prompt):] = 1
        self.generate(8)

    def generate(self, n):
        with self.torch.inference_mode():
            out = self.model.generate(self.ids, attention_mask=self.mask, do_sample=False,
                                      min_new_tokens=n, max_new_tokens=n, use_cache=True,
                                      pad_token_id=0)
        assert out.shape[1] == self.ids.shape[1] + n

    def seconds(self):
        began = time.perf_counter()
        self.generate(self.output_len)
        return time.perf_counter() - began


class Cinch:
    def __init__(self, a, texts, n_prompt_tokens, folder):
        self.prompts, self.figures = folder / "prompts.jsonl", folder / "figures.json"
        with open(self.prompts, "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"prompt": t}) + "\n" for t in texts)
        self.command = [a.cinch, "bench", "throughput", "--model", a.model, "--dataset-name",
                        "custom", "--dataset-path", self.prompts, "--output-len", a.output_len,
                        "--num-prompts", len(texts), "--max-num-seqs", len(texts), "--threads",
                        a.threads, "--temperature", 0, "--no-enable-prefix-caching",
                        "--output-json", self.figures]
        self.command = [str(word) for word in self.command]
        self.n_prompt_tokens = n_prompt_tokens
        version = subprocess.run([a.cinch, "version"], check=True, capture_output=True, text=True)
        self.name = version.stdout.strip()

    def seconds(self):
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)
        figures = json.loads(self.figures.read_text())
        assert figures["total_input_tokens"] == self.n_prompt_tokens, "prompt tokens differ"
        return figures["elapsed_time"]


def main():
    a = arguments()
    os.environ["HF_HUB_OFFLINE"] = "1"
    from tokenizers import Tokenizer

    texts = read_prompts(a.prompts or f"{a.model}/prompts/ledger.jsonl", a.requests)
    tokenizer = Tokenizer.from_file(f"{a.model}/tokenizer.json")
    ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    n_prompt, n_output = sum(map(len, ids)), a.requests * a.output_len
    print(f"{a.requests} requests, {n_prompt} prompt and {n_output} output tokens, greedy, f32, "
          f"{a.threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        contestants = [Cinch(a, texts, n_prompt, pathlib.Path(folder)), Transformers(a, ids)]
        best = [min(times) for times in
                zip(*([c.seconds() for c in contestants] for _ in range(a.rounds)))]
    for c, s in zip(contestants, best):
        print(f"{c.name}: {s:.2f} s, {n_output / s:.1f} output tokens/s")
    ratio = best[1] / best[0]
    print(f"ratio {ratio:.2f}")
    if a.json:
        figures = {"requests": a.requests, "output_len": a.output_len, "threads": a.threads,
                   "prompt_tokens": n_prompt, "ratio": ratio,
                   "runs": [{"name": c.name, "seconds": s, "output_tokens_per_s": n_output / s}
                            for c, s in zip(contestants, best)]}
        pathlib.Path(a.json).write_text(json.dumps(figures, indent=1) + "\n")
    if a.at_least and ratio < a.at_least:
        sys.exit(f"ratio {ratio:.2f} is below --at-least {a.at_least}")


if __name__ == "__main__":
    main()
