r"""Reads the weights of words in a prompt, in ComfyUI's syntax.

`(word)` has the weight 1.1, and the weights of nested groups are multiplied. The weight in
`(word:1.3)` is absolute. `\(` and `\)` are ordinary characters of the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

_PAREN_WEIGHT = 1.1
_DEEPEST = 32
_MAX_NUMBER_CHARS = 40
"""A number with more characters than this is treated as text."""
_PARENTHESIS = re.compile(r"[()]")
_OPEN, _CLOSE = "\ue000", "\ue001"  # Prompts do not contain these private-use characters.


def weighted_segments(prompt: str) -> list[tuple[str, float]]:
    """Split the prompt into pieces, each with its weight."""
    text = prompt.replace("\\(", _OPEN).replace("\\)", _CLOSE)
    closing = _closing(text)
    found: list[tuple[str, float]] = []
    pending = [(0, len(text), 1.0, 0)]
    while pending:
        start, end, weight, depth = pending.pop()
        pieces = list(_split(text, start, end, closing)) if depth < _DEEPEST else []
        if not pieces:
            found.append((_unhide(text[start:end]), weight))
            continue
        for first, last, is_group in reversed(pieces):
            if is_group:
                words_end, words_weight = _opened(text, first + 1, last - 1, weight)
                pending.append((first + 1, words_end, words_weight, depth + 1))
            else:
                # The piece has no groups, so it is not split again.
                pending.append((first, last, weight, _DEEPEST))
    return found


def _closing(text: str) -> Mapping[int, int]:
    """Return the closing position of each opening parenthesis, by the opening position.

    If a parenthesis is not closed, the closing position is the end of the text. After a closing
    parenthesis that closes nothing, the next opening parenthesis has no effect.
    """
    closing: dict[int, int] = {}
    opened: list[int] = []
    missing = 0
    for parenthesis in _PARENTHESIS.finditer(text):
        position = parenthesis.start()
        if text[position] == ")":
            if opened:
                closing[opened.pop()] = position
            else:
                missing += 1
        elif missing:
            missing -= 1
        else:
            opened.append(position)
    return closing | dict.fromkeys(opened, len(text))


def _split(
    text: str, start: int, end: int, closing: Mapping[int, int]
) -> Iterator[tuple[int, int, bool]]:
    """Split a part of the text at its outermost groups.

    Yields the start and the end of each piece, and whether the piece is a group. The last piece
    also counts as a group if it begins and ends with parentheses.
    """
    position = text.find("(", start, end)
    while position >= 0:
        close = closing.get(position)
        if close is None:
            position = text.find("(", position + 1, end)
            continue
        if position > start:
            yield start, position, False
        start = position
        if close >= end:
            break
        yield position, close + 1, True
        start = close + 1
        position = text.find("(", start, end)
    if start < end:
        rest = text[start:end]
        yield start, end, len(rest) > 1 and rest[0] == "(" and rest[-1] == ")"


def _opened(text: str, start: int, end: int, weight: float) -> tuple[int, float]:
    """Return the position at which the words inside a group end, and the weight of the words."""
    colon = text.rfind(":", start, end)
    number = text[colon + 1 : end].strip()
    if colon > start and len(number) <= _MAX_NUMBER_CHARS:
        try:
            absolute = float(number)
        except ValueError:
            pass
        else:
            return colon, absolute if math.isfinite(absolute) else 1.0
    return end, weight * _PAREN_WEIGHT


def without_escapes(text: str) -> str:
    r"""Return the text with bare parentheses instead of `\(` and `\)`."""
    return text.replace("\\(", "(").replace("\\)", ")")


def _unhide(text: str) -> str:
    return text.replace(_OPEN, "(").replace(_CLOSE, ")")
