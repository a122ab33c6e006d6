"""How much text a prompt may have in all: each of its nodes has a limit of its own beside this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import GraphInvalid


def require_text_budget(prompt: object, max_chars: int) -> None:
    """Raise GraphInvalid where the texts of all nodes together have more than `max_chars`.

    `prompt` need not be valid. It is asked before its texts are parsed.
    """
    nodes = prompt.values() if isinstance(prompt, Mapping) else ()
    chars = sum(_chars_of(node) for node in nodes)
    if chars > max_chars:
        details = f"{chars} characters, at most {max_chars} are taken"
        raise GraphInvalid("too_much_text", "The texts of the prompt are too long", details)


def _chars_of(node: Any) -> int:
    inputs = node.get("inputs") if isinstance(node, Mapping) else None
    values = inputs.values() if isinstance(inputs, Mapping) else ()
    return sum(len(value) for value in values if isinstance(value, str))
