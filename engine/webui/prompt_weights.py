"""The weights of words in a prompt, and BREAK, in the WebUI's syntax."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from engine.webui.prompt_numbers import in_range, weight_of

OPENING = {"]": "[", ")": "("}
"""The opening bracket of each closing one."""
_FACTORS = {"]": 1 / 1.1, ")": 1.1}

_BREAK = re.compile(r"\bBREAK\b")
_TOKEN = re.compile(
    r"\\(?P<escaped>[()\[\]\\])|\\|(?P<bracket>[()\[\]])"
    r"|:\s*+(?P<weight>[+-]?+[.\d]++)\s*+\)|[^\\()\[\]:]++|:"
)

Segment: TypeAlias = tuple[str, float]
"""A text with its weight."""
Section: TypeAlias = tuple[Segment, ...]
"""The text between two BREAKs."""


def sections_of(text: str) -> tuple[Section, ...]:
    """The sections of a text that stays the same. Raises PromptInvalid."""
    sections: list[list[Segment]] = [[]]
    # Neighbours of equal weight become one text.
    for weight, segments in groupby(_weighted(text), key=itemgetter(1)):
        first, *others = _BREAK.split("".join(words for words, _ in segments))
        sections[-1].append((first, weight))
        sections += ([(other, weight)] for other in others)
    return tuple(tuple(each for each in section if each[0]) for section in sections)


def _weighted(text: str) -> Iterator[Segment]:
    segments: list[list[str]] = []
    """The words between two brackets, which weigh the same."""
    weights: list[float] = []
    opened: dict[str, list[int]] = {"(": [], "[": []}
    is_new = True

    def weigh(start: int, factor: float) -> None:
        weights[start:] = [in_range(weight * factor) for weight in weights[start:]]

    for match in _TOKEN.finditer(text):
        token = match[0]
        starts = opened[OPENING.get(token, "(")]
        if token in opened:
            opened[token].append(len(segments))
            is_new = True
        elif starts and (match["weight"] or token in OPENING):
            factor = weight_of(match["weight"]) if match["weight"] else _FACTORS[token]
            weigh(starts.pop(), factor)
            is_new = True
        else:
            if is_new:
                segments.append([])
                weights.append(1.0)
                is_new = False
            segments[-1].append(match["escaped"] or ("" if token == "\\" else token))
    for closing, opening in OPENING.items():
        for start in opened[opening]:
            weigh(start, _FACTORS[closing])
    return zip(map("".join, segments), weights, strict=True)
