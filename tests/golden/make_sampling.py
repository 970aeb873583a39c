"""Writes sampling/cases.json: logits, sampling parameters and the results of a reference.

The reference is independent of the C code. It applies the steps of vLLM's sampler in their order,
with torch operations over a full sort. It shares no method with the C code, which selects by radix
and sums integers. A case whose result could change by rounding (a threshold met within MARGIN) is
replaced by a new one.
"""
import json
import pathlib
import random

import torch

CASES = 96
MARGIN = 1e-5


def draw_case(rng):
    vocab = rng.choice([1, 2, 7, 33, 64, 100])
    # A coarse grid creates ties, also at thresholds.
    grid = rng.choice([None, None, 0.5, 2.0])
    logits = [rng.gauss(0, 3) for _ in range(vocab)]
    if grid:
        logits = [round(x / grid) * grid for x in logits]
    logits = torch.tensor(logits, dtype=torch.float32)
    some = lambda k: [rng.randrange(vocab) for _ in range(k)]
    case = {
        "logits": logits.tolist(),
        "temperature": rng.choice([0.0, 0.25, 0.5, 1.0, 1.0, 2.0]),
        "top_k": rng.choice([-1, 0, 1, 2, 5, 20, vocab, 1000]),
        "top_p": rng.choice([1.0, 1.0, 0.05, 0.5, 0.9, 0.95]),
        "min_p": rng.choice([0.0, 0.0, 0.0, 0.01, 0.1, 1.0]),
        "presence_penalty": rng.choice([0.0, 0.0, 0.5, -1.5]),
        "frequency_penalty": rng.choice([0.0, 0.0, 0.25, -0.5]),
        "repetition_penalty": rng.choice([1.0, 1.0, 1.25, 0.5]),
        "prompt": some(rng.choice([0, 5])),
        "output": some(rng.choice([0, 8])),
        "bans": some(rng.choice([0, 0, 2])) if vocab > 2 else [],
        "biases": [[t, rng.choice([-100.0, -1.5, 2.0, 100.0])] for t in
                   sorted(set(some(rng.choice([0, 0, 2]))))],
    }
    return case


def penalised(case):
    x = torch.tensor(case["logits"], dtype=torch.float32)
    for t in case["bans"]:
        x[t] = -float("inf")
    for t, bias in case["biases"]:
        x[t] += bias
    output = torch.zeros_like(x)
    for t in case["output"]:
        output[t] += 1
    seen = output > 0
    for t in case["prompt"]:
        seen[t] = True
    rep = torch.where(seen, torch.tensor(case["repetition_penalty"]), torch.tensor(1.0))
    x = torch.where(x > 0, x / rep, x * rep)
    x -= case["frequency_penalty"] * output
    x -= case["presence_penalty"] * (output > 0)
    return x


def reference(case):
    """Probabilities [V] in f64, or None when a rounding error could change them."""
    x = penalised(case)
    if case["temperature"] == 0.0:
        return torch.nn.functional.one_hot((x == x.max()).nonzero()[0, 0], x.numel()).double()
    x = (x / torch.tensor(case["temperature"])).double()
    fragile = False
    if case["min_p"] > 0:
        ratio = x.softmax(0) / x.softmax(0).max()
        fragile |= bool(((ratio - case["min_p"]).abs() < MARGIN).logical_and(ratio < 1).any())
        x[ratio < case["min_p"]] = -float("inf")
    if 0 < case["top_k"] < x.numel():
        kth = x.sort(descending=True).values[case["top_k"] - 1]
        x[x < kth] = -float("inf")
    if case["top_p"] < 1:
        p = x.softmax(0)
        better = torch.stack([p[x > v].sum() for v in x])  # mass strictly above each token
        fragile |= bool(((better - case["top_p"]).abs() < MARGIN).any())
        x[better >= case["top_p"]] = -float("inf")
    p = x.softmax(0)
    return None if fragile else p


def main():
    rng = random.Random(20240607)
    cases = []
    while len(cases) < CASES:
        case = draw_case(rng)
        p = reference(case)
        if p is None:
            continue
        raw = torch.tensor(case["logits"], dtype=torch.float64).log_softmax(0)
        case["logprobs"] = raw.tolist()
        case["probs"] = p.tolist()
        cases.append(case)
    path = pathlib.Path(__file__).parent / "sampling" / "cases.json"
    path.write_text("[" + ",\n".join(json.dumps(c) for c in cases) + "]\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
