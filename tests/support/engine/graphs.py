"""Checks of prompts: their graphs and costs, and the errors of those that are invalid."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.cost import Cost
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate


def catalogue_of(root: Path, *files: str) -> Catalogue:
    """A catalogue of empty files below a folder, because validation reads only their names."""
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return Catalogue(ModelsFolder(root))


def graph_of(prompt: object, catalogue: Catalogue, **limits: Any) -> Graph:
    return validate(prompt, catalogue, Limits(**limits))


def cost_of(prompt: object, catalogue: Catalogue) -> Cost:
    return graph_of(prompt, catalogue).cost


def refusal_of(prompt: object, catalogue: Catalogue, **limits: Any) -> GraphInvalid:
    with pytest.raises(GraphInvalid) as refusal:
        graph_of(prompt, catalogue, **limits)
    return refusal.value


def error_body(prompt: object, catalogue: Catalogue, **limits: Any) -> dict[str, Any]:
    """Return the error body of a prompt, whatever the prompt contains.

    It must be strict JSON, and the same after the error has come from another process.
    """
    refusal = refusal_of(prompt, catalogue, **limits)
    body = refusal.body()
    json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    assert pickle.loads(pickle.dumps(refusal)).body() == body
    return body


def node_error(prompt: object, catalogue: Catalogue, node_id: str = "3") -> dict[str, Any]:
    """The only error of one node of a prompt."""
    body = error_body(prompt, catalogue)
    assert body["error"]["type"] == "prompt_outputs_failed_validation"
    (error,) = body["node_errors"][node_id]["errors"]
    found: dict[str, Any] = error
    return found
