"""The nodes that denoise, with the tiny checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.catalogue import Catalogue
from engine.engine import Progress
from engine.graph import Limits, validate
from tests.unit.engine.latents import all_latents_and_images, psnr_db_of
from tests.unit.engine.workflows import node, text_to_image

Prompt = dict[str, Any]


def advanced(steps: int = 6, **inputs: Any) -> Prompt:
    """The usual workflow with KSamplerAdvanced in place of KSampler."""
    usual = text_to_image(steps=steps)
    given = dict(usual["3"]["inputs"])
    given["noise_seed"] = given.pop("seed")
    del given["denoise"]
    given |= {
        "add_noise": "enable",
        "start_at_step": 0,
        "end_at_step": 10_000,
        "return_with_leftover_noise": "disable",
    }
    return usual | {"3": node("KSamplerAdvanced", **(given | inputs))}


def in_two(at: int, **inputs: Any) -> Prompt:
    """Steps up to `at` in one node, the rest in another."""
    first = advanced(end_at_step=at, return_with_leftover_noise="enable", **inputs)
    second = advanced(start_at_step=at, add_noise="disable", **inputs)
    second["3"]["inputs"]["latent_image"] = ["3a", 0]
    return second | {"3a": first["3"]}


def latents(catalogue: Catalogue, *prompts: Prompt) -> list[Any]:
    return [latent for latent, _ in all_latents_and_images(prompts, catalogue)]


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpm_2", "uni_pc"])
def test_steps_shared_by_two_nodes_are_those_of_one(catalogue: Catalogue, sampler: str) -> None:
    whole, advanced_whole = latents(
        catalogue,
        text_to_image(steps=6, sampler_name=sampler),
        advanced(sampler_name=sampler),
    )
    assert np.array_equal(whole, advanced_whole)
    if sampler != "uni_pc":  # which learns from its past steps
        (split,) = latents(catalogue, in_two(3, sampler_name=sampler))
        assert psnr_db_of(split, whole) > 100


def test_leftover_noise_is_kept_or_taken_off(catalogue: Catalogue) -> None:
    kept, taken, shorter = latents(
        catalogue,
        advanced(end_at_step=3, return_with_leftover_noise="enable"),
        advanced(end_at_step=3),
        advanced(end_at_step=2, return_with_leftover_noise="enable"),
    )
    # The last step of `taken` goes on from where `shorter` stopped, past `kept`, to the estimate.
    step, whole = kept - shorter, taken - shorter
    share = float((step * whole).sum() / (whole * whole).sum())
    assert 0 < share < 1
    assert psnr_db_of(shorter + share * whole, kept) > 90


def test_nothing_is_done_where_no_step_is_left(catalogue: Catalogue) -> None:
    for inputs in (
        {"start_at_step": 6},
        {"end_at_step": 0},
        {"start_at_step": 4, "end_at_step": 2},
    ):
        (latent,) = latents(catalogue, advanced(**inputs))
        assert not latent.any(), inputs


def test_progress_counts_the_steps_that_each_node_takes(
    submit: Callable[..., Any], catalogue: Catalogue
) -> None:
    for prompt, total in (
        (in_two(2), 6),
        (advanced(start_at_step=1, end_at_step=3), 2),
        (advanced(start_at_step=7), 0),
    ):
        assert validate(prompt, catalogue, Limits()).total_steps == total
        watched = submit(prompt)
        watched.images()
        told = [event for event in watched.events if isinstance(event, Progress)]
        assert told == [Progress(done, total) for done in range(1, total + 1)]
