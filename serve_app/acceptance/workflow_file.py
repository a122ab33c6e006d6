"""A workflow as it comes: around its graph, as the bare file of a graph, or of ComfyUI's editor."""

from __future__ import annotations

from typing import Any

from engine.graph.catalogue import Catalogue
from serve_app.acceptance.editor_file import is_of_editor, prompt_of


def workflow_members(body: object, catalogue: Catalogue) -> dict[str, Any]:
    """The members of a workflow request, with the graph as `prompt`, of which nothing is checked.

    A body that is a graph itself, as ComfyUI's "Save (API Format)" writes it, is taken for one, and
    the file of its editor is turned into one. Raises GraphInvalid where that is not certain.
    """
    members = body if isinstance(body, dict) else {}
    if is_of_editor(members):
        return {"prompt": prompt_of(members, catalogue)}
    if is_of_editor(members.get("prompt")):
        return {**members, "prompt": prompt_of(members["prompt"], catalogue)}
    if "prompt" not in members and members and all(map(_is_node, members.values())):
        return {"prompt": members}
    return members


def _is_node(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("class_type"), str)
