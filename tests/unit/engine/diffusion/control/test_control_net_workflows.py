"""Workflows in which a ControlNet guides the sampling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.latents import all_latents_and_images
from tests.support.engine.workflows import node, text_to_image

pytestmark = pytest.mark.usefixtures("inference")

Prompt = dict[str, Any]


@pytest.fixture(scope="module")
def controlled_catalogue(
    tiny_root: Path, networks: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory
) -> Catalogue:
    """A catalogue of the tiny checkpoint and the two networks, in the folders of diffusers."""
    root = tmp_path_factory.mktemp("controlled")
    (root / "checkpoints").symlink_to(tiny_root / "checkpoints")
    for name, network in zip(("one", "two"), networks, strict=True):
        network.save_pretrained(root / "controlnet" / name)
    return Catalogue(ModelsFolder(root))


def workflow(strength: float = 1.0, *, advanced: bool = True, **sampler: Any) -> Prompt:
    """A picture guided by another that the same workflow makes."""
    apply = {
        "control_net": ["20", 0],
        "image": ["22", 0],
        "strength": strength,
    }
    both = {"positive": ["6", 0], "negative": ["7", 0]}
    ends = {"start_percent": 0.1, "end_percent": 0.9}
    links = {"positive": ["23", 0], "negative": ["23", 1]} if advanced else {"positive": ["23", 0]}
    prompt = text_to_image(**links, **sampler)
    prompt |= {
        "20": node(
            "ControlNetLoader",
            control_net_name="one/diffusion_pytorch_model.safetensors",
        ),
        "21": {**prompt["3"], "inputs": {**prompt["3"]["inputs"], **both, "steps": 1}},
        "22": node("VAEDecode", samples=["21", 0], vae=["4", 2]),
        "23": node("ControlNetApplyAdvanced", **apply, **both, **ends)
        if advanced
        else node("ControlNetApply", **apply, conditioning=["6", 0]),
    }
    return prompt


def images_of(prompts: Sequence[Prompt], catalogue: Catalogue) -> list[Any]:
    return [images[0].astype(int) for _, images in all_latents_and_images(prompts, catalogue)]


@pytest.mark.parametrize("advanced", [True, False])
def test_a_workflow_is_guided_unless_its_strength_is_nothing(
    advanced: bool, controlled_catalogue: Catalogue
) -> None:
    prompts = [workflow(1.0, advanced=advanced), workflow(0.0, advanced=advanced), text_to_image()]
    guided, unguided, plain = images_of(prompts, controlled_catalogue)
    assert np.abs(unguided - plain).max() <= 1
    assert np.abs(guided - plain).max() > 20


def test_a_workflow_gives_the_same_alone_and_among_others(
    controlled_catalogue: Catalogue,
) -> None:
    prompts = [
        workflow(1.0),
        text_to_image(seed=2),
        workflow(0.5, seed=3, steps=6, cfg=3.0),
        workflow(0.8, advanced=False, seed=4, sampler_name="dpmpp_2m"),
    ]
    together = images_of(prompts, controlled_catalogue)
    for prompt, image in zip(prompts, together, strict=True):
        (alone,) = images_of([prompt], controlled_catalogue)
        assert np.abs(alone - image).max() <= 1


def test_the_advanced_node_takes_a_vae_that_it_does_not_need(
    controlled_catalogue: Catalogue,
) -> None:
    prompt = workflow()
    prompt["23"]["inputs"]["vae"] = ["4", 2]
    with_vae, without = images_of([prompt, workflow()], controlled_catalogue)
    assert np.abs(with_vae - without).max() <= 1
