"""Philox against published numbers of its authors and of GPUs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.diffusion.samplers.philox import Philox, philox

ZERO, ONES = 0, 2**32 - 1
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((ZERO,) * 4, (ZERO,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_words_are_those_of_the_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    """The lines "philox4x32 10" of tests/kat_vectors in DEShawResearch/random123."""
    words = philox([np.array([word], np.uint64) for word in counter], key)
    assert [int(word[0]) for word in words] == list(expected)


def test_numbers_are_those_of_a_gpu() -> None:
    """torch.manual_seed(42), then torch.randn(2, 5, device="cuda").

    Published in the example of `Sample` in flashinfer/logits_processor/processors.py of
    flashinfer-ai/flashinfer.
    """
    published = [
        [0.1940, 2.1614, -0.1721, 0.8491, -1.9244],
        [0.6530, -0.6494, -0.8175, 0.5280, -1.2753],
    ]
    numbers = Philox(42).randn((2, 5))
    assert numbers.dtype == torch.float32
    assert torch.allclose(numbers, torch.tensor(published), rtol=0, atol=5.1e-5)


def test_later_draws_are_those_of_a_gpu() -> None:
    """torch.manual_seed(0), then draws of the shapes (8, 10), (10,) and (8, 10) on a GPU.

    Published as the tensors x, bias and y in the notebook about fused kernels of
    kapilsh/cuda-mode-lecture.
    """
    generator = Philox(0)
    x, bias, y = (generator.randn(shape) for shape in ((8, 10), (10,), (8, 10)))
    for numbers, published in (
        (x[0], [-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284, -1.0745]),
        (x[7], [0.6852, -0.4124, -0.6738, -0.5404, 0.6898, -1.5517, 0.3805, -0.0436, 0.3597]),
        (bias, [0.1808, -0.5523, 0.9238, -0.7350, 1.3800, 0.8676, 0.1297, -0.9406, 0.8109]),
        (y[0], [2.5441, -0.7163, -0.4934, 0.1267, 0.1014, -0.4035, 0.9023, 0.8099, -0.6884]),
        (y[7], [0.1552, -0.8782, -0.4734, 0.9690, -1.9985, 0.1030, 0.8580, 0.7625, -1.2587]),
    ):
        assert torch.allclose(numbers[:9], torch.tensor(published), rtol=0, atol=5.1e-5)


@pytest.mark.parametrize("seed", [2**32, 2**63, 2**64 - 1])
def test_a_seed_has_64_bits(seed: int) -> None:
    found = Philox(seed).randn((4, 8, 8))
    assert not torch.equal(found, Philox(seed % 2**32).randn((4, 8, 8)))


def test_a_number_depends_on_its_place_and_not_on_the_shape() -> None:
    large = Philox(7).randn((2, 4, 96, 96))
    assert torch.equal(large.flatten()[:100], Philox(7).randn((10, 10)).flatten())
    assert float(large.mean()) == pytest.approx(0, abs=0.02)
    assert float(large.std()) == pytest.approx(1, abs=0.02)
    assert len(large.unique()) > large.numel() * 0.99
