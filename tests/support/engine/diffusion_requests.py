"""Diffusion requests, compiled for the tiny checkpoint at 64 x 64 pixels."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from engine.errors import ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.webui.compiler import Compiled, compile_parameters
from engine.webui.diffusion_request import compile_diffusion
from engine.webui.infotext import image_settings, infotext
from engine.webui.parameters import parse_parameters
from serve_app.acceptance.compilation import recorded_graph
from tests.support.engine.workflows import TINY

SMALL = {"prompt": "x", "seed": 5, "width": 64, "height": 64}


def compiled(
    catalogue: Catalogue,
    limits: Limits | None = None,
    *,
    default: str | None = TINY,
    **body: Any,
) -> Compiled:
    """A request with the members of `body`, compiled."""
    parameters = parse_parameters({**SMALL, **body})
    return compile_parameters(
        parameters, catalogue.models, limits or Limits(), default_checkpoint=default
    )


def compiled_members(catalogue: Catalogue, checkpoint: str, **request: Any) -> dict[str, Any]:
    """The members of `Submitted` that hold a request and its graph."""
    found = compile_diffusion(
        request,
        catalogue,
        Limits(),
        compatibility="comfyui",
        default_checkpoint=checkpoint,
        draw_seed=lambda: 0,
    )
    return {"request": request, "compiled": recorded_graph(found)}


def graph_of(catalogue: Catalogue, **body: Any) -> Graph:
    """The graph of a request with the members of `body`."""
    return validate(compiled(catalogue, **body).prompt, catalogue, Limits())


def text_of_image(catalogue: Catalogue, index: int = 0, *, version: str = "1", **body: Any) -> str:
    """The text that the WebUI writes into an image of a request with the members of `body`."""
    parameters = parse_parameters({**SMALL, **body})
    settings = image_settings(parameters, compiled(catalogue, **body))
    return infotext((parameters.prompt, parameters.negative_prompt), settings, index, version)


def field_errors(catalogue: Catalogue, limits: Limits | None = None, **body: Any) -> dict[str, str]:
    """The messages of an invalid request, by field."""
    with pytest.raises(ParametersInvalid) as caught:
        compiled(catalogue, limits, **body)
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields
    return {each.field: each.message for each in caught.value.fields}


def kinds(graph: Graph) -> list[str]:
    """The `class_type` of each node."""
    return [node.class_type for node in graph.nodes]
