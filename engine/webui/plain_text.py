"""Replaces characters in prompts with plain characters, as CLIP does with ftfy.

Unlike ftfy, this module does not repair text that was decoded with a wrong encoding.
"""

from __future__ import annotations

import html
import re
import unicodedata

_FULL_WIDTH = range(0xFF01, 0xFFF0)
_LIGATURES = "ĲĳŉǱǲǳǄǅǆǇǈǉǊǋǌﬀﬁﬂﬃﬄﬆ"
_WINDOWS = {code: bytes([code]).decode("cp1252", "ignore") for code in range(0x80, 0xA0)}
"""The characters of Windows-1252 at the codes of the control characters of Latin-1."""
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
"""Characters that are not combining characters, but are decomposed into combining characters. They
are decomposed before combining characters are counted. The composed text (NFC) stays the same."""
_PLAIN = str.maketrans(
    _APART
    | dict.fromkeys("\u2028\u2029\x85", "\n")
    | dict.fromkeys("\u02bc\u2018\u2019\u201a\u201b", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | dict.fromkeys(map(chr, _REMOVED))
)
_LONGEST_RUN = 30
"""The largest number of combining characters in a row, as in Unicode's Stream-Safe Text Format
(UAX #15, section 13). The time to compose a text grows with the square of this number."""
_ENTITY = re.compile(r"&#?[0-9A-Za-z]{1,24};")


def plain_text(text: str) -> str:
    """Return the text in plain characters, composed (NFC).

    Typographic quotes, full-width characters, ligatures and HTML entities are replaced. Control
    characters are removed.
    """
    if text.isascii() and "&" not in text:
        return text
    if "<" not in text:
        text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    return _composed(text.translate(_COMPATIBLE).translate(_PLAIN))


def _composed(text: str) -> str:
    """Return the text in NFC, with at most `_LONGEST_RUN` combining characters in a row."""
    kept: list[str] = []
    run = 0
    for each in text:
        run = run + 1 if unicodedata.combining(each) else 0
        if run <= _LONGEST_RUN:
            kept.append(each)
    return unicodedata.normalize("NFC", "".join(kept))
