"""Output tokens/s of constrained requests, as a share of those of free ones.

    structured.py CINCH MODEL [ROWS] [TOKENS] [ROUNDS] [-- OPTIONS of cinch run-batch]

Answers ROWS lines (64) of TOKENS tokens (128) at temperature 1, in one batch: free, and in forms that
are longer than the answers. Each of ROUNDS rounds (5) runs every form, each directly behind a free run,
so that a change of the machine's load meets both. Prints the tokens/s of the best round and the median
share, of time and of processor time. The start of the engine is not part of the time.
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

RECORD = {"type": "object", "additionalProperties": False, "required": ["name", "kind", "score"],
          "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 20},
                         "kind": {"enum": ["person", "place", "thing"]},
                         "score": {"type": "number", "minimum": 0, "maximum": 100},
                         "tags": {"type": "array", "maxItems": 4, "items": {"type": "string"}}}}
FORMS = {
    "free": {"ignore_eos": True},
    "records": {"structured_outputs": {"json": {"type": "array", "minItems": 100,
                                                "items": RECORD}}},
    "text": {"structured_outputs": {"json": {"type": "string", "minLength": 4000}}},
    "regex": {"structured_outputs": {
        "regex": r"(\d{4}-[a-z]{3,9}: [A-Z][a-z ]{5,40}\.\n){200}"}},
}


def processor_time():
    u = resource.getrusage(resource.RUSAGE_CHILDREN)
    return u.ru_utime + u.ru_stime


def run(cinch, model, rows, tokens, form, options):
    """Output tokens per second of one batch, and per second of all processors, start included."""
    with tempfile.TemporaryDirectory() as folder:
        prompts, summary = os.path.join(folder, "in"), os.path.join(folder, "summary")
        with open(prompts, "w") as f:
            for i in range(rows):
                body = {"messages": [{"role": "user", "content": f"List record {i} and more."}],
                        "temperature": 1, "max_tokens": tokens, "seed": i, **FORMS[form]}
                f.write(json.dumps({"custom_id": str(i), "url": "/v1/chat/completions",
                                    "method": "POST", "body": body}) + "\n")
        before = processor_time()
        subprocess.run([cinch, "run-batch", "--model", model, "-i", prompts, "-o",
                        os.path.join(folder, "out"), "--max-num-seqs", str(rows), "--log-level",
                        "error", "--progress", "none", "--summary-json", summary, *options],
                       check=True, stderr=subprocess.DEVNULL)
        seen = json.load(open(summary))
        if seen["errors"] or seen["completion_tokens"] != rows * tokens:
            sys.exit(f"{form}: {seen['errors']} errors, {seen['completion_tokens']} tokens: expected "
                     f"0 and {rows * tokens}")
        return seen["output_tokens_per_s"], rows * tokens / (processor_time() - before)


def main():
    given, options = sys.argv[1:], []
    if "--" in given:
        at = given.index("--")
        given, options = given[:at], given[at + 1:]
    cinch, model = given[:2]
    rows, tokens, rounds = (int(x) for x in given[2:] + ["64", "128", "5"][len(given) - 2:])
    best, shares = dict.fromkeys(FORMS, 0.0), {form: [] for form in FORMS}
    for _ in range(rounds):
        for form in list(FORMS)[1:]:
            free, seen = (run(cinch, model, rows, tokens, f, options) for f in ("free", form))
            best["free"], best[form] = max(best["free"], free[0]), max(best[form], seen[0])
            shares[form].append((seen[0] / free[0], seen[1] / free[1]))
    print(f"{rows} rows of {tokens} tokens, best and median of {rounds} rounds")
    print(f"free: {best['free']:.0f} tokens/s")
    for form in list(FORMS)[1:]:
        time, processor = (statistics.median(x) for x in zip(*shares[form]))
        print(f"{form}: {best[form]:.0f} tokens/s, {100 * time:.1f} % of free; "
              f"{100 * processor:.1f} % per processor second")


if __name__ == "__main__":
    main()
