"""How much text a prompt may have in all: each of its nodes has a limit of its own beside this."""

from __future__ import annotations

from engine.errors import GraphInvalid


def require_text_budget(prompt: object, max_chars: int) -> None:
    """Raise GraphInvalid where the texts of all nodes together have more than `max_chars`.

    `prompt` need not be valid. It is asked before its texts are parsed.
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
