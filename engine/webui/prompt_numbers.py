"""The numbers in a prompt. They are of bounded length, and a long row of digits is read once."""

from __future__ import annotations

import re

_MAX_WEIGHT = 1000.0
_MAX_CHARS = 40

# Possessive quantifiers (`++`) keep what they have matched, so nothing is tried twice.
_NUMBER = re.compile(r"[+-]?+(?>\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?+\d++)?+")


class PromptInvalid(ValueError):
    """The prompt cannot be parsed, or it is too long or too complex."""


def is_number(text: str) -> bool:
    """Whether the text is a decimal number, of any length. Spaces around it do not count."""
    return _NUMBER.fullmatch(text.strip()) is not None


def number_of(text: str) -> float:
    """Raises PromptInvalid where the text is too long or no number."""
    shown = text.strip()
    if len(shown) > _MAX_CHARS:
        raise PromptInvalid(f"a number has {len(shown)} characters, at most {_MAX_CHARS} are taken")
    try:
        return float(shown)
    except ValueError:
        raise PromptInvalid(f"{shown!r} is no weight") from None


def weight_of(text: str) -> float:
    """Raises PromptInvalid where the text is no number within the range of weights."""
    return in_range(number_of(text))


def in_range(weight: float) -> float:
    if not abs(weight) <= _MAX_WEIGHT:
        raise PromptInvalid(f"a weight is beyond {_MAX_WEIGHT:g}")
    return weight
