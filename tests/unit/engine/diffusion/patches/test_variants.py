"""FreeU, seamless and shrunk variants of a UNet, which share its weights."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.diffusion.families.stable_diffusion import SD1
from engine.diffusion.model import Model
from engine.diffusion.patches.deep_shrink import DeepShrink
from engine.diffusion.patches.variants import FreeU, seamless, variant_of, with_free_u
from engine.graph.catalogue import Catalogue
from tests.support.engine.latents import farthest, shared_images
from tests.support.engine.tiny_unet import answer_of, tiny_unet
from tests.support.engine.workflows import node, text_to_image

SETTINGS = FreeU(1.1, 1.2, 0.9, 0.2)
NOTHING = FreeU(1.0, 1.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(tiny_unet(), SD1(), latent_scale=1.0)


def answer(unet: Any) -> Tensor:
    return answer_of(unet, torch.randn((2, 4, 16, 16), generator=torch.Generator().manual_seed(2)))


def low_frequencies(pictures: Tensor) -> Tensor:
    return torch.fft.fftshift(torch.fft.fftn(pictures, dim=(-2, -1)), dim=(-2, -1))


@pytest.mark.parametrize(
    ("settings", "scaled"),
    [
        # The backbone has 32 channels in the layers of the first two levels and the first layer of
        # the third, 16 up to the first layer of the fourth, and 8 in the last two layers.
        (FreeU(2.0, 1.0, 1.0, 1.0), {0, 1, 2, 3, 4, 5, 6}),
        (FreeU(1.0, 2.0, 1.0, 1.0), {7, 8, 9}),
    ],
)
def test_factors_act_where_channels_say(settings: FreeU, scaled: set[int], model: Model) -> None:
    unet = with_free_u(model, settings).unet
    layers = [layer for block in unet.up_blocks for layer in block.resnets]
    acts = set()
    for number, layer in enumerate(layers):
        given = torch.ones(1, layer.in_channels, 4, 4)
        for hook in layer._forward_pre_hooks.values():
            (given,) = hook(layer, (given,))
        if not torch.allclose(given, torch.ones_like(given)):
            acts.add(number)
    assert acts == scaled


def test_the_filter_scales_the_low_frequencies_of_the_skips_alone(model: Model) -> None:
    unet = with_free_u(model, FreeU(1.0, 1.0, 0.25, 1.0)).unet
    layer = unet.up_blocks[0].resnets[0]
    joined = torch.randn((1, 64, 8, 8), generator=torch.Generator().manual_seed(3))
    (hook,) = layer._forward_pre_hooks.values()
    (changed,) = hook(layer, (joined,))
    assert torch.equal(changed[:, :32], joined[:, :32])
    expected = low_frequencies(joined[:, 32:])
    expected[..., 3:5, 3:5] *= 0.25
    found = torch.fft.ifftn(torch.fft.ifftshift(expected, dim=(-2, -1)), dim=(-2, -1)).real
    assert torch.allclose(changed[:, 32:], found, atol=1e-5)


def test_the_second_version_follows_the_normalised_mean() -> None:
    hidden = torch.zeros(2, 4, 1, 3)
    hidden[0], hidden[1] = torch.tensor([1.0, 2.0, 3.0]), 5.0
    found = FreeU(1.3, 1.4, 1.0, 1.0, follows_mean=True).scaled(hidden, 1.4)
    assert torch.allclose(found[0, :2], torch.tensor([1.0, 2.0 * 1.2, 3.0 * 1.4]))
    assert torch.equal(found[:, 2:], hidden[:, 2:])
    assert torch.equal(found[1], hidden[1])


def test_factors_of_one_change_nothing(model: Model) -> None:
    for settings in (NOTHING, FreeU(1.0, 1.0, 1.0, 1.0, follows_mean=True)):
        found = answer(with_free_u(model, settings).unet)
        assert torch.allclose(found, answer(model.unet), atol=1e-5)
    assert not torch.allclose(
        answer(with_free_u(model, SETTINGS).unet), answer(model.unet), atol=1e-2
    )


def test_equal_settings_share_a_unet_whose_weights_are_those_of_the_first(model: Model) -> None:
    one, same = with_free_u(model, SETTINGS), with_free_u(model, copy.copy(SETTINGS))
    assert one.unet is same.unet
    assert one.unet is not model.unet
    assert one.unet is not with_free_u(model, NOTHING).unet
    theirs = dict(one.unet.named_parameters())
    assert all(theirs[name] is each for name, each in model.unet.named_parameters())
    assert not any(module._forward_pre_hooks for module in model.unet.modules())


def test_a_unet_that_no_job_uses_goes_and_keeps_its_origin_until_then(model: Model) -> None:
    origin = copy.deepcopy(model.unet)
    variant = with_free_u(Model(origin, SD1(), 1.0), SETTINGS).unet
    twice = with_free_u(Model(variant, SD1(), 1.0), SETTINGS).unet
    watched = [weakref.ref(each) for each in (origin, variant, twice)]
    del origin, variant
    gc.collect()
    assert all(each() is not None for each in watched)
    assert not torch.allclose(answer(twice), answer(with_free_u(model, SETTINGS).unet), atol=1e-2)
    del twice
    gc.collect()
    assert all(each() is None for each in watched)


@pytest.mark.parametrize("class_type", ["FreeU", "FreeU_V2"])
def test_workflows_with_free_u_are_as_alone_among_others(
    class_type: str, catalogue: Catalogue
) -> None:
    factors = {"b1": 1.3, "b2": 1.4, "s1": 0.9, "s2": 0.2}
    prompt = text_to_image(model=["10", 0])
    prompt["10"] = node(class_type, model=["4", 0], **factors)
    changed, plain, again = shared_images([prompt, text_to_image(), {**prompt}], catalogue)
    assert farthest(changed, plain) > 5
    assert farthest(changed, again) <= 1


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))


def test_a_seamless_picture_goes_on_at_the_opposite_edge() -> None:
    x = torch.rand(1, 1, 6, 6)
    tiled = seamless(network())
    moved = tiled(x.roll(2, dims=3))
    torch.testing.assert_close(moved, tiled(x).roll(2, dims=3))


def test_a_network_has_one_seamless_variant_which_is_its_own() -> None:
    base = network()
    variant = seamless(base)
    assert seamless(base) is variant
    assert seamless(variant) is variant
    assert variant[0].weight is base[0].weight


def test_a_seamless_variant_holds_its_network() -> None:
    """Else another network could get its id, and its variant."""
    variant = seamless(network())
    gc.collect()
    others = [seamless(network()) for _ in range(50)]
    assert variant not in others
    assert len(set(map(id, others))) == 50


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
