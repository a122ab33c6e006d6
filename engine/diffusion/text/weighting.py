r"""Reads the weights of words in a prompt, in ComfyUI's syntax.

`(word)` has the weight 1.1, and nested groups multiply theirs. The weight in `(word:1.3)` is
absolute. `\(` and `\)` are characters of the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

_PAREN_WEIGHT = 1.1
_DEEPEST = 32
_OPEN, _CLOSE = "\ue000", "\ue001"  # for private use in Unicode, so no prompt has them


def weighted_segments(prompt: str) -> list[tuple[str, float]]:
    """The prompt in pieces, each with its weight."""
    hidden = prompt.replace("\\(", _OPEN).replace("\\)", _CLOSE)
    found: list[tuple[str, float]] = []
    pending = [(hidden, 1.0, 0)]
    while pending:
        text, weight, depth = pending.pop()
        pieces = list(_split(text)) if depth < _DEEPEST else [(text, False)]
        if not any(is_group for _, is_group in pieces):
            found.append((_unhide(text), weight))
            continue
        for piece, is_group in reversed(pieces):
            if is_group:
                pending.append((*_opened(piece, weight), depth + 1))
            else:
                # It has no groups, so it is not split again.
                pending.append((piece, weight, _DEEPEST))
    return found


def _split(text: str) -> Iterator[tuple[str, bool]]:
    """The text split at its outermost groups, and whether each piece is a group.

    What is left at the end counts as a group if it begins and ends with parentheses.
    """
    depth = start = 0
    for place, char in enumerate(text):
        if char == "(":
            if depth == 0:
                if place > start:
                    yield text[start:place], False
                start = place
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                yield text[start : place + 1], True
                start = place + 1
    if start < len(text):
        rest = text[start:]
        yield rest, len(rest) > 1 and rest[0] == "(" and rest[-1] == ")"


def _opened(group: str, weight: float) -> tuple[str, float]:
    """The text inside a group, and its weight."""
    inside = group[1:-1]
    words, colon, number = inside.rpartition(":")
    if words and colon:
        try:
            absolute = float(number)
        except ValueError:
            pass
        else:
            return words, absolute if math.isfinite(absolute) else 1.0
    return inside, weight * _PAREN_WEIGHT


def _unhide(text: str) -> str:
    return text.replace(_OPEN, "(").replace(_CLOSE, ")")
