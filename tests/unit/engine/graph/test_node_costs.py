"""What single nodes cost where it is more than the sizes of their inputs and outputs say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.cost import Cost
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.graph.work import LEAST_MEGAPIXELS
from tests.support.engine.workflows import TINY, node, text_to_image

Prompt = dict[str, Any]


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / TINY).touch()
    return Catalogue(ModelsFolder(tmp_path))


def cost_of(prompt: Prompt, catalogue: Catalogue) -> Cost:
    return validate(prompt, catalogue, Limits()).cost


def encoded(chars: int) -> Prompt:
    return node("CLIPTextEncode", text="x" * chars, clip=["4", 1])


def test_a_sampler_that_chooses_its_steps_costs_those_that_it_may_take(
    catalogue: Catalogue,
) -> None:
    one, many = (
        cost_of(text_to_image(steps=steps, sampler_name="dpm_adaptive"), catalogue).work
        for steps in (1, 64)
    )
    assert one == pytest.approx(many, abs=0.01)
    assert one > 64 * 3 * 2 * LEAST_MEGAPIXELS


def test_a_latent_costs_what_it_has_between_the_resizing_of_its_sides(
    catalogue: Catalogue,
) -> None:
    size = {"width": 4096, "height": 64, "crop": "disabled", "upscale_method": "bislerp"}
    cost = cost_of(
        text_to_image(latent_image=["flipped", 0], steps=1)
        | {
            "5": node("EmptyLatentImage", width=64, height=4096, batch_size=16),
            "flipped": node("LatentUpscale", samples=["5", 0], **size),
        },
        catalogue,
    )
    pixels = 16 * 4096 * 4096
    assert cost.work > pixels / 1e6
    assert cost.live_bytes > pixels / 4


@pytest.mark.parametrize(
    "changed",
    [
        node("ConditioningZeroOut", conditioning=["6", 0]),
        node("ConditioningConcat", conditioning_to=["6", 0], conditioning_from=["7", 0]),
        node(
            "ConditioningAverage",
            conditioning_to=["6", 0],
            conditioning_from=["7", 0],
            conditioning_to_strength=0.5,
        ),
        node(
            "ConditioningSetMask",
            conditioning=["7", 0],
            mask=["mask", 0],
            strength=1.0,
            set_cond_area="default",
        ),
    ],
    ids=lambda each: each["class_type"],
)
def test_a_copy_of_a_long_text_or_a_large_mask_is_work(
    changed: Prompt, catalogue: Catalogue
) -> None:
    nodes = {
        "6": encoded(30_000),
        "image": node("EmptyImage", width=4096, height=4096, batch_size=1, color=0),
        "mask": node("ImageToMask", image=["image", 0], channel="red"),
        "changed": changed,
    }
    sampler = {"steps": 1, "negative": ["6", 0]}
    plain = cost_of(text_to_image(**sampler) | nodes, catalogue).work
    work = cost_of(text_to_image(**sampler, positive=["changed", 0]) | nodes, catalogue).work
    assert work - plain > 2.0
