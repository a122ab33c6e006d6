"""How much a prompt may have in all: each of its texts has a limit of its own beside this."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.errors import GraphInvalid

_MAX_RECORDED_BYTES = 3 * 2**19
"""A message of the event log may have 2 MB, and the request is not all that it holds."""


def require_text_budget(prompt: object, max_chars: int) -> None:
    """Raise GraphInvalid where the texts of all nodes together have more than `max_chars`.

    `prompt` need not be valid. It is asked before its texts are parsed, and again of what is
    recorded.
    """
    chars = 0
    for node in prompt.values() if isinstance(prompt, dict) else ():
        inputs = node.get("inputs") if isinstance(node, dict) else None
        for value in inputs.values() if isinstance(inputs, dict) else ():
            if isinstance(value, str):
                chars += len(value)
    if chars > max_chars:
        details = f"{chars} characters, at most {max_chars} are taken"
        raise GraphInvalid("too_much_text", "The texts of the prompt are too long", details)


def require_recordable(request: Mapping[str, Any]) -> None:
    """Raise GraphInvalid where a checked request is longer than what the log takes.

    What links bring stands wherever it is used by then: texts, and the ids behind switches.
    """
    size_bytes = len(json.dumps(request, ensure_ascii=False).encode())
    if size_bytes > _MAX_RECORDED_BYTES:
        details = (
            f"{size_bytes} bytes with what its links bring, at most {_MAX_RECORDED_BYTES} are "
            "taken: use shorter ids, or fewer links to switches"
        )
        raise GraphInvalid("too_large", "The prompt is too large", details)
