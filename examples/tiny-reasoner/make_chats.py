"""Write the rendered chats of a run as text files, one per answer, for `cinch calibrate`.

  make_chats.py IN.jsonl OUT.jsonl FOLDER

IN.jsonl has the prompts with their ids. OUT.jsonl is what run-batch answered with
--reasoning-parser none --no-skip-special-tokens, so that contents hold the reasoning.
"""
import json
import os
import sys

questions, answers, folder = sys.argv[1:]
prompts = {}
for line in open(questions):
    row = json.loads(line)
    prompts[row["id"]] = row["prompt"]
os.makedirs(folder, exist_ok=True)
for line in open(answers):
    row = json.loads(line)
    name = row["custom_id"]
    content = row["response"]["body"]["choices"][0]["message"]["content"]
    with open(os.path.join(folder, name + ".txt"), "w") as f:
        f.write(f"<|im_start|>user\n{prompts[name]}<|im_end|>\n<|im_start|>assistant\n{content}")
