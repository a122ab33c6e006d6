"""Finds the graph in the body of a workflow request.

A body has the graph as a member, is a graph itself, or is a file of ComfyUI's editor.
"""

from __future__ import annotations

from typing import Any

from engine.graph.editor_file.conversion import Declared, prompt_of


def is_of_editor(value: object) -> bool:
    """Whether the value has the form of a file of ComfyUI's editor, and not of a graph."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("nodes"), list)
        and isinstance(value.get("links"), list)
    )


def workflow_members(body: object, declared: Declared) -> dict[str, Any]:
    """Return the members of a workflow request, with its unchecked graph as `prompt`.

    `declared` returns the declaration of a node type in the shape of `object_info`, or None.
    Raises GraphInvalid for an editor file that cannot be converted to a graph with certainty.
    """
    members = body if isinstance(body, dict) else {}
    if is_of_editor(members):
        return {"prompt": prompt_of(members, declared)}
    if is_of_editor(members.get("prompt")):
        return {**members, "prompt": prompt_of(members["prompt"], declared)}
    if "prompt" not in members and members and all(map(_is_node, members.values())):
        return {"prompt": members}
    return members


def _is_node(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("class_type"), str)
