"""Nodes that make latents of others, on plain tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from engine.diffusion.images.latents import Latent
from engine.errors import EngineError, TooLarge
from engine.graph.limits import Limits
from tests.support.engine.bodies import output_of, outputs_of

SMALL = Limits(max_pixels=64 * 64, max_batch=2)


def latent(
    count: int = 1, height: int = 8, width: int = 8, *, seed: int = 2, **rest: Any
) -> Latent:
    generator = torch.Generator().manual_seed(seed)
    return Latent(torch.randn(count, 4, height, width, generator=generator), **rest)


def masks(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)[:, None, None].expand(-1, 6, 6)


def upscaled(samples: Latent, width: int, height: int, **options: Any) -> Latent:
    inputs: dict[str, Any] = {"upscale_method": "bilinear", "crop": "disabled"} | options
    found: Latent = output_of(
        "LatentUpscale", samples=samples, width=width, height=height, **inputs
    )
    return found


@pytest.mark.parametrize(
    ("asked", "cells"),
    [
        ((96, 128), (12, 16)),
        ((0, 0), (8, 16)),
        ((96, 0), (12, 24)),
        ((0, 96), (8, 12)),  # 48 pixels wide would be less than 64
        ((8, 100), (8, 12)),
        ((8, 0), (8, 16)),
    ],
)
@pytest.mark.parametrize("method", ["nearest-exact", "bilinear", "area", "bicubic", "bislerp"])
def test_sizes_are_at_least_64_pixels(
    asked: tuple[int, int], cells: tuple[int, int], method: str
) -> None:
    mask = masks(1)
    found = upscaled(latent(2, 16, 8, noise_mask=mask), *asked, upscale_method=method)
    assert found.samples.shape == (2, 4, cells[1], cells[0])
    assert found.samples.isfinite().all()
    assert found.noise_mask is mask


@pytest.mark.parametrize("method", ["nearest-exact", "bilinear", "bicubic"])
def test_upscaling_is_plain_interpolation(method: str) -> None:
    given = latent(1, 8, 8)
    expected = functional.interpolate(given.samples, size=(16, 12), mode=method)
    assert torch.equal(upscaled(given, 96, 128, upscale_method=method).samples, expected)


@pytest.mark.parametrize(
    "method",
    [
        *("bilinear", "bilinear antialiased", "bicubic", "bicubic antialiased"),
        *("nearest", "nearest-exact"),
    ],
)
def test_the_webuis_methods_are_torchs(method: str) -> None:
    given, (mode, *antialias) = latent(1, 8, 8), method.split()
    inputs = {"upscale_method": method, "crop": "disabled"}
    (found,) = outputs_of("WebUILatentUpscale", samples=given, width=72, height=104, **inputs)
    expected = functional.interpolate(given.samples, (13, 9), mode=mode, antialias=bool(antialias))
    assert torch.equal(found.samples, expected)


def test_a_crop_takes_the_middle_of_the_latent() -> None:
    given = latent(1, 8, 16)
    found = upscaled(given, 64, 64, upscale_method="nearest-exact", crop="center")
    assert torch.equal(found.samples, given.samples[..., 4:12])


def test_bislerp_keeps_lengths_where_bilinear_shortens() -> None:
    samples = torch.zeros(1, 4, 1, 2)
    samples[0, 0, 0, 0] = samples[0, 1, 0, 1] = 2.0
    inputs = {"upscale_method": "bislerp", "scale_by": 2.0}
    (found,) = outputs_of("LatentUpscaleBy", samples=Latent(samples), **inputs)
    lengths = found.samples.norm(dim=1)
    assert torch.allclose(lengths, torch.full_like(lengths, 2.0))
    quarter = torch.tensor(torch.pi / 8)
    assert found.samples[0, :2, 0, 1].tolist() == pytest.approx(
        [2 * float(quarter.cos()), 2 * float(quarter.sin())]
    )


def test_bislerp_of_equal_opposite_and_absent_directions() -> None:
    samples = torch.zeros(1, 4, 1, 6)
    samples[0, 0, 0] = torch.tensor([1.0, 3.0, -3.0, 0.0, 0.0, 2.0])
    inputs = {"upscale_method": "bislerp", "scale_by": 2.0}
    (found,) = outputs_of("LatentUpscaleBy", samples=Latent(samples), **inputs)
    assert found.samples.isfinite().all()
    assert float(found.samples[0, 0, 0, 1]) == 1.0
    assert float(found.samples[0, 0, 0, 3]) == pytest.approx(3 * 0.75 - 3 * 0.25)


@pytest.mark.parametrize(("factor", "cells"), [(1.5, (12, 8)), (0.5, (4, 2)), (0.01, (1, 1))])
def test_a_factor_is_rounded_to_whole_cells(factor: float, cells: tuple[int, int]) -> None:
    inputs = {"upscale_method": "area", "scale_by": factor}
    (found,) = outputs_of("LatentUpscaleBy", samples=latent(1, 8, 5), **inputs)
    assert found.samples.shape[-2:] == cells


def pasted(to: Latent, above: Latent, *, x: int = 0, y: int = 0, feather: int = 0) -> torch.Tensor:
    inputs = {"samples_to": to, "samples_from": above, "x": x, "y": y, "feather": feather}
    samples: torch.Tensor = output_of("LatentComposite", **inputs).samples
    return samples


@pytest.mark.parametrize(
    ("at", "window"),
    [
        ((0, 0), (slice(0, 4), slice(0, 4))),
        ((16, 8), (slice(1, 5), slice(2, 6))),
        ((48, 40), (slice(5, 8), slice(6, 8))),
        ((64, 0), (slice(0, 4), slice(8, 8))),
    ],
)
def test_a_latent_is_pasted_as_far_as_it_lies_over_the_other(
    at: tuple[int, int], window: tuple[slice, slice]
) -> None:
    to, above = latent(2, 8, 8), Latent(torch.full((1, 4, 4, 4), 9.0))
    expected = to.samples.clone()
    expected[..., window[0], window[1]] = 9.0
    assert torch.equal(pasted(to, above, x=at[0], y=at[1]), expected)


def test_inner_edges_are_softened_and_outer_ones_are_not() -> None:
    to, above = Latent(torch.zeros(1, 4, 8, 8)), Latent(torch.ones(1, 4, 6, 4))
    found = pasted(to, above, x=0, y=16, feather=16)[0, 0]
    assert found[:, 0].tolist() == [0, 0, 0.5, 1, 1, 1, 1, 1]
    assert found[5].tolist() == [1, 1, 1, 0.5, 0, 0, 0, 0]
    assert float(found[2, 3]) == 0.25


def test_unlike_batches_cannot_be_pasted() -> None:
    with pytest.raises(EngineError, match="batch of 3 latents"):
        pasted(latent(2), latent(3))


@pytest.mark.parametrize(
    ("mask", "index", "expected_mask", "expected_index"),
    [
        (None, None, None, None),
        (masks(1), (4, 6), [0], (4, 6, 7, 9, 10, 12)),
        (masks(2), (0, 1), [0, 1, 0, 1, 0, 1], (0, 1, 2, 3, 4, 5)),
        (masks(3), None, [0, 1, 2, 0, 1, 2, 0, 1, 2], None),
    ],
)
def test_a_repeated_batch_takes_fresh_noise(
    mask: Any, index: Any, expected_mask: Any, expected_index: Any
) -> None:
    given = latent(2, noise_mask=mask, batch_index=index)
    (found,) = outputs_of("RepeatLatentBatch", samples=given, amount=3)
    assert torch.equal(found.samples, torch.cat([given.samples] * 3))
    shown = None if found.noise_mask is None else found.noise_mask[:, 0, 0].tolist()
    assert (shown, found.batch_index) == (expected_mask, expected_index)


@pytest.mark.parametrize(
    ("asked", "kept"), [((1, 2), [1, 2]), ((3, 64), [3]), ((9, 1), [3]), ((0, 9), [0, 1, 2, 3])]
)
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_what_is_taken_of_a_batch_keeps_its_mask_and_noise(
    asked: tuple[int, int], kept: list[int], count: int
) -> None:
    given = latent(4, noise_mask=masks(count) if count else None)
    inputs = {"samples": given, "batch_index": asked[0], "length": asked[1]}
    (found,) = outputs_of("LatentFromBatch", **inputs)
    assert torch.equal(found.samples, given.samples[kept])
    assert found.batch_index == tuple(kept)
    if count > 1:
        assert found.noise_mask[:, 0, 0].tolist() == [each % count for each in kept]
    else:
        assert found.noise_mask is given.noise_mask
    (again,) = outputs_of("LatentFromBatch", samples=found, batch_index=len(kept), length=1)
    assert again.batch_index == (kept[-1],)


def test_a_noise_mask_is_set_and_the_rest_kept() -> None:
    given = latent(2, batch_index=(3, 4))
    (found,) = outputs_of("SetLatentNoiseMask", samples=given, mask=torch.ones(64, 48))
    assert found.noise_mask.shape == (1, 64, 48)
    assert (found.samples, found.batch_index) == (given.samples, (3, 4))
    assert given.noise_mask is None


LARGER = {"samples": latent(), "width": 64, "height": 72, "crop": "center"}


@pytest.mark.parametrize(
    ("class_type", "inputs"),
    [
        ("LatentUpscale", {**LARGER, "upscale_method": "area"}),
        ("WebUILatentUpscale", {**LARGER, "upscale_method": "nearest"}),
        ("LatentUpscaleBy", {"samples": latent(), "scale_by": 1.2, "upscale_method": "bilinear"}),
        ("RepeatLatentBatch", {"samples": latent(), "amount": 3}),
        ("EmptyLatentImage", {"width": 64, "height": 64, "batch_size": 2}),
        ("LatentBatch", {"samples1": latent(2), "samples2": latent()}),
    ],
)
def test_latents_that_become_too_large_are_refused(class_type: str, inputs: dict[str, Any]) -> None:
    with pytest.raises(TooLarge, match="at most 2 images and 4096 pixels"):
        outputs_of(class_type, limits=SMALL, **inputs)


def test_the_webui_cuts_a_latent_to_its_middle() -> None:
    samples = torch.arange(2 * 4 * 6 * 8.0).view(2, 4, 6, 8)
    (found,) = outputs_of("WebUILatentCrop", samples=Latent(samples), width=32, height=64)
    assert torch.equal(found.samples, samples[:, :, :, 2:6])


def test_latents_are_added_and_subtracted() -> None:
    first, second = latent(2), latent(1, seed=3)
    added = output_of("LatentAdd", samples1=first, samples2=second)
    assert torch.equal(added.samples, first.samples + second.samples)
    again = output_of("LatentSubtract", samples1=added, samples2=second)
    assert torch.allclose(again.samples, first.samples, atol=1e-6)


@pytest.mark.parametrize(("ratio", "which"), [(1.0, 0), (0.0, 1)])
def test_an_end_of_the_interpolation_is_one_of_both(ratio: float, which: int) -> None:
    both = latent(), latent(seed=3)
    found = output_of("LatentInterpolate", samples1=both[0], samples2=both[1], ratio=ratio)
    assert torch.allclose(found.samples, both[which].samples, atol=1e-6)


def test_latents_of_nothing_interpolate_to_nothing() -> None:
    zero = Latent(torch.zeros(1, 4, 2, 2))
    found = output_of("LatentInterpolate", samples1=zero, samples2=zero, ratio=0.5)
    assert torch.equal(found.samples, zero.samples)


def test_a_joined_batch_keeps_its_noise() -> None:
    found = output_of("LatentBatch", samples1=latent(2), samples2=latent(1, height=2))
    assert found.samples.shape == (3, 4, 8, 8)
    assert found.batch_index == (0, 1, 0)


def test_a_crop_of_latents_keeps_at_least_the_last_cells() -> None:
    given = latent(height=16, width=20)
    found = output_of("LatentCrop", samples=given, width=64, height=64, x=40, y=16)
    assert torch.equal(found.samples, given.samples[..., 2:10, 5:13])
    outside = output_of("LatentCrop", samples=given, width=64, height=64, x=9000, y=9000)
    assert torch.equal(outside.samples, given.samples[..., 8:, 12:])


def test_a_composite_of_latents_counts_in_cells_and_keeps_the_mask() -> None:
    mask = torch.zeros(1, 8, 8)
    below, above = Latent(torch.zeros(1, 4, 8, 8), mask), latent(height=4, width=4)
    inputs = {"destination": below, "source": above, "x": 16, "y": 8, "resize_source": False}
    found = output_of("LatentCompositeMasked", **inputs)
    assert torch.equal(found.samples[..., 1:5, 2:6], above.samples)
    assert not found.samples[..., 0, :].any()
    assert found.noise_mask is mask


def test_a_blend_of_latents_is_their_mean() -> None:
    first, second = latent(), latent(seed=3)
    found = output_of("LatentBlend", samples1=first, samples2=second, blend_factor=0.25)
    assert torch.allclose(found.samples, first.samples * 0.25 + second.samples * 0.75)
    small = latent(height=2, width=3)
    found = output_of("LatentBlend", samples1=first, samples2=small, blend_factor=0.25)
    assert found.samples.shape == first.samples.shape
