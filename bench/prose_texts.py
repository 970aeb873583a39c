"""prose_texts.py CORPUS OUT: writes held-out documents for `cinch compare --continue-field` that
examples/prose-base was neither trained on nor measured with.

CORPUS is the folder that `make_corpus.py merge` of examples/prose-base wrote. In it every 40th document by
the hash of its name is in held.jsonl instead of train.jsonl. Left out are

- packages whose documents are not counted as in corpus.md: they may be cut at other places than those of the
  training text;
- documents with more than --shared of their runs of 13 words in train.jsonl: manuals come in several forms;
- dictionaries, and the 64 documents of documents.jsonl.

Each line of OUT has id, source, prompt and continuation, with exactly --prompt-tokens and
--continuation-tokens tokens, at most --per-package of a package, in random order. The last line that is
printed has the SHA-256 of OUT.

Needs the package tokenizers."""
import argparse
import collections
import hashlib
import json
import pathlib
import random
import re

from tokenizers import Tokenizer

from long_texts import cut

RUN = 13  # words
MODEL = pathlib.Path(__file__).parent.parent / "examples" / "prose-base"


def changed_packages(stats):
    """The packages whose documents were counted otherwise when the checkpoint was trained."""
    rows = re.findall(r"^\| ([^_ ]+)_\S+ \|.*\| (\d+) \| (\d+) \| [\d.]+ \|$",
                      (MODEL / "corpus.md").read_text(), re.M)
    then = {package: (int(docs), int(held)) for package, docs, held in rows}
    return {package for package, s in stats.items() if then.get(package) != (s["docs"], s["held"])}


def runs(text):
    """Hashes of the runs of RUN words of a text."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return [hash(tuple(words[i:i + RUN])) for i in range(len(words) - RUN + 1)]


def candidates(corpus, tokenizer, args):
    """The documents of held.jsonl that may be taken, each with its prompt and continuation."""
    measured = {json.loads(line)["id"].split(":", 1)[1] for line in (MODEL / "documents.jsonl").open()}
    changed = changed_packages(json.loads((corpus / "stats.json").read_text()))
    print("left out, because they are counted otherwise than in corpus.md:", *sorted(changed) or ["none"])
    for line in (corpus / "held.jsonl").open():
        document = json.loads(line)
        package = document["pkg"]
        if document["id"] not in measured and package not in changed and not package.startswith("dict-"):
            pieces = cut(tokenizer, document["t"], args)
            if pieces:
                yield {"id": document["id"], "source": package, "prompt": pieces[0], "continuation": pieces[1]}


def without_shared(found, corpus, args):
    """Those of the documents whose text is not in the training text too."""
    own = [runs(document["prompt"] + document["continuation"]) for document in found]
    wanted, seen = set().union(*own), set()
    for line in (corpus / "train.jsonl").open():
        seen.update(wanted.intersection(runs(json.loads(line)["t"])))
    kept = [document for document, mine in zip(found, own)
            if sum(run in seen for run in mine) <= args.shared * len(mine)]
    print(f"left out, because the training text has them too: {len(found) - len(kept)} of {len(found)}")
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--per-package", type=int, default=8)
    parser.add_argument("--shared", type=float, default=0.1)
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--continuation-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=58)
    args = parser.parse_args()
    tokenizer, n_of, taken = Tokenizer.from_file(str(MODEL / "tokenizer.json")), collections.Counter(), []
    found = without_shared(list(candidates(args.corpus, tokenizer, args)), args.corpus, args)
    random.Random(args.seed).shuffle(found)
    for document in found:
        n_of[document["source"]] += 1
        if n_of[document["source"]] <= args.per_package:
            taken.append(json.dumps(document) + "\n")
    args.out.write_text("".join(taken))
    print(f"{len(taken)} documents of {len(n_of)} packages, SHA-256 "
          f"{hashlib.sha256(args.out.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
