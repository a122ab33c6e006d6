"""Guidance by three conditionings, against closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.diffusion.conditioning.guidance_rules import DualCfg, PerpNeg

CFG = 7.0


def x0(seed: int) -> Tensor:
    return torch.randn((2, 4, 3, 3), generator=torch.Generator().manual_seed(seed))


def test_two_equal_texts_are_one() -> None:
    plain = x0(2) + (x0(1) - x0(2)) * CFG
    assert torch.allclose(DualCfg(3.0).guided(x0(1), x0(2), x0(1), CFG), plain)
    assert torch.allclose(DualCfg(3.0, is_nested=True).guided(x0(1), x0(2), x0(1), CFG), plain)


def test_nested_guidance_scales_the_difference_of_the_texts_by_both() -> None:
    one = DualCfg(3.0).guided(x0(1), x0(2), x0(3), CFG)
    nested = DualCfg(3.0, is_nested=True).guided(x0(1), x0(2), x0(3), CFG)
    assert torch.allclose(nested - one, (x0(1) - x0(3)) * 3.0 * (CFG - 1), atol=1e-4)


def test_a_negative_along_the_text_takes_nothing_away() -> None:
    empty, cond = x0(1), x0(2)
    along = empty + (cond - empty) * 0.5
    found = PerpNeg(2.0).guided(cond, along, empty, CFG)
    assert torch.allclose(found, empty + (cond - empty) * CFG, atol=1e-4)


def test_what_is_perpendicular_is_taken_away_whole() -> None:
    empty = torch.zeros(1, 4, 1, 1)
    cond, negative = empty.clone(), empty.clone()
    cond[0, 0], negative[0, 1] = 1.0, 1.0
    found = PerpNeg(2.0).guided(cond, negative, empty, CFG)
    assert found.flatten().tolist() == pytest.approx([CFG, -2.0 * CFG, 0.0, 0.0])


def test_a_text_that_is_the_empty_one_gives_numbers() -> None:
    found = PerpNeg(1.0).guided(x0(1), x0(2), x0(1), CFG)
    assert found.isfinite().all()
