"""Graphs for a ComfyUI server: their structure is checked, and their node types are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comfyui.object_info import ObjectInfo
from engine.errors import GraphInvalid, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from events.store.records import Endpoint
from events.types import Flavour
from serve_app.acceptance.comfyui_compilation import ComfyUICompiler
from serve_app.acceptance.compilation import CheckedBody
from settings.graph import GraphSettings
from tests.support.comfyui.core_requests import CORE_INPUTS, IMAGE, MASK, SMALL, core_request

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
    return compiler_of(tmp_path)


def compiler_of(tmp_path: Path, **members: Any) -> ComfyUICompiler:
    return ComfyUICompiler(
        Endpoint("comfy", engine="comfyui", comfyui_url="http://host", **members),
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
    with pytest.raises(GraphInvalid, match=r"no upload 'cat\.png'; there are: dog\.png") as caught:
        body.require_files(["dog.png"])
    assert caught.value.node_errors.keys() == {"1", "2"}
    assert body.with_file_sizes({"cat.png": (64, 64)}) is body


def test_texts_that_end_like_files_may_be_uploads(compiler: ComfyUICompiler) -> None:
    texts = {
        "file": "clip.MP4",
        "audio": "song.flac [input]",
        "picture": "cat.png",
        "noise": "old.latent",
        "model": "model.safetensors",
        "format": "mp4",
        "folder": "pets/cat.png",
        "hidden": "a\0.png",
        "long": "a" * 300 + ".png",
        "nested": ["a.png", "b.png", "c.png"],
        "suffix": ".webm",
    }
    prompt = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "cat.png"}},
        "2": {"class_type": "NodeOfAPack", "inputs": texts},
    }

    body = compiled(compiler, prompt)

    assert body.input_files == ("cat.png",)
    assert body.possible_files == (".webm", "clip.MP4", "old.latent", "song.flac")


def test_the_names_of_files_are_limited(compiler: ComfyUICompiler) -> None:
    def names(count: int) -> dict[str, Any]:
        return {"1": {"class_type": "A", "inputs": {str(n): f"{n}.png" for n in range(count)}}}

    assert len(compiled(compiler, names(256)).possible_files) == 256
    with pytest.raises(GraphInvalid, match="257 names of files"):
        compiled(compiler, names(257))


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


@pytest.mark.parametrize(
    ("members", "refused"),
    [
        ({"comfyui_allowed_nodes": ("NodeOfAPack", "SaveVideo", "Other")}, []),
        ({"comfyui_denied_nodes": ("Other",)}, []),
        ({"comfyui_allowed_nodes": ("SaveVideo",)}, ["1"]),
        ({"comfyui_denied_nodes": ("SaveVideo", "Other")}, ["2"]),
        (
            {"comfyui_allowed_nodes": ("SaveVideo",), "comfyui_denied_nodes": ("SaveVideo",)},
            ["1", "2"],
        ),
    ],
)
def test_a_graph_has_only_node_types_that_the_endpoint_allows(
    tmp_path: Path, members: dict[str, Any], refused: list[str]
) -> None:
    compiler = compiler_of(tmp_path, **members)
    if not refused:
        compiled(compiler, GRAPH)
        return
    with pytest.raises(GraphInvalid) as error:
        compiled(compiler, GRAPH)

    body = error.value.body()
    assert body["error"]["type"] == "prompt_outputs_failed_validation"
    assert "is not allowed on the endpoint comfy" in body["error"]["details"]
    assert list(body["node_errors"]) == refused
    for node_id, shown in body["node_errors"].items():
        assert shown["class_type"] == GRAPH[node_id]["class_type"]
        [of_node] = shown["errors"]
        assert of_node["type"] == "node_not_allowed"
        assert of_node["details"] == f"{shown['class_type']} is not allowed on the endpoint comfy"


def test_an_error_shows_a_limited_number_of_nodes(tmp_path: Path) -> None:
    many = {str(number): {"class_type": "A" * 1000} for number in range(200)}

    with pytest.raises(GraphInvalid) as error:
        compiled(compiler_of(tmp_path, comfyui_allowed_nodes=("B",)), many)

    assert error.value.extra_info == {"errors": 200, "errors_shown": 50}
    assert len(str(error.value.body())) < 30_000


def test_a_diffusion_request_becomes_a_graph_of_core_nodes(compiler: ComfyUICompiler) -> None:
    given = core_request("inpaint", sd_model_checkpoint="sd15", seed=-1, batch_size=2)

    body = compiler.compile(Flavour.DIFFUSION, given)

    assert body.recorded_graph is not None
    assert body.recorded_graph.first_index == {"save-0": 0, "save-1": 1}
    assert (body.images, body.input_files) == (2, (IMAGE, MASK))
    assert body.recorded_graph.graph == body.prompt
    seed = body.recorded_request.pop("seed")
    assert 0 <= seed < 2**32
    assert body.recorded_request == {name: given[name] for name in given if name != "seed"}
    with pytest.raises(ParametersInvalid, match=r"mask.*no upload 'mask\.png'"):
        body.require_files([IMAGE])
    assert body.with_file_sizes({IMAGE: (64, 64)}) is body


def test_inline_images_of_a_diffusion_request_are_uploads(compiler: ComfyUICompiler) -> None:
    given = core_request("img2img", sd_model_checkpoint="sd15", init_images=["data:,x"])

    body = compiler.compile(Flavour.DIFFUSION, given)

    [inline] = body.inline_images
    stored = body.with_uploads({inline.placeholder: "a.png"})
    assert stored.recorded_request["init_images"] == ["a.png"]
    assert stored.prompt["image-0"]["inputs"]["image"] == "a.png"
    assert isinstance(body.refusal_of(inline, "why"), ParametersInvalid)


def test_a_checkpoint_is_not_looked_up_in_the_models_folder(compiler: ComfyUICompiler) -> None:
    other = ComfyUICompiler(
        replace(compiler.endpoint, checkpoint="xl.ckpt"),
        compiler.catalogue,
        GraphSettings(),
        default_checkpoint="of-another-endpoint",
    )

    body = other.compile(Flavour.DIFFUSION, SMALL)

    assert other.checkpoint() == "xl.ckpt"
    assert body.recorded_request["sd_model_checkpoint"] == "xl.ckpt"
    assert body.prompt["checkpoint"]["inputs"] == {"ckpt_name": "xl.ckpt"}
    assert compiler.checkpoint() is None
    with pytest.raises(ParametersInvalid, match=r"sd_model_checkpoint.*endpoint has no checkpoint"):
        compiler.compile(Flavour.DIFFUSION, SMALL)


def test_only_the_checkpoints_of_the_endpoint_are_allowed(compiler: ComfyUICompiler) -> None:
    limited = ComfyUICompiler(
        replace(compiler.endpoint, checkpoints=("a.ckpt", "b.ckpt")),
        compiler.catalogue,
        GraphSettings(),
        default_checkpoint=None,
    )

    assert limited.checkpoint() == limited.checkpoint_named("a") == "a.ckpt"
    assert compiler.checkpoint_named("c") == "c.safetensors"
    with pytest.raises(ParametersInvalid, match=r"sd_model_checkpoint.*there are: a.ckpt, b.ckpt"):
        limited.compile(Flavour.DIFFUSION, {**SMALL, "sd_model_checkpoint": "c"})


def test_the_nodes_of_a_diffusion_request_must_be_allowed(tmp_path: Path) -> None:
    body = {**SMALL, "sd_model_checkpoint": "sd15", "prompt": "cat.png"}

    compiled = compiler_of(tmp_path, comfyui_denied_nodes=("A",)).compile(Flavour.DIFFUSION, body)

    assert compiled.possible_files == ()
    with pytest.raises(GraphInvalid, match="KSampler is not allowed"):
        compiler_of(tmp_path, comfyui_denied_nodes=("KSampler",)).compile(Flavour.DIFFUSION, body)


def test_models_are_those_that_the_server_has_declared(compiler: ComfyUICompiler) -> None:
    nodes: dict[str, Any] = {
        name: {
            "input": {"required": {each: ["ANY"] for each in inputs}},
            "output_node": name == "SaveImage",
        }
        for name, inputs in CORE_INPUTS.items()
    }
    for name, models in (
        ("CheckpointLoaderSimple", {"ckpt_name": ["a.ckpt", "xl/b.safetensors"]}),
        ("LoraLoader", {"lora_name": ["style.pt"]}),
        ("VAELoader", {"vae_name": ["taesd"]}),
        ("UpscaleModelLoader", {"model_name": ["4x.pth"]}),
    ):
        nodes[name]["input"]["required"] |= {each: [found] for each, found in models.items()}
    declared = ComfyUICompiler(
        compiler.endpoint,
        compiler.catalogue,
        GraphSettings(),
        default_checkpoint=None,
        object_info=ObjectInfo(json.dumps(nodes).encode()),
    )
    body = {
        **SMALL,
        "prompt": "a fox <lora:style:1>",
        "enable_hr": True,
        "hr_upscaler": "4x",
        "hr_checkpoint_name": "b",
        "override_settings": {"sd_vae": "taesd"},
    }

    prompt = declared.compile(Flavour.DIFFUSION, body).prompt

    assert declared.checkpoint() == prompt["checkpoint"]["inputs"]["ckpt_name"] == "a.ckpt"
    assert prompt["hires-checkpoint"]["inputs"]["ckpt_name"] == "xl/b.safetensors"
    assert prompt["lora-0"]["inputs"]["lora_name"] == "style.pt"
    assert prompt["vae"]["inputs"]["vae_name"] == "taesd"
    assert prompt["upscaler"]["inputs"]["model_name"] == "4x.pth"
    for name in ("sd_model_checkpoint", "hr_checkpoint_name", "hr_upscaler"):
        with pytest.raises(ParametersInvalid, match=rf"{name}.*there are: "):
            declared.compile(Flavour.DIFFUSION, {**body, name: "other"})


def test_a_request_for_the_meaning_of_the_webui_is_refused_by_name(
    compiler: ComfyUICompiler,
) -> None:
    with pytest.raises(ParametersInvalid, match="compatibility"):
        compiler.compile(Flavour.DIFFUSION, {**SMALL, "compatibility": "webui"})


EDITOR_FILE = {
    "nodes": [
        {"id": 1, "type": "NodeOfAPack", "widgets_values": [7, "randomize", "big"]},
        {"id": 2, "type": "SaveVideo", "inputs": [{"name": "video", "link": 5}]},
    ],
    "links": [[5, 1, 0, 2, 0, "VIDEO"]],
}


def test_a_file_of_the_editor_is_read_with_the_nodes_of_the_server(tmp_path: Path) -> None:
    sizes = ["small", "big"]
    info = {
        "NodeOfAPack": {"input": {"required": {"seed": ["INT", {}], "size": [sizes]}}},
        "SaveVideo": {"input": {"required": {"video": ["VIDEO"]}}, "output_node": True},
    }
    compiler = ComfyUICompiler(
        Endpoint("comfy", engine="comfyui", comfyui_url="http://host"),
        Catalogue(ModelsFolder(tmp_path)),
        GraphSettings(),
        object_info=ObjectInfo(json.dumps(info).encode()),
        default_checkpoint=None,
    )
    prompt = compiler.compile(Flavour.WORKFLOW, EDITOR_FILE).recorded_request["prompt"]
    assert prompt["1"]["inputs"] == {"seed": 7, "size": "big"}
    assert prompt["2"]["inputs"] == {"video": ["1", 0]}


def test_without_the_nodes_of_the_server_a_file_of_the_editor_is_not_read(
    compiler: ComfyUICompiler,
) -> None:
    with pytest.raises(GraphInvalid, match="the nodes of the server are not known yet"):
        compiler.compile(Flavour.WORKFLOW, EDITOR_FILE)
