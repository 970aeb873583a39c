#!/usr/bin/env python3
"""Compares full KV with `zip`: the same requests with long outputs in the same small KV pool.

    python3 bench/capacity.py OUTDIR [--requests 256] [--pool 192M] [--device cpu]

Prompts are random, and every output has at least 1,000 tokens whatever the model generates. Writes
the figures (JSON) and timeline (CSV) of each arm to OUTDIR and prints a table. Exits with 1 when
`zip` preempted a request that held a query slot. Also exits with 1 when `full` preempted no
request, because such a pool is too large for the comparison. An arm whose JSON file exists is not
run again. Needs only the standard library. bench/plot.py draws the timelines.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARMS = {
    "full": ["--kv-policy", "full"],
    "zip": ["--kv-policy", "zip", "--kv-budget", "256"],
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--cinch", default=str(ROOT / "build/cinch"))
    p.add_argument("--model", default=str(ROOT / "examples/tiny-reasoner"))
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--requests", type=int, default=256)
    p.add_argument("--output-len", type=int, default=1250, help="mean; varies by up to a fifth")
    p.add_argument("--pool", default="192M", help="memory of the KV pool")
    return p.parse_args()


def run(a, arm, options):
    done = a.out / f"{arm}.json"
    if not done.exists():
        partial = a.out / f"{arm}.part"
        command = [a.cinch, "bench", "throughput", "--model", a.model, "--device", a.device,
                   "--threads", str(a.threads), "--kv-cache-memory-bytes", a.pool,
                   "--block-size", "64", "--input-len", "64", "--output-len", str(a.output_len),
                   "--random-range-ratio", "0.2", "--num-prompts", str(a.requests),
                   "--max-num-seqs", str(a.requests), "--timeline", str(a.out / f"{arm}.csv"),
                   "--output-json", str(partial), *options]
        print("+", " ".join(command), file=sys.stderr)
        subprocess.run(command, check=True, stdout=sys.stderr)
        partial.rename(done)
    with open(done, encoding="utf-8") as f:
        return json.load(f)


def table(figures):
    rows = [
        ("output tokens/s", lambda f: f"{f['output_tokens_per_second']:,.0f}"),
        ("requests in a step, mean", lambda f: f"{f['mean_batch']:.1f}"),
        ("preemptions", lambda f: f"{f['preemptions']:,}"),
        ("preemptions of requests with a slot", lambda f: f"{f['holder_preemptions']:,}"),
        ("tokens recomputed", lambda f: f"{f['recomputed_tokens']:,}"),
        ("tokens recomputed per output token",
         lambda f: f"{f['recomputed_tokens'] / f['total_output_tokens']:.3f}"),
        ("compressions", lambda f: f"{f['compressions']:,}"),
        ("time in which a compression stopped all decoding",
         lambda f: f"{100 * f['stalled_s'] / f['elapsed_time']:.2f} %"),
    ]
    print("| |", " | ".join(figures), "|")
    print("|---" * (len(figures) + 1) + "|")
    for name, cell in rows:
        print(f"| {name} |", " | ".join(cell(f) for f in figures.values()), "|")


def main():
    a = arguments()
    a.out.mkdir(parents=True, exist_ok=True)
    figures = {arm: run(a, arm, options) for arm, options in ARMS.items()}
    table(figures)
    speed = {arm: f["output_tokens_per_second"] for arm, f in figures.items()}
    print(f"\nzip / full: {speed['zip'] / speed['full']:.2f}")
    if figures["zip"]["holder_preemptions"]:
        sys.exit("zip preempted a request that held a query slot")
    if not figures["full"]["preemptions"]:
        sys.exit("full preempted no request: lower --pool or raise --requests")


if __name__ == "__main__":
    main()
