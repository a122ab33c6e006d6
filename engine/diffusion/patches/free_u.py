"""FreeU: less weight for the skip connections of a UNet, and more for its backbone.

Si et al. 2023 (arXiv:2309.11497).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from diffusers.utils.torch_utils import fourier_filter
from torch import Tensor, nn

from engine.diffusion.model import Model
from engine.diffusion.patches.variants import variant_of

_LOW_FREQUENCIES = 1


@dataclass(frozen=True, slots=True)
class FreeU:
    """Factors of the backbone (b) and of the skip connections (s) of a UNet.

    `b1` and `s1` are for the layers with four times the fewest channels of the UNet, `b2` and `s2`
    for those with twice as many.
    """

    b1: float
    b2: float
    s1: float
    s2: float
    follows_mean: bool = False
    """The second version, where the factor acts more where the mean over the channels is high."""

    def scaled(self, hidden: Tensor, factor: float) -> Tensor:
        """Scale the first half of the channels of the backbone (batch, channels, h, w)."""
        weight: float | Tensor = factor
        if self.follows_mean:
            mean = hidden.mean(1, keepdim=True)
            least, most = mean.amin((2, 3), keepdim=True), mean.amax((2, 3), keepdim=True)
            span = torch.where(most > least, most - least, 1.0)
            weight = 1 + (factor - 1) * (mean - least) / span
        first, second = hidden.chunk(2, dim=1)
        return torch.cat([first * weight, second], dim=1)


def with_free_u(model: Model, settings: FreeU) -> Model:
    """The model with a UNet that shares the weights; equal settings give the same UNet."""
    unet = variant_of(model.unet, settings, partial(_patch, settings=settings))
    return replace(model, unet=unet)


def _patch(unet: Any, settings: FreeU) -> None:
    fewest = unet.config.block_out_channels[0]
    factors = {4 * fewest: (settings.b1, settings.s1), 2 * fewest: (settings.b2, settings.s2)}

    def hook(channels: int) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
        backbone_factor, skip_factor = factors[channels]

        def scale(_layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            joined, *rest = inputs
            hidden, skip = joined[:, :channels], joined[:, channels:]
            # diffusers types the factor as an int, but it is a float.
            skip = fourier_filter(skip, _LOW_FREQUENCIES, skip_factor)  # type: ignore[arg-type]
            return torch.cat([settings.scaled(hidden, backbone_factor), skip], dim=1), *rest

        return scale

    for layer, channels in _layers_after_skips(unet):
        if channels in factors:
            layer.register_forward_pre_hook(hook(channels))


def _layers_after_skips(unet: Any) -> Iterator[tuple[nn.Module, int]]:
    """The layers of the decoder that take the backbone joined with a skip connection, each with the
    number of channels that the backbone has there.
    """
    channels = unet.config.block_out_channels[-1]
    for block in unet.up_blocks:
        for layer in block.resnets:
            yield layer, channels
            channels = layer.out_channels
