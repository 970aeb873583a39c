"""compare.py CINCH [--count N] [--seed S]: random conversations must render with the templates of this
folder as in jinja2, and fail where jinja2 fails. Needs jinja2. tests/chat_template_check.sh runs it."""
import argparse
import json
import os
import random
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import chat_reference  # noqa: E402

MAX_ERRORS = 2  # chats that must fail, for each template; each takes a process


def render(cinch, name, chats):
    """The texts of the chats; None for the first that fails, which ends the list."""
    path = os.path.join(HERE, "templates", name + ".jinja")
    command = [cinch, "tokenize", "--model", "examples/tiny-reasoner", "--chat", "--jsonl",
               "--render", "--chat-template", path]
    lines = "".join(json.dumps(chat) + "\n" for chat in chats)
    run = subprocess.run(command, input=lines.encode(), capture_output=True)
    texts = [json.loads(line) for line in run.stdout.decode().split("\n")[:-1]]
    if run.returncode not in (0, 1) or (run.returncode == 1) != (len(texts) < len(chats)):
        sys.exit(f"{name}: cinch ended with {run.returncode}: {run.stderr.decode()}")
    return texts + [None] * (run.returncode == 1), run.stderr.decode()


def compare(env, cinch, name, source, rng, count):
    """The number of chats compared."""
    good, bad = [], []
    for _ in range(count):
        chat = {**chat_reference.TOKENS, **chat_reference.random_variables(rng)}
        text, error = chat_reference.render(env, source, chat)
        (good if error is None else bad).append((chat, text, error))
    texts, message = render(cinch, name, [chat for chat, _, _ in good])
    for (chat, want, _), got in zip(good, texts):
        if got != want:
            sys.exit(f"{name}: {json.dumps(chat)}\nexpected {want!r}\ngot      {got!r} {message}")
    for chat, _, error in bad[:MAX_ERRORS]:
        texts, _ = render(cinch, name, [chat])
        if texts != [None]:
            sys.exit(f"{name}: {json.dumps(chat)}\nexpected {error}\ngot      {texts[0]!r}")
    return len(good) + len(bad[:MAX_ERRORS])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cinch")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    env, rng, total = chat_reference.environment(), random.Random(options.seed), 0
    found = chat_reference.templates()
    for name, source in found.items():
        total += compare(env, options.cinch, name, source, rng, options.count)
    print(f"chat_template_check: {total} chats of {len(found)} templates are equal")
    return total == 0


if __name__ == "__main__":
    sys.exit(main())
