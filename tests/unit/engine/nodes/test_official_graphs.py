"""ComfyUI's own graphs are valid here, but for those that are listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.comfyui.official import examples, template, with_models
from tests.support.engine.graphs import catalogue_of, cost_of, refusal_of
from tests.support.engine.workflows import node, with_input

LACKING = {
    "3d/stable_zero123_example": "ImageOnlyCheckpointLoader",
    "edit_models/sdxl_edit_model": "InstructPixToPixConditioning",
    "gligen/gligen_textbox_example": "GLIGENLoader",
}
"""Those that are not valid, and a node that each of them lacks."""
TEMPLATES = (
    "image_sdxl_simple",
    "sdxl_simple_example",
    "sdxl_refiner_prompt_example",
    "sdxlturbo_example",
)


@pytest.mark.parametrize("name", sorted(examples().keys() - LACKING.keys()))
def test_the_graphs_of_example_pictures_are_valid(name: str, tmp_path: Path) -> None:
    graph = examples()[name]
    assert cost_of(graph, with_models(graph, tmp_path)).work > 0


@pytest.mark.parametrize("name", LACKING)
def test_the_others_lack_a_node(name: str, tmp_path: Path) -> None:
    graph = examples()[name]
    assert LACKING[name] in str(refusal_of(graph, with_models(graph, tmp_path)))


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_valid(name: str, tmp_path: Path) -> None:
    graph = template(name, Catalogue(ModelsFolder(tmp_path)))
    assert cost_of(graph, with_models(graph, tmp_path)).work > 0


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
    return catalogue_of(tmp_path, *_FILES)


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
def test_they_are_valid_and_cost_as_transformers(
    graph: dict[str, Any], published: Catalogue
) -> None:
    cost = cost_of(graph, published)
    assert cost.work > 12 * graph["k"]["inputs"]["steps"]
    assert cost.rows == 1


def test_they_are_held_to_the_limits_of_other_graphs(published: Catalogue) -> None:
    graph = with_input(z_image_turbo(), "k", steps=100)
    assert "megapixel-steps" in str(refusal_of(graph, published, max_cost=1000))
    assert refusal_of(with_input(z_image_turbo(), "l", batch_size=4096), published)
