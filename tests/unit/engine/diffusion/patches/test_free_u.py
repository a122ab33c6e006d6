from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.diffusion.families.stable_diffusion import SD1
from engine.diffusion.model import Model
from engine.diffusion.patches.free_u import FreeU, with_free_u
from engine.graph.catalogue import Catalogue
from tests.support.engine.latents import all_latents_and_images
from tests.support.engine.tiny_unet import answer_of, tiny_unet
from tests.support.engine.workflows import node, text_to_image

SETTINGS = FreeU(1.1, 1.2, 0.9, 0.2)
NOTHING = FreeU(1.0, 1.0, 1.0, 1.0)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(tiny_unet(), SD1(), latent_scale=1.0)


def answer(unet: Any) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn((2, 4, 16, 16), generator=generator)
    return answer_of(unet, x)


def joined(unet: Any) -> list[Tensor]:
    """The inputs of the decoder's layers, in order."""
    given: list[Tensor] = []
    layers = [layer for block in unet.up_blocks for layer in block.resnets]
    # Registered last, so that it gets what FreeU made of the input.
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
        for layer in layers
    ]
    answer(unet)
    for hook in hooks:
        hook.remove()
    return given


def low_frequencies(pictures: Tensor) -> Tensor:
    return torch.fft.fftshift(torch.fft.fftn(pictures, dim=(-2, -1)), dim=(-2, -1))


def test_the_first_layer_is_given_a_scaled_backbone_and_a_filtered_skip(model: Model) -> None:
    settings = FreeU(1.5, 1.25, 0.5, 0.75)
    before, after = joined(model.unet), joined(with_free_u(model, settings).unet)
    old, new = before[0], after[0]
    assert torch.allclose(new[:, :16], old[:, :16] * 1.5)
    assert torch.equal(new[:, 16:32], old[:, 16:32])
    skips, filtered = low_frequencies(old[:, 32:]), low_frequencies(new[:, 32:])
    assert torch.allclose(filtered, skips * 0.5, atol=1e-4)  # at 2x2 all frequencies are low


@pytest.mark.parametrize(
    ("settings", "scaled"),
    [
        # The backbone has 32 channels in the layers of the first two levels and the first layer of
        # the third, 16 up to the first layer of the fourth, and 8 in the last two layers.
        (FreeU(2.0, 1.0, 1.0, 1.0), {0, 1, 2, 3, 4, 5, 6}),
        (FreeU(1.0, 2.0, 1.0, 1.0), {7, 8, 9}),
    ],
)
def test_each_factor_acts_where_the_channels_say(
    settings: FreeU, scaled: set[int], model: Model
) -> None:
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
    settings = FreeU(1.3, 1.4, 1.0, 1.0, follows_mean=True)
    hidden = torch.zeros(2, 4, 1, 3)
    hidden[0] = torch.tensor([1.0, 2.0, 3.0])
    hidden[1] = 5.0
    found = settings.scaled(hidden, 1.4)
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
def test_a_workflow_with_it_gives_the_same_alone_and_among_others(
    class_type: str, catalogue: Catalogue
) -> None:
    factors = {"b1": 1.3, "b2": 1.4, "s1": 0.9, "s2": 0.2}
    prompt = text_to_image(model=["10", 0])
    prompt["10"] = node(class_type, model=["4", 0], **factors)
    prompts = [prompt, text_to_image(), {**prompt}]
    changed, plain, again = (
        images[0].astype(int) for _, images in all_latents_and_images(prompts, catalogue)
    )
    ((_, (alone,)),) = all_latents_and_images([prompt], catalogue)
    assert np.abs(changed - plain).max() > 5
    assert np.abs(changed - again).max() <= 1
    assert np.abs(changed - alone).max() <= 1
