"""compare.py CINCH DIR... [--count N] [--seed S] [--sweep] [--long]: compares `CINCH tokenize` with
the package tokenizers: the ids of each text, and the text decoded from them. Exit status 1 on any
difference."""
import argparse
import json
import os
import shlex
import subprocess
import sys
import time

import tokenizers

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import awkward  # noqa: E402


def run(command, lines):
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    done = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]


def report(what, text, want, got):
    at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
    print(f"  {what} differ at {at} of {str(text)[:100]!a}:\n    tokenizers {want[at:at + 8]!a}\n"
          f"    cinch      {got[at:at + 8]!a}")


def compare(cinch, model, texts):
    reference = tokenizers.Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
    command = shlex.split(cinch) + ["tokenize", "--model", model, "--jsonl"]
    wrong = 0
    start = time.time()
    want = [reference.encode(t).ids for t in texts]
    middle = time.time()
    got = run(command, texts)
    end = time.time()
    if len(got) != len(texts):
        sys.exit(f"{model}: {len(texts)} texts in, {len(got)} out")
    for text, w, g in zip(texts, want, got):
        wrong += w != g
        if w != g and wrong <= 5:
            report("ids", text, w, g)
    back = run(command + ["--decode"], want)
    for ids, g in zip(want, back):
        w = reference.decode(ids, skip_special_tokens=False)
        wrong += w != g
        if w != g and wrong <= 5:
            report("texts", ids, w, g)
    print(f"{model}: {len(texts)} texts, {sum(map(len, want))} tokens, {wrong} differences "
          f"(tokenizers {middle - start:.1f} s, cinch {end - middle:.1f} s)", flush=True)
    return wrong


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("cinch")
    p.add_argument("models", nargs="+")
    p.add_argument("--count", type=int, default=12000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--sweep", action="store_true", help="also every code point")
    p.add_argument("--long", action="store_true", help="also the 100 kB texts")
    a = p.parse_args()
    texts = list(awkward.strings(a.count, a.seed))
    texts += awkward.sweep() if a.sweep else []
    texts += awkward.long_strings() if a.long else []
    print(f"tokenizers {tokenizers.__version__}, seed {a.seed}")
    sys.exit(sum(compare(a.cinch, m, texts) for m in a.models) > 0)


if __name__ == "__main__":
    main()
