"""Nodes that filter, cut, turn and join images and latents, on plain tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.images.latents import Latent
from engine.errors import EngineError, TooLarge
from engine.graph.limits import Limits
from tests.support.engine.bodies import outputs_of

SMALL = Limits(max_pixels=64 * 64, max_batch=2)


def images(count: int = 1, height: int = 12, width: int = 16) -> Tensor:
    return torch.rand(count, height, width, 3, generator=torch.Generator().manual_seed(1))


def latent(count: int = 1, height: int = 4, width: int = 6, seed: int = 2) -> Latent:
    generator = torch.Generator().manual_seed(seed)
    return Latent(torch.randn(count, 4, height, width, generator=generator))


def one(class_type: str, **inputs: Any) -> Any:
    (found,) = outputs_of(class_type, **inputs)
    return found


def test_a_blur_is_the_mean_by_a_gauss_function() -> None:
    given, radius, sigma = images(2), 3, 0.7
    across = torch.linspace(-1, 1, 2 * radius + 1)
    kernel = (-(across[:, None] ** 2 + across**2) / (2 * sigma**2)).exp()
    kernel = (kernel / kernel.sum()).expand(3, 1, -1, -1)
    framed = functional.pad(given.movedim(-1, 1), (radius,) * 4, mode="reflect")
    expected = functional.conv2d(framed, kernel, groups=3).movedim(1, -1)
    found = one("ImageBlur", image=given, blur_radius=radius, sigma=sigma)
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_blur_wider_than_the_image_is_an_error() -> None:
    with pytest.raises(EngineError, match="A radius of 12 is too large for 16 x 12 pixels"):
        one("ImageBlur", image=images(), blur_radius=12, sigma=1.0)


def test_sharpening_by_nothing_changes_nothing() -> None:
    given = images()
    found = one("ImageSharpen", image=given, sharpen_radius=31, sigma=1.0, alpha=0.0)
    assert torch.equal(found, given)


@pytest.mark.parametrize("dither", ["none", "floyd-steinberg"])
def test_quantized_images_have_few_colours(dither: str) -> None:
    found = one("ImageQuantize", image=images(2), colors=4, dither=dither)
    assert found.shape == (2, 12, 16, 3)
    assert all(len(each.reshape(-1, 3).unique(dim=0)) <= 4 for each in found)


def test_a_crop_that_would_lie_outside_keeps_a_pixel() -> None:
    given = images()
    found = one("ImageCrop", image=given, width=4, height=4, x=500, y=500)
    assert torch.equal(found, given[:, -1:, -1:])


def test_images_turn_clockwise() -> None:
    given = images()
    found = one("ImageRotate", image=given, rotation="90 degrees")
    assert torch.equal(found[0, 0, -1], given[0, 0, 0])
    assert torch.equal(one("ImageRotate", image=given, rotation="none"), given)


def test_images_of_a_batch_are_taken_as_far_as_there_are() -> None:
    given = images(3)
    found = one("ImageFromBatch", image=given, batch_index=2, length=9)
    assert torch.equal(found, given[2:])
    found = one("ImageFromBatch", image=given, batch_index=90, length=1)
    assert torch.equal(found, given[2:])


def test_the_size_is_said() -> None:
    assert outputs_of("GetImageSize", image=images(2)) == (16, 12, 2)


def test_sides_become_multiples() -> None:
    inputs = {"upscale_method": "area", "megapixels": 0.01, "resolution_steps": 8}
    found = one("ImageScaleToTotalPixels", image=images(), **inputs)
    assert found.shape == (1, 88, 120, 3)


def test_what_is_joined_or_repeated_stays_within_the_limits() -> None:
    with pytest.raises(TooLarge):
        outputs_of("RepeatImageBatch", limits=SMALL, image=images(), amount=3)
    with pytest.raises(TooLarge):
        outputs_of("LatentBatch", limits=SMALL, samples1=latent(2), samples2=latent())
    with pytest.raises(TooLarge):
        outputs_of("SolidMask", limits=SMALL, value=1.0, width=128, height=128)


def test_a_composite_leaves_what_it_is_given() -> None:
    below, above = images(2), images(1, 4, 4)
    before = below.clone()
    inputs = {"destination": below, "source": above, "x": 14, "y": 10, "resize_source": False}
    found = one("ImageCompositeMasked", **inputs)
    assert torch.equal(found[:, 10:, 14:], above[:, :2, :2].expand(2, -1, -1, -1))
    assert torch.equal(found[:, :10], before[:, :10])
    assert torch.equal(below, before)
    assert torch.equal(one("ImageCompositeMasked", **inputs | {"x": 999}), before)


def test_an_empty_mask_shows_nothing_of_the_source() -> None:
    below, above = images(), images(1, 4, 4)
    inputs = {"destination": below, "source": above, "x": 0, "y": 0, "resize_source": True}
    found = one("ImageCompositeMasked", **inputs, mask=torch.zeros(1, 8, 8))
    assert torch.equal(found, below)


def test_three_images_are_not_blended_with_two() -> None:
    inputs = {"image1": images(3), "image2": images(2), "blend_factor": 0.5}
    with pytest.raises(EngineError, match="3 images cannot be blended with 2"):
        one("ImageBlend", **inputs, blend_mode="normal")


@pytest.mark.parametrize("mode", ["normal", "multiply", "screen", "overlay", "soft_light"])
def test_a_blend_of_nothing_is_the_first(mode: str) -> None:
    given = images()
    inputs = {"image1": given, "image2": images(1, 5, 7), "blend_factor": 0.0}
    assert torch.allclose(one("ImageBlend", **inputs, blend_mode=mode), given)


def test_latents_are_added_and_subtracted() -> None:
    first, second = latent(2), latent(1, seed=3)
    added = one("LatentAdd", samples1=first, samples2=second)
    assert torch.equal(added.samples, first.samples + second.samples)
    again = one("LatentSubtract", samples1=added, samples2=second)
    assert torch.allclose(again.samples, first.samples, atol=1e-6)


@pytest.mark.parametrize(("ratio", "which"), [(1.0, 0), (0.0, 1)])
def test_an_end_of_the_interpolation_is_one_of_both(ratio: float, which: int) -> None:
    both = latent(), latent(seed=3)
    found = one("LatentInterpolate", samples1=both[0], samples2=both[1], ratio=ratio)
    assert torch.allclose(found.samples, both[which].samples, atol=1e-6)


def test_latents_of_nothing_interpolate_to_nothing() -> None:
    zero = Latent(torch.zeros(1, 4, 2, 2))
    found = one("LatentInterpolate", samples1=zero, samples2=zero, ratio=0.5)
    assert torch.equal(found.samples, zero.samples)


def test_a_joined_batch_keeps_its_noise() -> None:
    found = one("LatentBatch", samples1=latent(2), samples2=latent(1, height=2))
    assert found.samples.shape == (3, 4, 4, 6)
    assert found.batch_index == (0, 1, 0)


@pytest.mark.parametrize(("side", "count"), [(2, 4), (4, 16), (16, 256)])
def test_a_threshold_map_has_each_level_once_and_is_even(side: int, count: int) -> None:
    from engine.diffusion.images.filters import _bayer

    found = _bayer(side)
    assert found.shape == (side, side)
    assert len(found.unique()) == count
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-6)


def test_a_crop_of_latents_keeps_at_least_the_last_cells() -> None:
    given = latent(height=16, width=20)
    found = one("LatentCrop", samples=given, width=64, height=64, x=40, y=16)
    assert torch.equal(found.samples, given.samples[..., 2:10, 5:13])
    outside = one("LatentCrop", samples=given, width=64, height=64, x=9000, y=9000)
    assert torch.equal(outside.samples, given.samples[..., 8:, 12:])


def test_a_composite_of_latents_counts_in_cells_and_keeps_the_mask() -> None:
    mask = torch.zeros(1, 8, 8)
    below, above = Latent(torch.zeros(1, 4, 8, 8), mask), latent(height=4, width=4)
    inputs = {"destination": below, "source": above, "x": 16, "y": 8, "resize_source": False}
    found = one("LatentCompositeMasked", **inputs)
    assert torch.equal(found.samples[..., 1:5, 2:6], above.samples)
    assert not found.samples[..., 0, :].any()
    assert found.noise_mask is mask


def test_a_blend_of_latents_is_their_mean() -> None:
    first, second = latent(), latent(seed=3)
    found = one("LatentBlend", samples1=first, samples2=second, blend_factor=0.25)
    assert torch.allclose(found.samples, first.samples * 0.25 + second.samples * 0.75)
    small = latent(height=2, width=3)
    found = one("LatentBlend", samples1=first, samples2=small, blend_factor=0.25)
    assert found.samples.shape == first.samples.shape
