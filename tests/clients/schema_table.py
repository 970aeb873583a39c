"""Answers under the schemas of tests/golden/schemas must be valid under them.

    schema_table.py CINCH MODEL

Answers each schema twice with run-batch at temperature 2. Exit status 1: more than MOST_REFUSED
schemas are refused, an answer without warnings is invalid, or few answers are whole.
"""
import json
import os
import subprocess
import sys
import tempfile

import jsonschema

from structured_output import FORMATS, formats

MOST_REFUSED = 8
TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/schemas/schemas.json")


def is_valid(schema, answer):
    checker = jsonschema.FormatChecker(formats=())
    for name in FORMATS:
        checker.checks(name)(lambda text, name=name: not isinstance(text, str)
                             or formats(name, text))
    old = isinstance(schema.get("items"), list) or schema.get("exclusiveMinimum") is True
    kind = jsonschema.Draft4Validator if old else jsonschema.Draft202012Validator
    kind(schema, format_checker=checker).validate(json.loads(answer))


def run(cinch, model, table):
    with tempfile.TemporaryDirectory() as folder:
        prompts, answers = os.path.join(folder, "in"), os.path.join(folder, "out")
        with open(prompts, "w") as f:
            for i, row in enumerate(table):
                for seed in range(2):
                    body = {"messages": [{"role": "user", "content": "Answer as asked."}],
                            "temperature": 2, "max_tokens": 150, "seed": seed,
                            "response_format": {"type": "json_schema", "json_schema": {
                                "name": "x", "schema": row["schema"]}}}
                    f.write(json.dumps({"custom_id": f"{i}-{seed}", "method": "POST",
                                        "url": "/v1/chat/completions", "body": body}) + "\n")
        subprocess.run([cinch, "run-batch", "--model", model, "-i", prompts, "-o", answers,
                        "--log-level", "error"], check=False, stderr=subprocess.DEVNULL)
        return [json.loads(line) for line in open(answers)]


def main():
    table = json.load(open(TABLE))
    refused, warned, whole, wrong = set(), set(), 0, 0
    lines = run(sys.argv[1], sys.argv[2], table)
    for line in lines:
        i, body = int(line["custom_id"].split("-")[0]), line["response"]["body"]
        schema = table[i]["schema"]
        if line["response"]["status_code"] != 200:
            refused.add(i)
            print("refused:", json.dumps(schema)[:200], body["error"]["message"], file=sys.stderr)
            continue
        choice = body["choices"][0]
        if body.get("warnings"):
            warned.add(i)
        if choice["finish_reason"] != "stop" or body.get("warnings"):
            continue
        try:
            is_valid(schema, choice["message"]["content"])
            whole += 1
        except Exception as e:
            wrong += 1
            print(f"{type(e).__name__}: {str(e)[:300]}\n  {json.dumps(schema)}\n  "
                  f"{choice['message']['content']!r}", file=sys.stderr)
    print(f"schema table: {len(table)} schemas, {len(refused)} refused, {len(warned)} with "
          f"warnings, {whole} answers valid, {wrong} wrong")
    fine = len(lines) == 2 * len(table) and len(refused) <= MOST_REFUSED and wrong == 0
    sys.exit(0 if fine and len(table) >= 107 and whole > len(table) else 1)


if __name__ == "__main__":
    main()
