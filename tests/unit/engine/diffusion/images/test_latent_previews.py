"""Previews of latents: small JPEGs whose colours are roughly those of the picture."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from engine.diffusion.images.latent_previews import jpeg_of, show_estimate
from engine.diffusion.previews import Previewer, RunPreviews
from engine.families.family import Traits
from engine.families.sdxl import SDXL
from engine.families.stable_diffusion import SD1
from engine.families.table import FAMILIES


def jpeg(latent: NDArray[np.float32], family: Traits) -> bytes:
    assert family.preview is not None
    return jpeg_of(latent, family.preview)


@pytest.mark.parametrize(
    "family", [each for each in FAMILIES if each.preview], ids=lambda each: each.family
)
def test_a_map_takes_the_latents_of_its_family(family: Traits) -> None:
    latent = np.zeros((family.latent_channels, 24, 32), np.float32)
    image = Image.open(io.BytesIO(jpeg(latent, family)))
    assert (image.format, image.size) == ("JPEG", (32, 24))
    red, green, blue = np.asarray(image)[12, 16]
    assert all(100 < int(channel) < 160 for channel in (red, green, blue))


@pytest.mark.parametrize(("channel", "brighter"), [(0, True), (3, False)])
def test_light_and_dark_are_as_in_the_picture(channel: int, brighter: bool) -> None:
    """The papers' figures: the first channel of SDXL is its luminance."""
    latent = np.zeros((4, 8, 8), np.float32)
    latent[channel] = 1.0 if channel == 0 else 0.5
    for family in (SD1, SDXL):
        pixels = np.asarray(Image.open(io.BytesIO(jpeg(latent, family))))
        empty = np.asarray(Image.open(io.BytesIO(jpeg(np.zeros((4, 8, 8), np.float32), family))))
        assert bool(pixels.mean() > empty.mean()) is brighter


def test_a_preview_is_small_whatever_the_picture() -> None:
    noise = np.random.default_rng(7).normal(size=(4, 512, 300)).astype(np.float32)
    small = jpeg(noise, SDXL)
    assert Image.open(io.BytesIO(small)).size == (150, 256)
    assert len(small) < 48 * 1024


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_no_number_is_a_picture_all_the_same(value: float) -> None:
    assert jpeg(np.full((4, 8, 8), value, np.float32), SD1)


def test_the_sampler_may_go_on_in_place() -> None:
    made: list[bytes] = []
    done, go = threading.Event(), threading.Event()
    previewer = Previewer(0.0)
    previewer.order(lambda: b"first" if go.wait(10) else b"", made.append)
    while not previewer.is_busy:
        pass
    estimate = torch.zeros(1, 4, 8, 8)
    show_estimate(RunPreviews(previewer, made.append), SD1, {}, estimate)  # it is busy
    go.set()
    while previewer.is_busy:
        pass
    previews = RunPreviews(previewer, lambda each: (made.append(each), done.set())[0])
    show_estimate(previews, SD1, {}, estimate)
    estimate.fill_(100.0)
    assert done.wait(10)
    assert made == [b"first", jpeg(np.zeros((4, 8, 8), np.float32), SD1)]
