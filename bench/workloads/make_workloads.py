#!/usr/bin/env python3
"""Writes the length files in this folder. README.md describes the source of each number.

    python3 bench/workloads/make_workloads.py --amc23 amc23.jsonl --gsm8k gsm8k.jsonl

amc23.jsonl needs "problem" in each line, gsm8k.jsonl "question" and "answer". The same inputs give
the same files. Prints a table of the files. Needs only the standard library.
"""
import argparse
import json
import math
import pathlib
import random

SCALE = 4  # every length is divided by this
BYTES_PER_TOKEN = 3.5
TEMPLATE_TOKENS = 40  # chat template and the instruction to box the answer
HERE = pathlib.Path(__file__).resolve().parent


def read(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def tokens(text):
    return len(text.encode()) / BYTES_PER_TOKEN


def scaled(n, least=1):
    return max(least, round(n / SCALE))


def request(prompt, output, prefix=None, shared=0):
    r = {"prompt_tokens": scaled(prompt), "output_tokens": scaled(output)}
    if prefix is not None:
        r |= {"prefix": prefix, "prefix_tokens": min(scaled(shared), r["prompt_tokens"])}
    return r


def log_normal(rng, mean, sigma):
    return rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)


def amc23(rng, questions, samples):
    """Long reasoning. A hard question has long outputs in all its samples."""
    out = []
    for number, q in enumerate(questions):
        prompt = tokens(q["problem"]) + TEMPLATE_TOKENS
        hardness = log_normal(rng, 7000, 0.5)
        for _ in range(samples):
            out.append(request(prompt, min(16384, log_normal(rng, hardness, 0.3)), number, prompt))
    return out


def gsm8k(rng, questions):
    """Short answers, and one very long answer in a hundred."""
    out = []
    for q in questions:
        said = 1.5 * tokens(q["answer"]) * log_normal(rng, 1, 0.2)
        if rng.random() < 0.01:
            said = rng.uniform(4096, 16384)
        out.append(request(tokens(q["question"]) + TEMPLATE_TOKENS, said))
    return out


def long_prefix(rng, n, samples):
    """Documents with a question each; every question is asked several times."""
    out = []
    for number in range(n):
        document = min(14000, max(1500, log_normal(rng, 6900, 0.45)))
        for _ in range(samples):
            said = min(4096, log_normal(rng, 400, 0.6))
            if rng.random() < 0.01:
                said = 4096
            out.append(request(document + 60, said, number, document))
    return out


def write(name, requests):
    with open(HERE / name, "w", encoding="utf-8") as f:
        for r in requests:
            f.write(json.dumps(r) + "\n")
    n = len(requests)
    prompt = sum(r["prompt_tokens"] for r in requests) / n
    output = sum(r["output_tokens"] for r in requests)
    longest = max(r["output_tokens"] for r in requests)
    print(f"| `{name}` | {n:,} | {prompt:,.0f} | {output / n:,.0f} | {longest:,} | {output:,} |")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--amc23", required=True)
    p.add_argument("--gsm8k", required=True)
    a = p.parse_args()
    amc, gsm = read(a.amc23), read(a.gsm8k)
    print("| file | requests | mean prompt | mean output | longest output | output tokens |")
    print("|---|---|---|---|---|---|")
    in_turn = amc23(random.Random(1), amc, 8)
    random.Random(2).shuffle(in_turn)
    write("amc23.jsonl", in_turn)
    write("gsm8k.jsonl", gsm8k(random.Random(3), gsm))
    mixed = amc23(random.Random(4), amc, 4) + gsm8k(random.Random(5), gsm)
    random.Random(6).shuffle(mixed)
    write("mixture.jsonl", mixed)
    write("long-prefix.jsonl", long_prefix(random.Random(7), 150, 4))


if __name__ == "__main__":
    main()
