#!/usr/bin/env python3
"""The figures of the Zipage paper (§5.2, appendices D and E) remade: throughput of four workloads
under full KV, under `zip`, and under `zip` without asynchronous compression, hybrid scheduling or
prefix sharing; budgets; and what runs over time.

    python3 bench/figures.py OUTDIR [--device cuda] [--workloads amc23,mixture] [--num-prompts N]

Runs bench/workloads/*.jsonl, whose lengths are a quarter of the paper's, on a shape of bench/shapes
with random weights, block, budget and pool a quarter too (README.md there). Writes to OUTDIR, for
each run, its figures (JSON) and timeline (CSV), and plots: throughput.svg, budgets.svg and
WORKLOAD.svg; prints a table. A run whose JSON is there already is not repeated, so a script that was
cut off goes on where it stopped. Needs the standard library alone.
"""
import argparse
import json
import pathlib
import subprocess
import sys

import svg
import timeline

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKLOADS = ["amc23", "gsm8k", "mixture", "long-prefix"]
ZIP = ["--kv-policy", "zip", "--kv-budget", "512"]
ARMS = {
    "full": ["--kv-policy", "full"],
    "zip": ZIP,
    "not asynchronous": [*ZIP, "--sync-compression"],
    "not hybrid": [*ZIP, "--no-hybrid-scheduling"],
    "no prefix sharing": [*ZIP, "--no-enable-prefix-caching"],
}
BUDGETS = {1024: "256", 2048: "512", 4096: "1024"}  # the paper's: ours


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--cinch", default=str(ROOT / "build/cinch"))
    p.add_argument("--device", default="cuda")
    p.add_argument("--shape", default="qwen3-8b", help="folder of bench/shapes, or of a checkpoint")
    p.add_argument("--pool", default="14G", help="memory of the KV pool")
    p.add_argument("--max-num-seqs", default="512")
    p.add_argument("--workloads", default=",".join(WORKLOADS))
    p.add_argument("--num-prompts", help="the first of each workload; all when not given")
    p.add_argument("--limit", type=float, default=300, help="most seconds of one run")
    return p.parse_args()


def run(a, name, workload, options):
    """Figures of a run, or None when it failed or took too long."""
    done, partial = a.out / f"{name}.json", a.out / f"{name}.part"
    if not done.exists():
        shape = ROOT / "bench/shapes" / a.shape
        model = shape if shape.exists() else pathlib.Path(a.shape)
        command = [a.cinch, "bench", "throughput", "--model", str(model), "--load-format", "dummy",
                   "--device", a.device, "--kv-cache-memory-bytes", a.pool, "--block-size", "64",
                   "--max-model-len", "8192", "--max-num-seqs", a.max_num_seqs, "--temperature",
                   "1", "--workload", str(ROOT / f"bench/workloads/{workload}.jsonl"),
                   "--timeline", str(a.out / f"{name}.csv"), "--output-json", str(partial),
                   *options]
        if a.num_prompts:
            command += ["--num-prompts", a.num_prompts]
        print("+", " ".join(command), file=sys.stderr, flush=True)
        try:
            subprocess.run(command, check=True, stdout=sys.stderr, timeout=a.limit)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as e:
            print(f"{name}: {e}", file=sys.stderr)
            return None
        partial.rename(done)
    with open(done, encoding="utf-8") as f:
        return json.load(f)


def speed(figures):
    return figures and figures["output_tokens_per_second"]


def table(results):
    print("| workload |", " | ".join(ARMS), "| zip / full |")
    print("|---" * (len(ARMS) + 2) + "|")
    for workload, arms in results.items():
        cells = [f"{speed(f):,.0f}" if f else "" for f in arms.values()]
        both = arms["full"] and arms["zip"]
        ratio = f"{speed(arms['zip']) / speed(arms['full']):.2f}" if both else ""
        print(f"| {workload} |", " | ".join(cells), f"| {ratio} |")


def file_name(workload, arm):
    return f"{workload}-{arm.replace(' ', '-')}"


def plot_throughput(a, results):
    page = svg.Page()
    page.legend(ARMS)
    svg.bar_panel(page, "output tokens/s",
                  {w: {arm: speed(f) for arm, f in arms.items()} for w, arms in results.items()})
    page.write(a.out / "throughput.svg")


def plot_over_time(a, workload, arms):
    names = [arm for arm in ("full", "zip") if arms[arm]]
    if names:
        files = {arm: timeline.read(a.out / f"{file_name(workload, arm)}.csv") for arm in names}
        timeline.draw(a.out / f"{workload}.svg", files, smooth=1.0)


def budgets(a):
    speeds = {}
    for paper, ours in BUDGETS.items():
        same = ours == "512"
        name = "amc23-zip" if same else f"amc23-budget-{ours}"
        speeds[f"{paper:,}"] = {"zip": speed(run(a, name, "amc23", [*ZIP[:3], ours]))}
    page = svg.Page()
    svg.bar_panel(page, "AMC 23: output tokens/s by budget (the paper's figure of it)", speeds)
    page.write(a.out / "budgets.svg")
    print("\n| budget |", " | ".join(speeds), "|")
    print("|---" * (len(speeds) + 1) + "|")
    print("| amc23, output tokens/s |",
          " | ".join(f"{s['zip']:,.0f}" if s["zip"] else "" for s in speeds.values()), "|")


def main():
    a = arguments()
    a.out.mkdir(parents=True, exist_ok=True)
    chosen = a.workloads.split(",")
    results = {w: {arm: run(a, file_name(w, arm), w, options) for arm, options in ARMS.items()}
               for w in chosen}
    table(results)
    plot_throughput(a, results)
    for workload, arms in results.items():
        plot_over_time(a, workload, arms)
    if "amc23" in chosen:
        budgets(a)


if __name__ == "__main__":
    main()
