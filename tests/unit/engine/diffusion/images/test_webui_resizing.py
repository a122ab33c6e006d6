"""Pictures brought to a size as the WebUI does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from engine.diffusion.images.webui.inpainting import Region, region_of
from engine.diffusion.images.webui.resizing import levels_of, resized

NOISE = np.random.default_rng(1).random((1, 48, 80, 3), np.float32)


@pytest.mark.parametrize("size", [(64, 64), (33, 96), (160, 40), (80, 24), (17, 48)])
def test_what_is_cut_off_leaves_the_rest_as_it_is(size: tuple[int, int]) -> None:
    width, height = size
    [found] = levels_of(resized(torch.from_numpy(NOISE), width, height, mode="crop and resize"))
    [levels] = levels_of(torch.from_numpy(NOISE))
    scale = max(width / 80, height / 48)
    whole = (width, 48 * width // 80) if width / 80 == scale else (80 * height // 48, height)
    scaled = np.asarray(Image.fromarray(levels).resize(whole, Image.Resampling.LANCZOS))
    left, top = whole[0] // 2 - width // 2, whole[1] // 2 - height // 2
    assert np.array_equal(found, scaled[top : top + height, left : left + width])


@pytest.mark.parametrize("shape", [(1, 16_384, 3), (16_384, 1, 3)])
def test_a_long_thin_picture_is_never_made_as_large_as_its_sides(
    shape: tuple[int, int, int],
) -> None:
    """All of it would be 12 GiB."""
    ramp = torch.linspace(0, 1, 16_384).repeat_interleave(3).reshape(1, *shape)
    found = resized(ramp, 512, 512, mode="crop and resize")
    assert found.shape == (1, 512, 512, 3)
    assert torch.allclose(found, torch.tensor(0.5), atol=0.01)


def test_the_region_is_what_the_mask_covers_in_the_proportions_of_the_size() -> None:
    mask = torch.zeros(2, 40, 60)
    mask[0, 10:14, 20:28] = 0.5
    mask[1, 12:18, 24:26] = 1
    assert region_of(mask, 64, 64, padding=0) == Region(20, 10, 28, 18)
