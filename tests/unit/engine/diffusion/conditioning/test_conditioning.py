"""Conditions: how they are joined, where and when they apply, and how three of them guide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.diffusion.conditioning.condition import (
    Area,
    AreaPercentage,
    Condition,
    controlled,
    with_shared_controls,
)
from engine.diffusion.conditioning.control_net import Control
from engine.diffusion.conditioning.fitting import (
    FittedCondition,
    FittedConditioning,
    fitted_conditionings,
)
from engine.diffusion.conditioning.guidance import DualCfg, PerpNeg
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION as LEVELS
from engine.errors import EngineError


def test_texts_of_different_models_are_not_joined() -> None:
    one, other = Condition(torch.ones(1, 2, 8)), Condition(torch.ones(1, 2, 4))
    for join in (one.concatenated, lambda text: one.averaged(text, 0.5)):
        assert join(one).tokens.shape[-1] == 8
        with pytest.raises(
            EngineError, match="different models: one has the width 8, and the other 4"
        ):
            join(other)
    pooled = [Condition(torch.ones(1, 2, 8), torch.ones(1, width)) for width in (6, 3)]
    with pytest.raises(EngineError, match="one has the width 6, and the other 3"):
        pooled[0].averaged(pooled[1], 0.5)


LATENT = torch.zeros(2, 4, 32, 64)


def text(number: int, **where: Any) -> Condition:
    """A condition that its only token identifies."""
    return Condition(torch.full((1, 1, 1), float(number)), **where)


def number(fitted: FittedCondition) -> int:
    return int(fitted.condition.tokens)


def fitted(condition: Condition) -> FittedCondition:
    ((found,), _) = fitted_conditionings((condition,), (), LATENT, LEVELS)
    return found


def areas(guide: FittedConditioning) -> list[tuple[int, Area | None]]:
    return [(number(each), each.area) for each in guide]


def test_shared_controls_take_turns_and_leave_areas_and_own_ones_alone() -> None:
    hint = torch.zeros(1, 8, 8, 3)
    one, two, own = (
        Control(None, hint, 1.0, applies_to_uncond=each) for each in (True, True, False)
    )
    first, second, third = ((text(each),) for each in (1, 2, 3))
    area = (text(1, area=Area(1, 1, 0, 0)),)
    positive = controlled(first, one) + controlled(first, two) + controlled(area, one)
    shared = with_shared_controls(positive, area + second + third)
    assert [each.controls for each in shared] == [(), (one,), (two,)]
    taken = controlled(second, own)
    assert with_shared_controls(positive, taken) is taken
    assert with_shared_controls(positive, area) is area
    assert with_shared_controls(controlled(first, own), second)[0].controls == ()


def test_what_applies_everywhere_has_neither_area_nor_weight() -> None:
    found = fitted(text(1))
    assert (found.area, found.weight) == (None, None)
    assert found.window(LATENT) is LATENT
    assert found.applies_at(0.0)
    assert found.applies_at(1e9)


def test_an_area_falls_off_over_eight_cells_where_it_is_not_the_images_edge() -> None:
    found = fitted(text(1, area=Area(32, 40, 0, 0), strength=2.0))
    assert found.weight is not None
    assert found.weight.shape == (1, 1, 32, 40)
    line = found.weight[0, 0, 16]
    assert torch.allclose(line[:32], torch.tensor(2.0))
    assert torch.allclose(line[32:], 2 * torch.arange(8, 0, -1) / 8)
    assert torch.equal(found.weight[0, 0, 0], line)
    both = fitted(text(1, area=Area(8, 20, 4, 4))).weight
    assert both is not None
    assert torch.allclose(both[0, 0, 4, :6], torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0, 1.0]))
    assert torch.allclose(both[0, 0, :3, 10], torch.tensor([0.5, 1.0, 1.0]))


def test_an_area_ends_with_the_image() -> None:
    assert fitted(text(1, area=Area(100, 100, 8, 60))).area == Area(24, 4, 8, 60)
    for outside in (Area(8, 8, 32, 0), Area(8, 8, 0, 64)):
        with pytest.raises(ValueError, match="outside"):
            fitted(text(1, area=outside))


def test_percentages_of_the_image_are_rounded_to_cells() -> None:
    assert fitted(text(1, area=AreaPercentage(0.5, 0.26, 0.0, 0.5))).area == Area(16, 17, 0, 32)
    assert fitted(text(1, area=AreaPercentage(0.0, 0.0, 0.0, 0.0))).area == Area(1, 1, 0, 0)


def test_a_mask_is_a_weight_on_all_of_the_image_or_on_its_bounds() -> None:
    mask = torch.zeros(1, 32, 64)
    mask[:, 10:20, 40:64] = 0.5
    whole = fitted(text(1).with_mask(mask, 2.0, set_area_to_bounds=False))
    assert whole.area is None
    assert whole.weight is not None
    assert torch.equal(whole.weight, mask[:, None].repeat(2, 1, 1, 1) * 2)
    bounds = fitted(text(1).with_mask(mask, 2.0, set_area_to_bounds=True))
    assert bounds.area == Area(10, 24, 10, 40)
    assert bounds.weight is not None
    assert torch.equal(bounds.weight, torch.ones(2, 1, 10, 24))
    empty = fitted(text(1).with_mask(mask * 0, 1.0, set_area_to_bounds=True))
    assert empty.area == Area(8, 8, 0, 0)


def test_a_masks_bounds_give_way_to_an_area_set_after_them() -> None:
    condition = text(1).with_mask(torch.ones(1, 8, 8), 1.0, set_area_to_bounds=True)
    assert fitted(condition.with_area(Area(16, 16, 0, 0), 1.0)).area == Area(16, 16, 0, 0)


def test_cond_and_uncond_have_conditions_for_each_others_areas() -> None:
    left, top = Area(32, 32, 0, 0), Area(16, 32, 0, 0)
    cond, uncond = fitted_conditionings(
        (text(1), text(2, area=left, strength=3.0), text(3, area=top)),
        (text(8), text(9, area=left)),
        LATENT,
        LEVELS,
    )
    assert areas(cond) == [(1, None), (2, left), (3, top)]
    # `left` is there on both sides; of what covers `top`, `left` is the closest.
    assert areas(uncond) == [(8, None), (9, left), (9, top)]
    cond, uncond = fitted_conditionings(
        (text(1),), (text(8, area=top, strength=2.0),), LATENT, LEVELS
    )
    assert areas(cond) == [(1, None), (1, top)]
    assert areas(uncond) == [(8, top)]
    assert cond[1].weight is not None
    assert float(cond[1].weight.max()) == 2.0


def test_a_percent_range_is_a_range_of_sigmas() -> None:
    early = fitted(text(1).with_percent_range(0.0, 0.25))
    late = fitted(text(1).with_percent_range(0.25, 1.0))
    border = LEVELS.percent_to_sigma(0.25)
    assert early.sigma_range == (float("inf"), border)
    assert late.sigma_range == (border, 0.0)
    assert early.applies_at(14.6)
    assert not late.applies_at(14.6)
    assert late.applies_at(0.1)


def test_joining_texts() -> None:
    one = Condition(torch.ones(1, 3, 2), pooled=torch.ones(1, 2))
    other = Condition(torch.full((1, 2, 2), 5.0), pooled=torch.full((1, 2), 5.0))
    assert one.concatenated(other).tokens[0, :, 0].tolist() == [1, 1, 1, 5, 5]
    mixed = one.averaged(other, 0.75)
    assert mixed.tokens[0, :, 0].tolist() == [2, 2, 0.75]
    assert other.averaged(one, 0.75).tokens[0, :, 0].tolist() == [4, 4]
    assert mixed.pooled is not None
    assert mixed.pooled.tolist() == [[2, 2]]
    without = replace(one, pooled=None).averaged(other, 0.75).pooled
    assert without is not None
    assert without.tolist() == [[5, 5]]
    zeroed = one.zeroed_out()
    assert not zeroed.tokens.any()
    assert zeroed.pooled is not None
    assert not zeroed.pooled.any()


CFG = 7.0


def x0(seed: int) -> Tensor:
    return torch.randn((2, 4, 3, 3), generator=torch.Generator().manual_seed(seed))


def test_guidance_by_two_equal_texts_is_by_one() -> None:
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
