"""Texts at which tokenizers differ: emoji, digits, double spaces, line ends, contractions, scripts, code, names of special tokens."""

from __future__ import annotations

import itertools

PIECES = [
    "Hello world",
    "  two  spaces   three",
    "\n\n\nlines\r\n\r\nand\ttabs \t \n",
    "it's I'LL we've DON'T o'clock 'quoted'",
    "123 4567 89012 3.14159 1,000,000 0x1F ½ Ⅷ ٣٤",
    "你好，世界。日本語のテスト 한국어",
    "café naïve Z\u0338 e\u0301 ﬁne straße",
    "👍🏽 👨‍👩‍👧 🇩🇪 \u200d\ufe0f",
    "def f(x):\n    return x**2  # done\n",
    '{"a": [1, 2], "b": "c\\n"}',
    "camelCase snake_case HTTPServer ÄÖÜber",
    "!!! ... ??? -- ==> $5 + 7 <= 3^2 ~ | `x`",
    "https://example.org/a?b=c&d=%20#e",
    "العربية עברית हिन्दी ไทย Ελληνικά Русский",
    "<|end|> and <tag> and <|start|>",
    "<|end|><|end|><tag>x<tag>",
    "< |end| > <|en d|> <ta g>",
    "a\u00a0b\u2003c\u3000d \u2028e",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0001f9ff\u0000\u0007",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbb     ",
]


def awkward_texts() -> list[str]:
    """More than 200: the pieces, in pairs with nothing or a space between, and some ends."""
    pairs = [left + between + right for (left, right), between in zip(itertools.permutations(PIECES, 2), itertools.cycle(["", " "]))]
    return ["", " ", "  ", "\n", "a", " a", *PIECES, *pairs[::2]]
