"""The graphs of ComfyUI's templates for Z-Image and Flux.1, by the names that they have there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from tests.support.engine.workflows import node, with_input

_FILES = (
    "diffusion_models/z_image_turbo_bf16.safetensors",
    "unet/flux1-schnell.safetensors",
    "text_encoders/qwen_3_4b.safetensors",
    "clip/clip_l.safetensors",
    "text_encoders/t5xxl_fp16.safetensors",
    "vae/ae.safetensors",
)


@pytest.fixture
def published(tmp_path: Path) -> Catalogue:
    """A catalogue of files of those names, which validation does not read."""
    for name in _FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return Catalogue(ModelsFolder(tmp_path))


def _end(**sampler: Any) -> dict[str, Any]:
    usual = {"cfg": 1, "scheduler": "simple", "denoise": 1, "seed": 0, "latent_image": ["l", 0]}
    return {
        "vae": node("VAELoader", vae_name="ae.safetensors"),
        "l": node("EmptySD3LatentImage", width=1024, height=1024, batch_size=1),
        "zero": node("ConditioningZeroOut", conditioning=["text", 0]),
        "k": node("KSampler", positive=["text", 0], negative=["zero", 0], **usual, **sampler),
        "image": node("VAEDecode", samples=["k", 0], vae=["vae", 0]),
        "save": node("SaveImage", images=["image", 0], filename_prefix="x"),
    }


def z_image_turbo() -> dict[str, Any]:
    name = "z_image_turbo_bf16.safetensors"
    encoder = {"clip_name": "qwen_3_4b.safetensors", "type": "lumina2", "device": "default"}
    return {
        "unet": node("UNETLoader", unet_name=name, weight_dtype="default"),
        "clip": node("CLIPLoader", **encoder),
        "text": node("CLIPTextEncode", text="a harbor", clip=["clip", 0]),
        "shifted": node("ModelSamplingAuraFlow", model=["unet", 0], shift=3),
        **_end(model=["shifted", 0], steps=8, sampler_name="res_multistep"),
    }


def flux_schnell() -> dict[str, Any]:
    names = {"clip_name1": "clip_l.safetensors", "clip_name2": "t5xxl_fp16.safetensors"}
    texts = {"clip_l": "a car", "t5xxl": "a small car with flowers", "guidance": 3.5}
    return {
        "unet": node("UNETLoader", unet_name="flux1-schnell.safetensors", weight_dtype="default"),
        "clip": node("DualCLIPLoader", **names, type="flux", device="default"),
        "text": node("CLIPTextEncodeFlux", clip=["clip", 0], **texts),
        **_end(model=["unet", 0], steps=4, sampler_name="euler"),
    }


@pytest.mark.parametrize("graph", [z_image_turbo(), flux_schnell()], ids=["z_image", "flux"])
def test_they_are_valid_and_cost_what_transformers_cost(
    graph: dict[str, Any], published: Catalogue
) -> None:
    found = validate(graph, published, Limits())
    steps = graph["k"]["inputs"]["steps"]
    assert found.cost.work > 12 * steps
    assert found.cost.rows == 1


def test_they_are_held_to_the_limits_of_other_graphs(published: Catalogue) -> None:
    graph = with_input(z_image_turbo(), "k", steps=100)
    with pytest.raises(GraphInvalid, match="megapixel-steps"):
        validate(graph, published, Limits(max_cost=1000))
    with pytest.raises(GraphInvalid):
        validate(with_input(z_image_turbo(), "l", batch_size=4096), published, Limits())
