"""awkward.py: texts that tokenizers often treat differently. The same seed gives the same texts.

strings(count, seed) yields fixed texts and count random texts. sweep() yields every Unicode code
point in several contexts. Both yield str without surrogates."""
import random
import sys
import unicodedata

WORDS = ("the of and to in is you that it he was for on are as with his they I at be this have from "
         "tokenization internationalization don't I'll WE'VE it'S they'Re 'tis o'clock rock'n'roll "
         "Hello World naïve café Straße ÉCOLE œuvre Привет мир 你好 世界 こんにちは 안녕하세요 "
         "مرحبا שלום नमस्ते สวัสดี 123 4567 89012345 3.14159 1,000,000 0xDEADBEEF ½ Ⅷ ١٢٣ १२३ 一二三 "
         "foo_bar fooBar FOO-BAR a.b.c user@example.com https://example.com/a?b=c&d=e#f C:\\path\\x "
         "solo Word word résumé re\u0301sume\u0301 e\u0301te\u0301 été ﬁ ﬆ ſ K Å").split()
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>",
            "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
            "<|reserved_special_token_12|>", "<|reserved_special_token_1|>", "<mask>", "<sep>",
            "<both>", "<mask><sep>", "solo", "Word", "e\u0301te\u0301", "été", "\x01\x02", "<s>"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'Re", "'rE", "'RE", "'ve", "'vE", "'m", "'M", "'ll",
                "'LL", "'lL", "'d", "'D", "'ſ", "'ſs", "'l", "'r", "'v", "''s", "' s", "’s", "'x", "'"]
SPACES = [" ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "\v", "\f", "\x85", "\u00a0", "\u1680",
          "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u180e", "\u200b", "\ufeff",
          "\x1c", "\x1d", "\x1e", "\x1f", " \n", "\n ", "\t\n\t", " \r", "   "]
EMOJI = ["👩‍👩‍👧‍👦", "👨🏿‍🚀", "🏳️‍🌈", "🇩🇪", "🇩🇪🇫🇷", "👍🏽", "❤️", "1️⃣", "☃️", "🫠", "😀", "👁️‍🗨️",
         "🧑‍🤝‍🧑", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\u200d", "\ufe0f"]
HANGUL = ["\u1100\u1161", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u11a8", "\u1161", "\uac01", "한국어"]
# U+11A7 is the base of the index of final consonants and is not a final consonant.
NO_FINAL = ["\uac00\u11a7", "\uac00\u11a7x", "\u1100\u1161\u11a7\u11a8", "\uac01\u11a7", "a\u11a7"]
CODE = ["def f(x):\n    return x**2\n", "if (a==b){c+=1;}\r\n", "<html>\n\t<body class=\"x\">&nbsp;",
        "SELECT * FROM t WHERE a='b';--", "{\"k\": [1, 2.5e-3, null]}", "\\frac{a}{b}^{n+1}",
        "#!/bin/sh\nset -eu\n", "x=1;;;;;;;;y=2", "=====>>>>>-----<<<<<", "/* c */ // d", "\\n\\t\\\\"]


def by_category():
    table = {}
    for cp in range(sys.maxunicode + 1):
        c = chr(cp)
        cat = unicodedata.category(c)
        if cat != "Cs":
            table.setdefault(cat, []).append(c)
    return table


def drawers(rng, cats):
    names = sorted(cats)
    low = [c for cat in names for c in cats[cat] if ord(c) < 0x3000 and cat not in ("Cn", "Co")]
    marks = cats["Mn"] + cats["Mc"] + cats["Me"]
    letters = cats["Lu"] + cats["Ll"] + cats["Lo"]

    def many(f, lo, hi):
        return "".join(f() for _ in range(rng.randint(lo, hi)))

    def category():
        return rng.choice(cats[rng.choice(names)])

    def marked():
        base = rng.choice("aeiouAEIOUnNcs") if rng.random() < 0.7 else rng.choice(letters)
        common = [chr(c) for c in range(0x300, 0x345)]
        return base + many(lambda: rng.choice(common if rng.random() < 0.8 else marks), 0, 5)

    def broken():
        data = bytes(rng.choice((rng.randrange(256), rng.randrange(128, 256)))
                     for _ in range(rng.randint(1, 30)))
        return data.decode("utf-8", "replace")

    def special():
        s = rng.choice(SPECIALS)
        if rng.random() < 0.5:
            cut = rng.randrange(len(s) + 1)
            s = rng.choice((s[:cut], s[cut:], s[:cut] + rng.choice(" \n\u00a0a\u0301") + s[cut:],
                            s.upper(), s + s[:cut]))
        return rng.choice(("", " ", "  ", "\n", "a", "1", "_")) + s + rng.choice(("", " ", "\t ", "é"))

    def digits():
        return many(lambda: rng.choice(rng.choice((cats["Nd"][:10], cats["Nd"], cats["No"],
                                                   cats["Nl"]))), 1, 12)

    return [
        lambda: rng.choice(WORDS) + rng.choice((" ", " ", " ", "  ", ", ", ".\n", "")),
        lambda: rng.choice(WORDS).upper() + " ",
        category,
        lambda: many(category, 1, 8),
        marked,
        lambda: many(marked, 1, 6),
        lambda: rng.choice(low),
        lambda: rng.choice(SPACES),
        lambda: many(lambda: rng.choice(SPACES), 1, 8),
        lambda: rng.choice(SPACES) * rng.randint(1, 40),
        lambda: rng.choice(EMOJI),
        special,
        lambda: rng.choice(("", "I", "é", "1", "_", "Ω")) + rng.choice(CONTRACTIONS),
        digits,
        lambda: rng.choice(HANGUL),
        lambda: rng.choice(CODE),
        broken,
        lambda: many(lambda: chr(rng.randrange(0, 33)), 1, 6),
        lambda: many(lambda: chr(rng.randrange(33, 127)), 1, 20),
        lambda: rng.choice("aZ é0.'中\n") * rng.randint(1, 60),
    ]


def long_strings():
    """A few texts of about 100 kB: no step of a tokenizer may take quadratic time."""
    rng = random.Random(7)
    yield "a" * 100_000
    yield "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(100_000))
    yield "".join(rng.choice("thequickbrown") for _ in range(100_000)) + " end"
    yield " " * 100_000
    yield " " * 100_000 + "x"
    yield "\n" * 100_000
    yield "\r\n" * 50_000 + " x"
    yield "1" * 100_000
    yield "=" * 100_000
    yield "中文" * 20_000
    yield "é" * 50_000
    yield "e\u0301" * 30_000
    yield "a" + "\u0301\u0323" * 10_000
    yield "<" * 100_000
    yield "<|im_start|>" * 8_000
    yield "\u3000" * 30_000 + "x"
    yield "\x00" * 100_000
    yield "'" * 50_000 + "s"
    yield "\U0001f469\u200d" * 15_000


def strings(count, seed=1):
    cats = by_category()
    rng = random.Random(seed)
    draw = drawers(rng, cats)
    for cat in sorted(cats):  # every category: alone, in a word, between words
        for _ in range(5):
            c = rng.choice(cats[cat])
            yield from (c, f"a{c}b", f"a {c} b", f"{c}{c} {c}1'{c}s")
    for s in SPECIALS + CONTRACTIONS + SPACES + EMOJI + HANGUL + NO_FINAL + CODE + WORDS + [""]:
        yield s
    for _ in range(count):
        yield "".join(rng.choice(draw)() for _ in range(rng.choice((1, 2, 3, 5, 8, 13))))


def sweep():
    """Each code point after a letter, a mark, a space, an apostrophe, and twice in a row."""
    for start in range(0, 0x110000, 32):
        cps = [chr(c) for c in range(start, start + 32) if not 0xD800 <= c < 0xE000]
        yield "".join(f"a{c}b {c}{c}\n{c}1 '{c}e\u0323{c}\u0307;" for c in cps)
