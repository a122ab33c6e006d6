"""The sizes of what a UNet's layers get where it is shrunk, on a tiny UNet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.diffusion.families.stable_diffusion import SD1
from engine.diffusion.model import Model
from engine.diffusion.patches.deep_shrink import DeepShrink
from engine.diffusion.patches.variants import variant_of
from tests.support.engine.tiny_unet import answer_of, tiny_unet


@pytest.fixture(scope="module")
def unet() -> Any:
    return tiny_unet()


def shrunk(unet: Any, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "percent_range": (0.0, 1.0),
        "block": 3,
        "factor": 2.0,
        "after_skip": True,
        "down": "bicubic",
        "up": "bicubic",
    }
    settings = DeepShrink(**(given | changes))
    return variant_of(unet, settings, settings.patch)


def middle_size(unet: Any, x: Tensor) -> tuple[int, ...]:
    """The size of what the middle block gets, after a call that must give x's size."""
    found: list[tuple[int, ...]] = []
    hook = unet.mid_block.register_forward_pre_hook(
        lambda _, inputs: found.append(tuple(inputs[0].shape[2:]))
    )
    assert answer_of(unet, x).shape == x.shape
    hook.remove()
    return found[0]


@pytest.mark.parametrize(("after_skip", "factor"), [(True, 1.5), (False, 2.0), (True, 9.0)])
def test_every_block_can_be_followed_by_less(after_skip: bool, factor: float, unet: Any) -> None:
    x = torch.randn(1, 4, 20, 12)
    plain = middle_size(unet, x)
    for block in range(1, 12):
        changed = shrunk(unet, block=block, factor=factor, after_skip=after_skip)
        assert middle_size(changed, x) <= plain


def test_the_default_halves_what_the_middle_gets(unet: Any) -> None:
    x = torch.randn(1, 4, 32, 64)
    assert middle_size(unet, x) == (4, 8)
    assert middle_size(shrunk(unet), x) == (2, 4)


@pytest.mark.parametrize("changes", [{"factor": 1.0}, {"block": 32}])
def test_nothing_that_is_smaller_changes_nothing(changes: dict[str, Any], unet: Any) -> None:
    x = torch.randn(1, 4, 16, 16)
    assert torch.allclose(answer_of(shrunk(unet, **changes), x), answer_of(unet, x), atol=1e-5)


def test_equal_settings_share_a_unet_and_the_first_stays_as_it_is(unet: Any) -> None:
    model = Model(unet, SD1(), 1.0)
    assert shrunk(model.unet) is shrunk(model.unet)
    assert shrunk(model.unet) is not shrunk(model.unet, block=4)
    assert not any(module._forward_hooks for module in unet.modules())
