from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.graph import names
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import NodeType, gather_nodes, node
from engine.nodes import NODE_TYPES
from engine.nodes.sides import CROP
from tests.support.engine.workflows import TINY


def test_object_info_has_comfyuis_shape(catalogue: Catalogue) -> None:
    info = catalogue.object_info()
    json.dumps(info, allow_nan=False)
    assert info.keys() == {each.class_type for each in NODE_TYPES}
    sampler = info["KSampler"]
    assert sampler["input"]["required"]["steps"][0] == "INT"
    assert sampler["input"]["required"]["steps"][1]["max"] == 10_000
    assert sampler["input"]["required"]["sampler_name"][0] == [row.name for row in names.SAMPLERS]
    assert sampler["input"]["required"]["scheduler"][0][0] == "simple"
    assert sampler["input"]["required"]["model"][0] == "MODEL"
    assert sampler["input_order"]["required"][0] == "model"
    assert sampler["output"] == ["LATENT"]
    assert sampler["description"]
    assert info["SaveImage"]["output_node"] is True
    loader = info["CheckpointLoaderSimple"]
    assert loader["input"]["required"]["ckpt_name"][0] == [TINY]
    assert loader["output_name"] == ["MODEL", "CLIP", "VAE"]
    assert info["LoadImage"]["input"]["required"]["image"][0] == []
    assert info["ETN_LoadImageBase64"]["input"]["required"]["image"][0] == "STRING"
    custom = info["SamplerCustom"]
    assert custom["output_name"] == ["output", "denoised_output"]
    assert custom["input"]["required"]["add_noise"][0] == "BOOLEAN"
    assert custom["input"]["required"]["add_noise"][1]["default"] is True


def test_object_info_declares_a_dynamic_choice_as_comfyui_does(catalogue: Catalogue) -> None:
    info = catalogue.object_info()["ResizeImageMaskNode"]
    assert list(info["input"]["required"]) == ["input", "resize_type", "scale_method"]
    kind, options = info["input"]["required"]["resize_type"]
    assert kind == "COMFY_DYNAMICCOMBO_V3"
    parts = {each["key"]: each["inputs"]["required"] for each in options["options"]}
    assert list(parts) == [
        "scale dimensions",
        "scale by multiplier",
        "scale longer dimension",
        "scale shorter dimension",
        "scale width",
        "scale height",
        "scale total pixels",
        "match size",
        "scale to multiple",
    ]
    assert list(parts["scale dimensions"]) == ["width", "height", "crop"]
    assert parts["scale dimensions"]["crop"] == [
        ["disabled", "center"],
        {"default": "center", "tooltip": CROP.tooltip},
    ]
    assert parts["match size"]["match"] == ["IMAGE,MASK", {}]
    assert parts["scale to multiple"]["multiple"][1]["default"] == 8
    assert parts["scale total pixels"]["multiple"][1]["default"] == 1
    assert info["input"]["required"]["scale_method"][1]["default"] == "area"
    assert (info["output"], info["output_name"]) == (["IMAGE,MASK"], ["resized"])


@pytest.mark.parametrize(
    ("class_type", "kind", "name"),
    [
        ("SaveImage", "IMAGE", "images"),
        ("PreviewImage", "IMAGE", "images"),
        ("SaveImageAdvanced", "IMAGE", "images"),
        ("MaskPreview", "MASK", "mask"),
    ],
)
def test_object_info_has_what_an_output_node_passes_on(
    class_type: str, kind: str, name: str, catalogue: Catalogue
) -> None:
    info = catalogue.object_info()[class_type]
    assert (info["output"], info["output_name"]) == ([kind], [name])
    assert info["output_node"] is True


def test_everything_but_diffusion_loads_without_torch() -> None:
    code = (
        "import sys, engine.engine, engine.executor, engine.graph.catalogue, engine.webui.compiler;"
        "import engine.graph.validation, engine.webui.parameters; print('torch' in sys.modules)"
    )
    root = Path(__file__).parents[4]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=root, check=True, capture_output=True, timeout=60
    )
    assert run.stdout.strip() == b"False"


def declared(class_type: str) -> NodeType:
    return node(class_type, inputs={})(lambda context: ())


def module_of(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(content)
    return module


def test_a_modules_nodes_are_those_that_it_declares_and_imported_ones_count_once() -> None:
    first, second, third = declared("First"), declared("Second"), declared("Third")
    one = module_of("one", constant=3, second=second, first=first, node=node)
    other = module_of("other", imported=first, third=third)
    assert gather_nodes(one, other) == (second, first, third)


def test_a_name_that_is_declared_twice_is_an_error() -> None:
    one, other = module_of("one", a=declared("Same")), module_of("other", b=declared("Same"))
    with pytest.raises(ValueError, match="other: Same is declared twice"):
        gather_nodes(one, other)
