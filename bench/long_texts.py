"""long_texts.py TOKENIZER OUT: writes different long natural texts, cut for `cinch compare --continue-field`.

The texts are passages of English documentation of Debian packages, which apt-get downloads and nothing
installs. Each line of OUT has id, source, prompt and continuation, with exactly --prompt-tokens and
--continuation-tokens tokens of TOKENIZER, a tokenizer.json. No two passages share a paragraph. The order is
random, so that the first and the second half are samples of the same kind. The last line that is printed has
the SHA-256 of OUT; it depends on the versions of the packages, which the lines before it name.

Needs Debian 12 and the package tokenizers."""
import argparse
import hashlib
import html.parser
import json
import pathlib
import random
import re
import subprocess
import tarfile

from tokenizers import Tokenizer

PACKAGES = """anarchism c++-annotations-html debian-faq debian-history debian-policy debian-reference-en
debmake-doc developers-reference doxygen-doc exim4-doc-html git-doc ledger mailutils-doc maint-guide mh-book
mutt nut-doc openafs-doc postfix-doc shorewall-doc swig4.0-doc xorg-docs zsh-doc""".split()
PER_FILE = 2
MIN_BYTES = 15_000
STOP = set("the of and to in is a for that it as be with on this by are or not from an if you can which at"
           " will have has was were but when all one its their there than may must should they we he".split())
SKIPPED = {"script", "style", "nav", "head", "header", "footer", "table", "svg", "pre"}
BLOCKS = {"p", "div", "section", "ul", "ol", "dl", "li", "dt", "dd", "blockquote", "pre", "h1", "h2", "h3",
          "h4", "h5", "h6", "br", "hr"}


class Text(html.parser.HTMLParser):
    """Collects the text of a page, one paragraph for each block."""

    def __init__(self):
        super().__init__()
        self.parts, self.depth = [], 0

    def handle_starttag(self, tag, attrs):
        self.depth += tag in SKIPPED
        if tag in BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        self.depth -= tag in SKIPPED and self.depth > 0
        if tag in BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data):
        if self.depth == 0:
            self.parts.append(re.sub(r"\s+", " ", data))


def paragraphs(page):
    """The prose of a page: paragraphs that are mostly words, and headings between them."""
    text = Text()
    text.feed(page)
    found = []
    for line in "".join(text.parts).split("\n"):
        line = re.sub(r" +", " ", line).strip()
        words = re.findall(r"[A-Za-z']+", line)
        common = sum(word.lower() in STOP for word in words)
        if len(words) >= 8 and common > 0.2 * len(words) and len(line) < 8 * len(words):
            found.append(line)
    return found


def pages(deb):
    """Name and text of the HTML files of a package, sorted by name."""
    found = {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as process:
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(".html") \
                        and "_source" not in member.name and member.size >= MIN_BYTES:
                    found[member.name] = archive.extractfile(member).read().decode("utf-8", "replace")
    return sorted(found.items())


def cut(tokenizer, text, args):
    """The first prompt and continuation of text that tokenise to the same tokens apart and joined."""
    total = args.prompt_tokens + args.continuation_tokens
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if len(encoding.ids) < total:
        return None
    middle, end = encoding.offsets[args.prompt_tokens][0], encoding.offsets[total - 1][1]
    prompt, continuation = text[:middle], text[middle:end]
    count = [len(tokenizer.encode(part, add_special_tokens=False).ids) for part in (prompt, continuation)]
    return (prompt, continuation) if count == [args.prompt_tokens, args.continuation_tokens] else None


def passages(tokenizer, rng, deb, seen, args):
    """At most --per-package passages of a package; `seen` has the paragraphs that are taken."""
    package = deb.name.split("_")[0]
    files = pages(deb)
    rng.shuffle(files)
    found = []
    for name, page in files:
        lines = paragraphs(page)
        # At most 20 starts of a file are tried.
        starts = sorted(rng.sample(range(len(lines)), min(len(lines), 20)))
        n_of_file = 0
        for start in starts:
            if len(found) == args.per_package or n_of_file == PER_FILE:
                break
            text = "\n\n".join(lines[start:start + 400])
            pieces = cut(tokenizer, text, args)
            if not pieces:
                continue
            used = [line for line in lines[start:] if line in "".join(pieces)]
            if seen.intersection(used):
                continue
            seen.update(used)
            n_of_file += 1
            found.append({"id": f"{package}-{len(found)}", "source": f"{package}:{name[1:]}",
                          "prompt": pieces[0], "continuation": pieces[1]})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tokenizer")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--per-package", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=3500)
    parser.add_argument("--continuation-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=58)
    parser.add_argument("--packages", type=pathlib.Path, default="long-texts.debs",
                        help="folder for the downloaded packages")
    args = parser.parse_args()
    tokenizer, rng, seen, found = Tokenizer.from_file(args.tokenizer), random.Random(args.seed), set(), []
    args.packages.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if not list(args.packages.glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", "-qq", package], cwd=args.packages, check=True)
        deb = min(args.packages.glob(f"{package}_*.deb"))
        taken = passages(tokenizer, rng, deb, seen, args)
        print(f"{deb.stem}: {len(taken)}")
        found += taken
    rng.shuffle(found)
    if len(found) < args.count:
        raise SystemExit(f"only {len(found)} passages of {args.count}")
    lines = "".join(json.dumps(passage) + "\n" for passage in found[:args.count])
    args.out.write_text(lines)
    print(f"{args.count} of {len(found)} passages, SHA-256 {hashlib.sha256(lines.encode()).hexdigest()}")


if __name__ == "__main__":
    main()
