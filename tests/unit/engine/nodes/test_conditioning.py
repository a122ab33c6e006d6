"""The nodes that change conditionings, with the tiny checkpoint.

One step of Euler's method without guidance gives the model's estimate, which shows exactly how much
each conditioning contributes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.executor import BODIES
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import NodeType
from tests.support.engine.latents import latents_of, psnr_db_of
from tests.support.engine.workflows import Prompt, node, text_to_image

A, B = ["6", 0], ["7", 0]
CIRCLE = node("CLIPTextEncode", text="a red circle", clip=["4", 1])
SQUARE = node("CLIPTextEncode", text="a blue square", clip=["4", 1])
MASK = torch.zeros(1, 8, 16)
MASK[..., 8:] = 1.0
GIVE_MASK = NodeType("GiveMask", lambda _: (MASK,), {}, outputs=("MASK",))


def guided_by(link: list[Any], steps: int = 1, cfg: float = 1.0, **nodes: Any) -> Prompt:
    """Text A is node 6, text B is node 7; the image is 128 x 64 pixels."""
    sampler = {"positive": link, "negative": B, "cfg": cfg, "steps": steps}
    latent = node("EmptyLatentImage", width=128, height=64, batch_size=1)
    return text_to_image(**sampler) | {"5": latent, "6": CIRCLE, "7": SQUARE} | nodes


@pytest.fixture(scope="module")
def estimates(catalogue: Catalogue) -> Any:
    """Of each prompt, in one run with those of A and B alone, which come first."""
    with_mask = Catalogue(catalogue.models, (GIVE_MASK,))
    bodies = {**BODIES, "GiveMask": GIVE_MASK.body}

    def estimates(*prompts: Prompt) -> list[Any]:
        every = [guided_by(A), guided_by(B), *prompts]
        return latents_of(every, with_mask, bodies)

    return estimates


def same(one: Any, other: Any) -> bool:
    return psnr_db_of(one, other) > 90


def test_combined_conditionings_are_averaged_by_their_strength(estimates: Any) -> None:
    combined = node("ConditioningCombine", conditioning_1=A, conditioning_2=B)
    strong = {
        "s": node("ConditioningSetAreaStrength", conditioning=A, strength=3.0),
        "c": node("ConditioningCombine", conditioning_1=["s", 0], conditioning_2=B),
    }
    a, b, mean, weighted = estimates(guided_by(["c", 0], c=combined), guided_by(["c", 0], **strong))
    assert not same(a, b)
    assert same(mean, (a + b) / 2)
    assert same(weighted, (3 * a + b) / 4)


def test_a_text_written_behind_itself_says_no_more(estimates: Any) -> None:
    def concat(one: Any, other: Any) -> Prompt:
        joined = node("ConditioningConcat", conditioning_to=one, conditioning_from=other)
        return guided_by(["c", 0], c=joined)

    a, b, twice, both = estimates(concat(A, A), concat(A, B))
    assert same(twice, a)
    assert not same(both, a)
    assert not same(both, b)


def test_a_weight_changes_what_a_text_says(estimates: Any) -> None:
    weighted = node("CLIPTextEncode", text="a (red:1.4) circle", clip=["4", 1])
    a, _, found = estimates(guided_by(["w", 0], w=weighted))
    assert not same(found, a)


def test_a_mixture_lies_between_its_texts(estimates: Any) -> None:
    def average(share: float) -> Prompt:
        both = {"conditioning_to": A, "conditioning_from": B}
        mixed = node("ConditioningAverage", **both, conditioning_to_strength=share)
        return guided_by(["c", 0], c=mixed)

    a, b, first, second, half = estimates(average(1.0), average(0.0), average(0.5))
    assert same(first, a)
    assert same(second, b)
    assert np.abs(half - a).mean() < np.abs(b - a).mean()
    assert not same(half, (a + b) / 2)


def test_nothing_is_left_of_what_is_zeroed(estimates: Any) -> None:
    a, _, of_a, of_b = estimates(
        guided_by(["z", 0], z=node("ConditioningZeroOut", conditioning=A)),
        guided_by(["z", 0], z=node("ConditioningZeroOut", conditioning=B)),
    )
    assert same(of_a, of_b)
    assert not same(of_a, a)


def test_an_area_applies_where_it_is(estimates: Any) -> None:
    area = node("ConditioningSetArea", conditioning=B, width=64, height=64, x=64, y=0, strength=1.0)
    parts = {"width": 0.5, "height": 1.0, "x": 0.5, "y": 0.0, "strength": 1.0}
    share = node("ConditioningSetAreaPercentage", conditioning=B, **parts)
    combined = node("ConditioningCombine", conditioning_1=A, conditioning_2=["r", 0])
    a, _, by_pixels, by_share, alone = estimates(
        guided_by(["c", 0], c=combined, r=area),
        guided_by(["c", 0], c=combined, r=share),
        guided_by(["r", 0], r=area),
    )
    assert np.array_equal(by_pixels, by_share)
    assert same(by_pixels[..., :8], a[..., :8])
    assert not same(by_pixels[..., 8:], a[..., 8:])
    assert same(by_pixels[..., 10:], (a + alone)[..., 10:] / 2)
    assert np.abs(alone[..., :8]).max() < 1e-4


def test_guidance_compares_what_was_seen_through_one_window(estimates: Any) -> None:
    """Where both conditionings are the same, guidance changes nothing, however strong it is."""
    area = node("ConditioningSetArea", conditioning=B, width=64, height=64, x=64, y=0, strength=1.0)
    window = {
        "r": area,
        "c": node("ConditioningCombine", conditioning_1=["r", 0], conditioning_2=B),
    }
    _, _, weak, strong = estimates(
        guided_by(["c", 0], **window), guided_by(["c", 0], cfg=30.0, **window)
    )
    assert same(strong, weak)


def test_masks_share_the_image_out(estimates: Any) -> None:
    def masked(bounds: str, strength: float) -> Prompt:
        mask = {"mask": ["m", 0], "strength": strength, "set_cond_area": bounds}
        return guided_by(
            ["c", 0],
            m=node("GiveMask"),
            r=node("ConditioningSetMask", conditioning=B, **mask),
            c=node("ConditioningCombine", conditioning_1=A, conditioning_2=["r", 0]),
        )

    a, b, whole, strong, bounds = estimates(
        masked("default", 1.0), masked("default", 3.0), masked("mask bounds", 1.0)
    )
    right = MASK.numpy()[None]
    assert same(whole, a * (1 - right) + (a + b) / 2 * right)
    assert same(strong, a * (1 - right) + (a + 3 * b) / 4 * right)
    assert same(bounds[..., :8], a[..., :8])
    assert not same(bounds, whole)


def test_a_range_of_steps_is_where_a_text_applies(estimates: Any) -> None:
    def ranges(start: float) -> Prompt:
        early = node("ConditioningSetTimestepRange", conditioning=A, start=0.0, end=start)
        late = node("ConditioningSetTimestepRange", conditioning=B, start=start, end=1.0)
        both = node("ConditioningCombine", conditioning_1=["e", 0], conditioning_2=["l", 0])
        return guided_by(["c", 0], steps=4, e=early, l=late, c=both)

    _, _, a, b, all_a, half = estimates(
        guided_by(A, steps=4), guided_by(B, steps=4), ranges(1.0), ranges(0.5)
    )
    assert same(all_a, a)
    assert not same(half, a)
    assert not same(half, b)
