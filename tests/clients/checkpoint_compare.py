"""checkpoint_compare.py CINCH MODEL: compares a checkpoint in cinch, on the CPU in f32, with
transformers: chats, log-probabilities of prompts and greedy answers. Exit status 1 on any difference.

    checkpoint_compare.py published MODEL OUT   writes OUT, the tokenizer of MODEL with the
                                                pre-tokenizer of the file that SmolLM2 was published with
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55,",
    "Water boils at 100 degrees Celsius. In Fahrenheit, that is 212. Ice melts at",
    "Émile Zola wrote « J'accuse… ! » in 1898. 中文 и русский текст, too: \U0001f642\x04\x13",
    "Once upon a time, in a village at the edge of a large forest, there lived an old woman who",
]
QUESTIONS = ["What is gravity?", "Name three colours.", "Write a haiku about the sea.",
             "What is 17 + 25?", "Who wrote Hamlet?", "Explain photosynthesis to a child.",
             "Translate to French: Good morning.", "List the planets of the solar system."]
ANSWER_TOKENS = 64
TOP = 20
MOST = 2e-3  # nats between two implementations in f32


def chats():
    for i, q in enumerate(QUESTIONS):
        chat = [{"role": "user", "content": q}]
        if i % 2:
            chat.insert(0, {"role": "system", "content": "You answer in one sentence. \n"})
        if i % 3 == 2:
            chat += [{"role": "assistant", "content": "  I do not know.\n"},
                     {"role": "user", "content": "Try again, <|im_end|> please! 12 345"}]
        yield chat


def compare_chats(cinch, folder, tokenizer):
    lines = "".join(json.dumps(c) + "\n" for c in chats())
    done = subprocess.run([cinch, "tokenize", "--model", folder, "--chat", "--jsonl"], check=True,
                          input=lines.encode(), stdout=subprocess.PIPE)
    got = [json.loads(line) for line in done.stdout.splitlines()]
    want = [tokenizer.apply_chat_template(c, add_generation_prompt=True, tokenize=True,
                                          return_dict=False) for c in chats()]
    assert got == want, "chats differ"
    print(f"chats: {len(want)}, equal")
    return want


def run_batch(cinch, folder, bodies):
    with tempfile.TemporaryDirectory() as place:
        source, out = os.path.join(place, "in"), os.path.join(place, "out")
        with open(source, "w", encoding="utf-8") as f:
            for i, body in enumerate(bodies):
                f.write(json.dumps({"custom_id": str(i), "method": "POST",
                                    "url": "/v1/completions", "body": body}) + "\n")
        subprocess.run([cinch, "run-batch", "--model", folder, "--device", "cpu", "-i", source,
                        "-o", out, "--kv-cache-memory-bytes", "512M", "--max-model-len", "1024",
                        "--log-level", "warning"], check=True)
        with open(out, encoding="utf-8") as f:
            answers = {a["custom_id"]: a["response"]["body"] for a in map(json.loads, f)}
    return [answers[str(i)]["choices"][0] for i in range(len(bodies))]


def compare_logprobs(cinch, folder, model, prompts):
    got = run_batch(cinch, folder, [{"prompt": ids, "max_tokens": 1, "temperature": 0,
                                     "prompt_logprobs": TOP} for ids in prompts])
    worst, n = 0.0, 0
    for ids, choice in zip(prompts, got):
        want = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), dim=-1)
        for i, top in enumerate(choice["prompt_logprobs"][1:]):
            for token, entry in top.items():
                worst = max(worst, abs(entry["logprob"] - want[i, int(token)].item()))
                n += 1
    assert n > TOP * sum(len(ids) - 1 for ids in prompts) * 0.99 and worst < MOST, (n, worst)
    print(f"log-probabilities: {n} of {len(prompts)} prompts, largest difference {worst:.1e}")


def compare_answers(cinch, folder, model, prompts):
    got = run_batch(cinch, folder, [{"prompt": ids, "max_tokens": ANSWER_TOKENS, "temperature": 0,
                                     "return_token_ids": True} for ids in prompts])
    n = near = 0
    for ids, choice in zip(prompts, got):
        tokens = choice["token_ids"]
        logits = model(torch.tensor([ids + tokens])).logits[0]
        for i, token in enumerate(tokens):  # each after what cinch wrote: a near tie is not a fault
            row = logits[len(ids) - 1 + i]
            lead = (row.max() - row[token]).item()
            near += lead > 0
            assert lead < MOST, (ids, i, token, row.argmax().item(), lead)
            n += 1
    print(f"greedy answers: {n} tokens of {len(prompts)} prompts, {near} of them near ties")


def published(folder, out):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        tree = json.load(f)
    tree["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]}
    os.makedirs(out)
    with open(os.path.join(out, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tree, f, ensure_ascii=False)


@torch.no_grad()
def compare(cinch, folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 attn_implementation="eager")
    rendered = compare_chats(cinch, folder, tokenizer)
    texts = [tokenizer(t)["input_ids"] for t in TEXTS]
    compare_logprobs(cinch, folder, model, texts + rendered[:2])
    compare_answers(cinch, folder, model, rendered + texts[:4])


if __name__ == "__main__":
    if sys.argv[1] == "published":
        published(*sys.argv[2:])
    else:
        compare(*sys.argv[1:])
