"""The errors of prompts that are invalid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.validation import validate


def error_body(
    prompt: object, catalogue: Catalogue, limits: Limits | None = None
) -> dict[str, Any]:
    """The body of the error of a prompt. It must be strict JSON, whatever the prompt holds."""
    with pytest.raises(GraphInvalid) as caught:
        validate(prompt, catalogue, limits or Limits())
    body = caught.value.body()
    json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    return body


def node_error(prompt: object, catalogue: Catalogue, node_id: str = "3") -> dict[str, Any]:
    """The only error of one node of a prompt."""
    body = error_body(prompt, catalogue)
    assert body["error"]["type"] == "prompt_outputs_failed_validation"
    (error,) = body["node_errors"][node_id]["errors"]
    found: dict[str, Any] = error
    return found
