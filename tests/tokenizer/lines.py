"""Seeded lines of text for comparing tokenizers: code, prose in many scripts, emoji, controls, runs, and mixes.

    lines(seed, n) -> list of str      every line is valid UTF-8; line ends occur inside lines
"""
import random

PROSE = {
    "latin": "The quick brown fox isn't jumping; we've seen it, they'll say I'm wrong and he'd agree. naïve café "
             "Straße Ærø œuvre Žižek İstanbul ǅ ﬁne ŉ",
    "cyrillic": "Привет, мир! Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак ґанок ўзор",
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὀδυσσεύς ᾳ ΐ",
    "hebrew": "שלום עולם, מה שלומך היום? בְּרֵאשִׁית",
    "arabic": "مرحبا بالعالم، كيف حالك اليوم؟ ٱلْعَرَبِيَّة ١٢٣٤٥ ۴۵۶",
    "devanagari": "नमस्ते दुनिया, आप कैसे हैं? क्षत्रिय १२३ ॐ",
    "thai": "สวัสดีชาวโลก วันนี้เป็นอย่างไรบ้าง ๑๒๓",
    "han": "你好，世界！今天天气怎么样？㐂𠀀𠮷〇一二三",
    "kana": "こんにちは世界。カタカナ、ひらがな、ｶﾅ ー々〆",
    "hangul": "안녕하세요 세계! 오늘 날씨는 어때요? ㄱㅏ",
    "tamil": "வணக்கம் உலகம் ௧௨௩ ஸ்ரீ",
    "georgian": "გამარჯობა მსოფლიო ᲒᲐᲛ",
    "ethiopic": "ሰላም ልዑል ፩፪፫",
    "cherokee": "ᎣᏏᏲ ꭰꭱꭲ",
    "maths": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ½ ² ³ Ⅷ ⅞ ① ㊿ 𝟘𝟙𝟚 𝒜𝔅 x₁²",
    "symbols": "§ © ® ™ € £ ¥ ₿ † ‡ • … – — “quoted” ‘single’ «guillemets» ¡¿ №",
}
CODE = [
    "for (int i = 0; i < n; i++) { sum += a[i] * 0x1F; }", "def f(x): return x**2 if x else None  # comment",
    "\tif (!p) goto out;", "<div class=\"a\">&nbsp;</div>", "SELECT * FROM t WHERE id='42' AND x>=3.14e-10;",
    "git commit -m \"it's done\" && ls -la | grep '^d'", "#include <stdio.h>\r\nint main(void)\r\n{\r\n}\r\n",
    "{\"key\": [1, 2, null], \"s\": \"\\u00e9\\n\"}", "x = y ? z : w;;  //  two  spaces", "λ = lambda x: x@y",
    "fn main() -> Result<(), Box<dyn Error>> { Ok(()) }", "C:\\Users\\name\\file.txt", "https://example.org/a?b=c&d=%20#e",
    "    \n        return\n", "$$\\frac{1}{2}$$", "a.b.c->d::e", "__init__ snake_case camelCase SCREAMING_CASE",
]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "☺", "1️⃣", "🧑🏿‍🚀", "‍", "️", "\U000e0067\U000e007f"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D", "'ſ", "'ſt", "'x",
                "''s", "'", "’s", "'r", "'l", "'v", "'rE", "'K", "'ẞ", "'ﬆ"]
SPACES = [" ", "  ", "\t", "\u00a0", "\u2003", "\u3000", "\u1680", "\u2028", "\u2029", "\u202f", "\u205f", "\u0085", "\x0b", "\x0c"]
NEWLINES = ["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\n\r", " \n", "\n ", "  \n\t\n  ", "\t\r\n ", "\u0085\n", "\n\u2028"]
NOT_SPACES = ["\u200b", "\ufeff", "\u180e", "\u2060", "\x1c", "\x1d", "\x1e", "\x1f", "\x00", "\x7f", "\x01", "\u009f", "\ufffd"]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_end", "<|", "|>", "<|im_start|>system\n", "<think>", "</think>",
            "<|eot_id|>", "<repo_name>", "<|im_<|im_end|>", "<bos>", "<end_of_turn>", "<start_of_turn>user\n", "<0x41>", "▁",
            "▁▁▁", " ▁the", "<table>"]


def _random_point(r):
    while True:
        top = r.choice([0x80, 0x250, 0x800, 0x3000, 0x10000, 0x20000, 0x110000])
        c = r.randrange(top)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def _piece(r):
    kind = r.randrange(16)
    if kind < 4:
        words = PROSE[r.choice(sorted(PROSE))].split(" ")
        start = r.randrange(len(words))
        return " ".join(words[start:start + r.randint(1, 6)])
    if kind == 4:
        return r.choice(CODE)
    if kind == 5:
        return "".join(r.choice(EMOJI) for _ in range(r.randint(1, 4)))
    if kind == 6:
        return r.choice(["it", "WE", "", "ы", "1", " "]) + r.choice(CONTRACTIONS) + r.choice(["", "a", " ", "s", "1", "é"])
    if kind == 7:
        return r.choice(SPACES) * r.choice([1, 2, 3, 4, 7, 16, 61])
    if kind == 8:
        return "".join(r.choice(SPACES + NEWLINES) for _ in range(r.randint(1, 5)))
    if kind == 9:
        return "".join(r.choice("0123456789") for _ in range(r.choice([1, 2, 3, 4, 5, 6, 10, 40])))
    if kind == 10:
        return "".join(r.choice("٠١٢३४५๑๒½²Ⅷ①𝟘𑇡0") for _ in range(r.randint(1, 6)))
    if kind == 11:
        return "".join(r.choice(NOT_SPACES) for _ in range(r.randint(1, 3)))
    if kind == 12:
        return "".join(_random_point(r) for _ in range(r.randint(1, 8)))
    if kind == 13:
        return r.choice("a=-_.* xé你😀'\"#/0") * r.choice([2, 3, 5, 8, 13, 64, 100])
    if kind == 14:
        return "".join(r.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(r.randint(1, 6)))
    return r.choice(SPECIALS)


def lines(seed, n):
    r = random.Random(seed)
    fixed = [""] + list(PROSE.values()) + CODE + EMOJI + CONTRACTIONS + SPACES + NEWLINES + NOT_SPACES + SPECIALS
    out = fixed[:n]
    while len(out) < n:
        out.append("".join(_piece(r) + r.choice(["", "", " ", " ", "\n", "  "]) for _ in range(r.randint(1, 7))))
    return out


def broken_lines(seed, n):
    """Bytes that are mostly no UTF-8: cut, overlong, surrogates, stray continuation bytes, random."""
    r = random.Random(seed)
    bad = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xe4\xbd", b"\xf0\x9f\x98", b"\xc3", b"\xfe\xff"]
    out = []
    for _ in range(n):
        parts = [r.choice([_piece(r).encode(), r.choice(bad), bytes(r.randrange(256) for _ in range(r.randint(1, 6)))])
                 for _ in range(r.randint(1, 6))]
        text = b"".join(parts)
        out.append(text[r.randrange(3):])
    return out
