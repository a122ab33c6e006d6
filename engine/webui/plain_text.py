"""Prompts with the characters that the tokenizer knows: what CLIP's own tokenizer does by ftfy.

Of ftfy's mends one is left out: text that was decoded as another encoding than its own stays.
"""

from __future__ import annotations

import html
import re
import unicodedata

_FULL_WIDTH = range(0xFF01, 0xFFF0)
_LIGATURES = "ĲĳŉǱǲǳǄǅǆǇǈǉǊǋǌﬀﬁﬂﬃﬄﬆ"
_WINDOWS = {code: bytes([code]).decode("cp1252", "ignore") for code in range(0x80, 0xA0)}
"""What Windows has in the place of the control characters of Latin-1."""
_COMPATIBLE = (
    {code: text or chr(code) for code, text in _WINDOWS.items()}
    | {code: unicodedata.normalize("NFKC", chr(code)) for code in _FULL_WIDTH}
    | {ord(one): unicodedata.normalize("NFKC", one) for one in _LIGATURES}
    | {0x3000: " ", 0xFB05: "\u017ft"}
)
_REMOVED = (
    *range(0x09),
    0x0B,
    *range(0x0E, 0x20),
    0x7F,
    *range(0x206A, 0x2070),
    0xFEFF,
    *range(0xFFF9, 0xFFFD),
)
_APART = {each: unicodedata.normalize("NFD", each) for each in "\u0f73\u0f75\u0f81"}
"""The characters that do not combine themselves, and begin with one that does where they are taken
apart. That changes no text that is composed."""
_PLAIN = str.maketrans(
    _APART
    | dict.fromkeys("\u2028\u2029\x85", "\n")
    | dict.fromkeys("\u02bc\u2018\u2019\u201a\u201b", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | dict.fromkeys(map(chr, _REMOVED))
)
_LONGEST_RUN = 30
"""Combining characters in a row, as in Unicode's Stream-Safe Text Format (UAX #15, section 13): to
compose a text takes the square of their number.
"""
_ENTITY = re.compile(r"&#?[0-9A-Za-z]{1,24};")


def plain_text(text: str) -> str:
    """The text with typographic quotes, full-width characters, ligatures and HTML entities made
    plain, without control characters, composed (NFC).
    """
    if text.isascii() and "&" not in text:
        return text
    if "<" not in text:
        text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    return _composed(text.translate(_COMPATIBLE).translate(_PLAIN))


def _composed(text: str) -> str:
    """In NFC, without what is more than `_LONGEST_RUN` combining characters in a row."""
    kept: list[str] = []
    run = 0
    for each in text:
        run = run + 1 if unicodedata.combining(each) else 0
        if run <= _LONGEST_RUN:
            kept.append(each)
    return unicodedata.normalize("NFC", "".join(kept))
