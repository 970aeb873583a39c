"""make_tokenizers.py: trains the two small tokenizers in this folder, llama3/ and gpt2/.

llama3: the Llama 3 split, ignore_merges (with words in the vocabulary that no merge produces), 256
special tokens, BOS by TemplateProcessing. gpt2: the default split of ByteLevel, NFC, and added
tokens with every flag. They are trained on the texts of /usr/share/common-licenses and on lines in
many scripts. Needs the package tokenizers. The results are in the repository; run this script only
to change them.
"""
import glob
import json
import os

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LINES = """Grüße aus München, schöne Straße! ça été l'œuvre naïve, où déjà vu.
Съешь же ещё этих мягких французских булок да выпей чаю 2024.
我能吞下玻璃而不伤身体。今天天气很好，我们去公园散步吧。
私はガラスを食べられます。それは私を傷つけません。
나는 유리를 먹을 수 있어요. 그래도 아프지 않아요.
مرحبا بالعالم، هذا نص تجريبي ١٢٣. שלום עולם, זה מבחן.
नमस्ते दुनिया, यह एक परीक्षण है १२३। สวัสดีชาวโลก
Xin chào thế giới, đây là một bài kiểm tra. Ελληνικό κείμενο εδώ.
👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️ 🏳️‍🌈 1️⃣ \t\tdef main():\n    return x == 1 // 2;\r\n
I'm, you're, he's, we've, they'll, I'd, DON'T, IT'S, We'Ll.
""".splitlines(keepends=True)


def corpus():
    for path in sorted(glob.glob("/usr/share/common-licenses/*")):
        if not os.path.islink(path):
            yield open(path, encoding="utf-8", errors="replace").read()
    for _ in range(50):
        yield from LINES


def save(tokenizer, name, change=None):
    tree = json.loads(tokenizer.to_str())
    if change:
        change(tree)
    os.makedirs(os.path.join(HERE, name), exist_ok=True)
    with open(os.path.join(HERE, name, "tokenizer.json"), "w", encoding="utf-8") as out:
        json.dump(tree, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")


def train(tokenizer, size):
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)


def llama3():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    train(t, 3000)
    tree = json.loads(t.to_str())
    # Words that only ignore_merges can produce.
    for word in ("Ġtokenization", "tokenization", "ĠDonaudampfschiff", "ĠÐ¼Ð¸ÑĢ", "ä½łå¥½", "123",
                 "ĊĊĊĊ", "ĠĠĠĠĠĠĠĠĠ"):
        tree["model"]["vocab"].setdefault(word, len(tree["model"]["vocab"]))
    t = Tokenizer.from_str(json.dumps(tree))
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
             "<|eot_id|>"]
    names += [f"<|reserved_special_token_{i}|>" for i in range(251)]
    t.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in names])
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
            special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])])
    save(t, "llama3")


def gpt2():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    train(t, 1500)
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=True),
                          AddedToken("<mask>", special=True, lstrip=True, normalized=False),
                          AddedToken("<sep>", special=True, rstrip=True, normalized=False),
                          AddedToken("<both>", special=True, lstrip=True, rstrip=True)])
    t.add_tokens([AddedToken("solo", single_word=True, normalized=False),
                  AddedToken("Word", single_word=True, lstrip=True, normalized=True),
                  AddedToken("e\u0301te\u0301", normalized=True),
                  AddedToken("<mask><sep>", normalized=False), AddedToken("<mas", normalized=False),
                  AddedToken("  ", normalized=False), AddedToken("é", normalized=False),
                  AddedToken("\u0301", normalized=False), AddedToken("\x01\x02", normalized=False)])

    def old_merges(tree):  # the older form of merges: "a b"
        tree["model"]["merges"] = [" ".join(m) for m in tree["model"]["merges"]]

    save(t, "gpt2", old_merges)


if __name__ == "__main__":
    llama3()
    gpt2()
