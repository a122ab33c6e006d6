"""Draws the seeds that a workflow leaves open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.graph.graph import SEED_INPUTS
from engine.graph.inputs.literals import whole_number


def resolve_seeds(prompt: object, draw: Callable[[], int]) -> Any:
    """The prompt with a drawn seed in place of each negative one.

    `prompt` need not be valid: malformed parts are left as they are.
    """
    if not isinstance(prompt, dict):
        return prompt
    return {node_id: _with_seeds(node, draw) for node_id, node in prompt.items()}


def _with_seeds(node: Any, draw: Callable[[], int]) -> Any:
    inputs = node.get("inputs") if isinstance(node, dict) else None
    if not isinstance(inputs, dict):
        return node
    drawn = {name: draw() for name in SEED_INPUTS if _is_negative(inputs.get(name))}
    return {**node, "inputs": {**inputs, **drawn}} if drawn else node


def _is_negative(value: Any) -> bool:
    number = whole_number(value)
    return number is not None and number < 0
