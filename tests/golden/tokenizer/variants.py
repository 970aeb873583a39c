"""variants.py OUT: writes the tokenizer gpt2/ with the changes of each entry of variants.json to
OUT/0, OUT/1, ... An entry replaces the pre_tokenizer, sets members of the model, and renames tokens of
the vocabulary, so that their bytes have no token."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def load(*path):
    with open(os.path.join(HERE, *path), encoding="utf-8") as file:
        return json.load(file)


def variants():
    """Yields (name, tokenizer.json as text)."""
    for change in load("variants.json"):
        tree = load("gpt2", "tokenizer.json")
        tree["pre_tokenizer"] = change.get("pre_tokenizer", tree["pre_tokenizer"])
        tree["model"].update(change.get("model", {}))
        vocab = tree["model"]["vocab"]
        for old, new in change.get("rename", {}).items():
            vocab[new] = vocab.pop(old)
        yield change["name"], json.dumps(tree)


if __name__ == "__main__":
    for i, (_, text) in enumerate(variants()):
        folder = os.path.join(sys.argv[1], str(i))
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as out:
            out.write(text)
