"""Variations of the noise at the start, in the WebUI's way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.diffusion.samplers.noise import UNVARIED, Variation, varied

SHAPE = (1, 4, 8, 12)
SEED, OTHER = 7, 8


def drawn(seed: int, *cells: int) -> Tensor:
    shape = (1, 4, *cells) if cells else SHAPE
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_noise_is_its_own_without_a_variation() -> None:
    noise = drawn(SEED)
    assert varied(noise, SEED, UNVARIED) is noise
    same_size = Variation(cells=SHAPE[2:])
    assert torch.equal(varied(noise, SEED, same_size), noise)


@pytest.mark.parametrize("strength", [0.05, 0.5, 0.9])
def test_a_variation_is_on_the_arc_between_two_noises(strength: float) -> None:
    found = varied(drawn(SEED), SEED, Variation(OTHER, strength)).double().numpy()
    a, b = drawn(SEED).double().numpy(), drawn(OTHER).double().numpy()
    for channel in range(4):
        for column in range(SHAPE[3]):
            start, end = a[0, channel, :, column], b[0, channel, :, column]
            cosine = start @ end / np.linalg.norm(start) / np.linalg.norm(end)
            angle = np.arccos(cosine)
            weights = np.sin(np.array([1 - strength, strength]) * angle) / np.sin(angle)
            expected = weights[0] * start + weights[1] * end
            assert found[0, channel, :, column] == pytest.approx(expected, abs=1e-4)


def test_a_variation_of_full_strength_is_the_other_noise() -> None:
    found = varied(drawn(SEED), SEED, Variation(OTHER, 1.0))
    assert torch.allclose(found, drawn(OTHER), atol=1e-5)
    of_itself = varied(drawn(SEED), SEED, Variation(SEED, 0.5))
    assert torch.allclose(of_itself, drawn(SEED), atol=1e-5)


def test_smaller_noise_is_put_into_the_middle() -> None:
    found = varied(drawn(SEED), SEED, Variation(cells=(4, 6)))
    assert torch.equal(found[..., 2:6, 3:9], drawn(SEED, 4, 6))
    assert torch.equal(found[..., :2, :], drawn(SEED)[..., :2, :])
    assert torch.equal(found[..., 6:, :], drawn(SEED)[..., 6:, :])


def test_of_larger_noise_the_middle_is_taken() -> None:
    found = varied(drawn(SEED), SEED, Variation(OTHER, 1.0, cells=(16, 6)))
    assert torch.allclose(found[..., 3:9], drawn(OTHER, 16, 6)[..., 4:12, :], atol=1e-5)
    odd = varied(drawn(SEED), SEED, Variation(cells=(9, 12)))
    assert torch.equal(odd[..., :7, :], drawn(SEED, 9, 12)[..., 1:8, :])
    assert torch.equal(odd[..., 7:, :], drawn(SEED)[..., 7:, :])


def test_noise_is_finite_for_any_size() -> None:
    for cells in ((1, 1), (512, 2), (2, 512)):
        found = varied(drawn(SEED), SEED, Variation(OTHER, 0.3, cells=cells))
        assert found.shape == SHAPE
        assert found.isfinite().all()
