"""A task for lm-eval, and the comparison of two of its runs.

    lm_eval_compare.py task DIR             writes the task cinch_choice to DIR
    lm_eval_compare.py compare DIR OTHER    loglikelihoods must be equal within 1e-3
"""
import glob
import json
import os
import random
import sys

TASK = """task: cinch_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: %s
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: " "
metric_list:
  - metric: acc
"""


def write_task(folder):
    os.makedirs(folder)
    draw = random.Random(3)
    with open(folder + "/items.jsonl", "w") as f:
        for _ in range(12):
            a, b = draw.randrange(10, 99), draw.randrange(10, 99)
            choices = [str(a * b), str(a * b + draw.randrange(1, 99)), "a few words"]
            f.write(json.dumps({"question": f"Compute {a} * {b} by hand.", "choices": choices,
                                "answer": 0}) + "\n")
    with open(folder + "/cinch_choice.yaml", "w") as f:
        f.write(TASK % (folder + "/items.jsonl"))


def answers(folder):
    (path,) = glob.glob(folder + "/*/samples_*.jsonl")
    lines = [json.loads(line) for line in open(path)]
    return {x["doc_id"]: [(float(r[0][0]), r[0][1]) for r in x["resps"]] for x in lines}


def compare(one, other):
    a, b = answers(one), answers(other)
    assert a.keys() == b.keys() and len(a) == 12
    worst = 0
    for key in a:
        assert len(a[key]) == len(b[key]) == 3
        for (x, x_greedy), (y, y_greedy) in zip(a[key], b[key]):
            worst = max(worst, abs(x - y))
            assert x_greedy == y_greedy, (key, a[key], b[key])
    assert worst < 1e-3, worst
    print(f"lm-eval: largest difference of a loglikelihood {worst:.1e}")


{"task": write_task, "compare": compare}[sys.argv[1]](*sys.argv[2:])
