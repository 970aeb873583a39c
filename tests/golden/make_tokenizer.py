"""make_tokenizer.py: writes tests/golden/tokenizer/corpus.jsonl, difficult texts, and
expect-NAME.txt, the results of the package tokenizers: for each text a hash of its ids and a hash
of the text decoded from those ids. expect-variants.txt has, for each entry of variants.json, a hash
of the ids of all texts. Needs the package tokenizers; see the README in that folder."""
import json
import os
import struct
import sys

import tokenizers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer")
ROOT = os.path.join(HERE, "..", "..", "..")
sys.path.insert(0, HERE)
import awkward  # noqa: E402
import variants  # noqa: E402

MODELS = {"tiny-reasoner": os.path.join(ROOT, "examples", "tiny-reasoner"),
          "llama3": os.path.join(HERE, "llama3"), "gpt2": os.path.join(HERE, "gpt2")}
MASK = (1 << 64) - 1


def hash64(data):
    """The low half of cn_hash64 in engine/base/base.c."""
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & MASK
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD & MASK
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 & MASK
    return (h ^ h >> 33) & 0xFFFFFFFF


def main():
    # A NUL inside a JSON string is written as an escape, which a line-based reader can read.
    texts = list(awkward.strings(1300, seed=3))
    with open(os.path.join(HERE, "corpus.jsonl"), "w", encoding="utf-8", newline="") as out:
        for text in texts:
            out.write(json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") + "\n")
    for name, path in MODELS.items():
        t = tokenizers.Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
        with open(os.path.join(HERE, f"expect-{name}.txt"), "w", encoding="ascii") as out:
            for text in texts:
                ids = t.encode(text).ids
                back = t.decode(ids, skip_special_tokens=False)
                out.write(f"{hash64(struct.pack(f'<{len(ids)}I', *ids)):08x} "
                          f"{hash64(back.encode()):08x}\n")
    with open(os.path.join(HERE, "expect-variants.txt"), "w", encoding="ascii") as out:
        for _, tree in variants.variants():
            t = tokenizers.Tokenizer.from_str(tree)
            ids = [i for text in texts for i in t.encode(text).ids]
            out.write(f"{hash64(struct.pack(f'<{len(ids)}I', *ids)):08x}\n")
    print(f"{len(texts)} texts, {len(MODELS)} tokenizers")


if __name__ == "__main__":
    main()
