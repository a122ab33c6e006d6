"""Diffusion requests, compiled for the tiny checkpoint at 64 x 64 pixels."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.webui.compiler import Compiled, compile_parameters
from engine.webui.parameters import parse_parameters
from tests.support.engine.workflows import TINY


def compiled(catalogue: Catalogue, limits: Limits | None = None, **body: Any) -> Compiled:
    """A request with the members of `body`, compiled."""
    parameters = parse_parameters({"prompt": "x", "seed": 5, "width": 64, "height": 64, **body})
    return compile_parameters(parameters, catalogue, limits or Limits(), default_checkpoint=TINY)


def graph_of(catalogue: Catalogue, **body: Any) -> Graph:
    """The graph of a request with the members of `body`."""
    return validate(compiled(catalogue, **body).prompt, catalogue, Limits())


def field_errors(catalogue: Catalogue, limits: Limits | None = None, **body: Any) -> dict[str, str]:
    """The messages of an invalid request, by field."""
    with pytest.raises(ParametersInvalid) as caught:
        compiled(catalogue, limits, **body)
    return {each.field: each.message for each in caught.value.fields}


def kinds(graph: Graph) -> list[str]:
    """The `class_type` of each node."""
    return [node.class_type for node in graph.nodes]
