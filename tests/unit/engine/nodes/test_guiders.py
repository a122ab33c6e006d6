"""Samplers that a graph puts together, and decoding in tiles, on the tiny checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.graph.catalogue import Catalogue
from tests.support.engine.latents import latent_and_images, recorded
from tests.support.engine.workflows import node, text_to_image

SIGMAS = node("BasicScheduler", model=["4", 0], scheduler="karras", steps=3, denoise=1.0)


def custom(**inputs: Any) -> dict[str, Any]:
    given = {
        "model": ["4", 0],
        "add_noise": True,
        "noise_seed": 5,
        "cfg": 7.0,
        "positive": ["6", 0],
        "negative": ["7", 0],
        "sampler": ["k", 0],
        "sigmas": ["t", 0],
        "latent_image": ["5", 0],
    }
    return _with(node("SamplerCustom", **(given | inputs)))


def advanced(guider: dict[str, Any], noise: dict[str, Any]) -> dict[str, Any]:
    sampler = node(
        "SamplerCustomAdvanced",
        noise=["n", 0],
        guider=["g", 0],
        sampler=["k", 0],
        sigmas=["t", 0],
        latent_image=["5", 0],
    )
    return _with(sampler) | {"g": guider, "n": noise}


def _with(sampler: dict[str, Any]) -> dict[str, Any]:
    chosen = node("KSamplerSelect", sampler_name="dpmpp_2m_sde")
    return text_to_image() | {"3": sampler, "k": chosen, "t": SIGMAS}


CFG = node("CFGGuider", model=["4", 0], positive=["6", 0], negative=["7", 0], cfg=7.0)
BASIC = node("BasicGuider", model=["4", 0], conditioning=["6", 0])
RANDOM = node("RandomNoise", noise_seed=5)
NONE = node("DisableNoise")


@pytest.mark.parametrize(
    ("guider", "noise", "same"),
    [
        (CFG, RANDOM, {}),
        (BASIC, RANDOM, {"cfg": 1.0}),
        (CFG, NONE, {"add_noise": False, "noise_seed": 0}),
    ],
)
def test_it_is_the_sampler_that_has_all_inputs_itself(
    guider: dict[str, Any], noise: dict[str, Any], same: dict[str, Any], catalogue: Catalogue
) -> None:
    found, _ = latent_and_images(advanced(guider, noise), catalogue)
    expected, _ = latent_and_images(custom(**same), catalogue)
    assert np.array_equal(found, expected)


def test_a_text_alone_guides_a_sampler_that_asks_for_another(catalogue: Catalogue) -> None:
    prompt = advanced(BASIC, RANDOM)
    prompt["k"] = node("KSamplerSelect", sampler_name="euler_cfg_pp")
    found, _ = latent_and_images(prompt, catalogue)
    assert np.isfinite(found).all()


def tiled(tile_size: int) -> dict[str, Any]:
    prompt = text_to_image()
    prompt["5"]["inputs"] |= {"width": 128, "height": 96}
    whole = prompt["8"]["inputs"]
    prompt["8"] = node("VAEDecodeTiled", **whole, tile_size=tile_size, overlap=16)
    return prompt


def image_of(prompt: dict[str, Any], catalogue: Catalogue) -> Any:
    (image,) = recorded([prompt], catalogue)[0].images
    return image.astype(int)


def test_one_tile_is_the_whole(catalogue: Catalogue) -> None:
    prompt = text_to_image()
    prompt["5"]["inputs"] |= {"width": 128, "height": 96}
    found = image_of(tiled(512), catalogue)
    assert np.abs(found - image_of(prompt, catalogue)).max() <= 1


def test_tiles_give_an_image_of_the_same_size(catalogue: Catalogue) -> None:
    assert image_of(tiled(64), catalogue).shape == (96, 128, 3)
