"""Graphs for a ComfyUI server: their structure is checked, and their node types are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import GraphInvalid, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from events.store.records import Endpoint
from events.types import Flavour
from serve_app.acceptance.comfyui_compilation import ComfyUICompiler
from serve_app.acceptance.compilation import CheckedBody
from settings.graph import GraphSettings
from tests.support.generate_bodies import diffusion_body

GRAPH = {
    "1": {"class_type": "NodeOfAPack", "inputs": {"seed": -1, "list": [1, 2, 3], "deep": {"a": 1}}},
    "2": {
        "class_type": "SaveVideo",
        "inputs": {"video": ["1", 0], "filename_prefix": "v"},
        "_meta": {"title": "Save"},
    },
}


CHAIN = {
    str(number): {"class_type": "A", "inputs": {"x": [str(number - 1), 0]} if number else {}}
    for number in range(500)
}


@pytest.fixture
def compiler(tmp_path: Path) -> ComfyUICompiler:
    return ComfyUICompiler(
        Endpoint("comfy", engine="comfyui", comfyui_url="http://host"),
        Catalogue(ModelsFolder(tmp_path)),
        GraphSettings(),
        default_checkpoint=None,
    )


def compiled(compiler: ComfyUICompiler, prompt: Any, **members: Any) -> CheckedBody:
    return compiler.compile(Flavour.WORKFLOW, {"prompt": prompt, **members})


def test_a_graph_of_unknown_nodes_is_recorded_as_it_is_but_for_its_seeds(
    compiler: ComfyUICompiler,
) -> None:
    body = compiled(compiler, GRAPH, extra_data={"extra_pnginfo": {"workflow": {}}})

    seed = body.recorded_request["prompt"]["1"]["inputs"].pop("seed")
    assert 0 <= seed < 2**32
    expected: dict[str, Any] = {
        **GRAPH,
        "1": {**GRAPH["1"], "inputs": {"list": [1, 2, 3], "deep": {"a": 1}}},
    }
    assert body.recorded_request == {
        "prompt": expected,
        "extra_data": {"extra_pnginfo": {"workflow": {}}},
    }
    assert (body.images, body.graph.cost.work, body.input_files) == (0, 0.0, ())


def test_image_inputs_are_uploads(compiler: ComfyUICompiler) -> None:
    prompt = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "cat.png [input]"}},
        "2": {"class_type": "LoadLatent", "inputs": {"latent": "cat.latent"}},
    }

    body = compiled(compiler, prompt)

    assert body.input_files == ("cat.png", "cat.latent")
    with pytest.raises(GraphInvalid, match=r"no upload 'cat\.png'; there are: dog\.png"):
        body.require_files(["dog.png"])
    assert body.with_file_sizes({"cat.png": (64, 64)}) is body


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "No prompt"),
        ({}, "no nodes"),
        ({"1": []}, "no class_type"),
        ({"1": {"class_type": 3}}, "no class_type"),
        ({"1": {"class_type": "A", "inputs": []}}, "not an object"),
        ({"1": {"class_type": "A", "inputs": {"x": ["2", 0]}}}, "there is no node 2"),
        ({"1": {"class_type": "A", "inputs": {"x": ["2", 0.5]}}}, "there is no node 2"),
        (CHAIN, "too deep"),
        ({"1": {"class_type": "LoadImage", "inputs": {"image": {"__value__": "/a"}}}}, "a text"),
        ({"1": {"class_type": "A", "inputs": {"x": ["1", 0]}}}, "cycle"),
        ({"1": {"class_type": "A", "inputs": {"x": float("nan")}}}, "not valid JSON"),
        ({"1": {"class_type": "A", "inputs": {"x": "\ud800"}}}, "not valid JSON"),
        ({"1": {"class_type": "A", "inputs": {"x": "a" * 200_000}}}, "characters"),
        ({str(number): {"class_type": "A"} for number in range(2000)}, "nodes"),
    ],
)
def test_a_graph_without_structure_is_refused(
    compiler: ComfyUICompiler, prompt: Any, message: str
) -> None:
    with pytest.raises(GraphInvalid) as refused:
        compiled(compiler, prompt)

    assert message in f"{refused.value.message} {refused.value.details}"


def test_a_graph_that_is_nested_too_deeply_is_refused(compiler: ComfyUICompiler) -> None:
    nested: Any = 1
    for _ in range(100_000):
        nested = {"a": nested}

    with pytest.raises(GraphInvalid, match="not valid JSON"):
        compiled(compiler, {"1": {"class_type": "A", "inputs": {"x": nested}}})


def test_a_diffusion_request_is_refused_by_name(compiler: ComfyUICompiler) -> None:
    with pytest.raises(ParametersInvalid, match="comfy runs workflows"):
        compiler.compile(Flavour.DIFFUSION, diffusion_body())
