"""Write solved tasks of the bundled reasoner as text for train.py: make_tasks.py OUT.jsonl COUNT SEED."""
import json
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tiny-reasoner"))
import tasks

out, count, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
r = random.Random(f"retrieval-{seed}")
with open(out, "w") as f:
    for _ in range(count):
        name, (user, think, answer) = tasks.sample(r, 1.0)
        f.write(json.dumps({"task": name, "text": "".join(tasks.chat(user, think, answer))}) + "\n")
