"""What packages of nodes may rely on, by name and signature, for one version of it.

A change of the golden file is a change of the promise: raise `API_VERSION`, and say so in
docs/own-nodes.md. DARKROOM_WRITE_GOLDEN=1 writes the file anew.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from engine import batcher, errors, reports
from engine.diffusion.conditioning import condition
from engine.diffusion.context import Context
from engine.diffusion.images import latents
from engine.diffusion.images.operations import ImageOperations
from engine.diffusion.loading.weights import read_tensors
from engine.diffusion.samplers.sigmas import Sigmas
from engine.diffusion.vision import attended, clip_vision
from engine.diffusion.vision.operations import VisionOperations
from engine.extensions import API_VERSION
from engine.graph import cost, declarations, work

ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "tests" / "golden" / "nodes_api.txt"
PAGE = (ROOT / "docs" / "own-nodes.md").read_text()
PROMISED = (
    *(getattr(declarations, name) for name in ("Int", "Float", "String", "Boolean", "Choice")),
    declarations.Link,
    declarations.InputFile,
    declarations.node,
    declarations.NodeType,
    cost.Estimate,
    cost.ImageShape,
    cost.MaskShape,
    cost.LatentShape,
    cost.ConditioningShape,
    cost.SigmasShape,
    batcher.Request,
    errors.EngineError,
    errors.TooLarge,
    reports.SavedLatent,
    latents.Latent,
    ImageOperations,
    condition.Condition,
    Sigmas,
    VisionOperations,
    attended.ImagePrompt,
    attended.KeysValues,
    attended.CrossAttention,
    clip_vision.ClipVisionOutput,
    cost.model_shape,
    cost.ModelShape.holding,
    read_tensors,
)
OF_THE_CONTEXT = (
    "decode",
    "device",
    "encode",
    "encode_images",
    "image_file",
    "images",
    "input_file",
    "latent_file",
    "latents",
    "load",
    "load_vae",
    "mask_file",
    "model",
    "model_names",
    "pixels",
    "sample",
    "saved",
    "sigmas",
    "upscale_model",
    "upscaled",
)


def lines() -> Iterator[str]:
    yield f"version {'.'.join(map(str, API_VERSION))}"
    for each in PROMISED:
        yield from described(each)
    for name in OF_THE_CONTEXT:
        yield f"Context.{name}{signature(vars(Context).get(name))}"
    yield f"work {' '.join(sorted(name for name in vars(work) if name.isupper()))}"
    yield f"batcher {batcher.Work.__name__}"
    yield f"latents {latents.Images.__name__} {latents.Mask.__name__}"
    yield f"condition {condition.Conditioning!r}"


def described(each: Any) -> Iterator[str]:
    yield f"{each.__qualname__}{'' if is_dataclass(each) else signature(each)}"
    if is_dataclass(each):
        for one in fields(each):
            yield f"    {one.name}: {one.type}"
    if inspect.isclass(each):
        for name, member in inspect.getmembers(each, inspect.isfunction):
            if not name.startswith("_"):
                yield f"    {name}{signature(member)}"


def signature(member: Any) -> str:
    return str(inspect.signature(member)) if inspect.isroutine(member) else ""


def test_what_nodes_may_rely_on_has_not_changed() -> None:
    found = "".join(f"{line}\n" for line in lines())
    if os.environ.get("DARKROOM_WRITE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_the_page_names_it_all() -> None:
    names = {each.__name__ for each in PROMISED} - {"NodeType", "holding"}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
    told = {*OF_THE_CONTEXT}
    assert {
        name for name in told if f"`{name}`" not in PAGE and f"context.{name}" not in PAGE
    } == set()


def test_the_page_names_the_version() -> None:
    version = ".".join(map(str, API_VERSION))
    assert f"The present version is **{version}**" in PAGE
    assert f'NODES_API = "{version}"' in PAGE
