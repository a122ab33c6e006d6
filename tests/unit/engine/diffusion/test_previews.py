"""Previews: their pictures, and that making them costs the sampling nothing."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from engine.diffusion.previews import Previewer, RunPreviews, jpeg_of, show_estimate
from engine.families.family import Traits
from engine.families.table import FAMILIES, SD1, SDXL
from tests.support.polling import eventually


def fail() -> bytes:
    raise ValueError("no picture")


async def idle(previewer: Previewer) -> None:
    await eventually(lambda: not previewer.is_busy)


async def test_a_run_has_one_in_each_period() -> None:
    now, made = 10.0, list[bytes]()
    previewer = Previewer(2.0, now=lambda: now)
    previews = RunPreviews(previewer, made.append)
    for second in range(5):
        now = 10.0 + second
        if previews.wants():
            previews.show(lambda second=second: bytes([second]))
            await idle(previewer)
    assert made == [b"\0", b"\2", b"\4"]


async def test_what_comes_while_one_is_made_is_passed_over() -> None:
    made, go = list[bytes](), threading.Event()
    previewer = Previewer(0.0)
    one, other = (RunPreviews(previewer, made.append) for _ in range(2))
    one.show(lambda: b"slow" if go.wait(10) else b"")
    assert not one.wants()
    assert not other.wants()
    go.set()
    await idle(previewer)
    assert other.wants()
    assert made == [b"slow"]


async def test_one_that_fails_is_no_ones_end() -> None:
    made: list[bytes] = []
    previewer = Previewer(0.0)
    previews = RunPreviews(previewer, made.append)
    previews.show(fail)
    await idle(previewer)
    previews.show(lambda: b"next")
    await idle(previewer)
    assert made == [b"next"]


async def test_previews_are_made_after_a_thread_could_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[bytes] = []
    previewer = Previewer(0.0)
    previews = RunPreviews(previewer, made.append)

    def cannot_start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot_start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            previews.show(lambda: b"first")
    assert previews.wants()
    previews.show(lambda: b"second")
    await idle(previewer)
    assert made == [b"second"]


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
