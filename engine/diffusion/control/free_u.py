"""FreeU (Si et al. 2023, arXiv:2309.11497): less weight to what the UNet hands across, more to its
backbone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import torch
from diffusers.utils.torch_utils import fourier_filter
from torch import Tensor, nn

from engine.diffusion.loading.lora import sharing_copy
from engine.diffusion.model import Model

_LOW_FREQUENCIES = 1


@dataclass(frozen=True, slots=True)
class FreeU:
    """Factors for the layers with four times (1) and twice (2) the fewest channels of a UNet."""

    b1: float
    b2: float
    s1: float
    s2: float
    follows_mean: bool = False
    """The second version: the backbone's factor counts where the mean over its channels is high."""

    def scaled(self, hidden: Tensor, factor: float) -> Tensor:
        """The backbone (batch, channels, h, w) with the first half of its channels scaled."""
        weight: float | Tensor = factor
        if self.follows_mean:
            mean = hidden.mean(1, keepdim=True)
            least, most = mean.amin((2, 3), keepdim=True), mean.amax((2, 3), keepdim=True)
            spread = torch.where(most > least, most - least, 1.0)
            weight = 1 + (factor - 1) * (mean - least) / spread
        first, second = hidden.chunk(2, dim=1)
        return torch.cat([first * weight, second], dim=1)


def with_free_u(model: Model, settings: FreeU) -> Model:
    """The model on another UNet of the same weights; equal settings give the same one."""
    key = id(model.unet), settings
    unet = _VARIANTS.get(key)
    if unet is None:
        unet = _VARIANTS[key] = _variant(model.unet, settings)
    return replace(model, unet=unet)


_VARIANTS: WeakValueDictionary[tuple[int, FreeU], Any] = WeakValueDictionary()
"""Those that jobs use now, so that they share their calls. Each holds the UNet that it was made of,
so no other can take that one's id.
"""


def _variant(unet: Any, settings: FreeU) -> Any:
    variant = sharing_copy(unet)
    fewest = unet.config.block_out_channels[0]
    factors = {4 * fewest: (settings.b1, settings.s1), 2 * fewest: (settings.b2, settings.s2)}

    def hook(channels: int) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
        backbone, skip = factors[channels]

        def scale(
            _layer: nn.Module, inputs: tuple[Any, ...], _origin: Any = unet
        ) -> tuple[Any, ...]:
            joined, *rest = inputs
            hidden, crossing = joined[:, :channels], joined[:, channels:]
            # diffusers calls the factor an int; it is none.
            crossing = fourier_filter(crossing, _LOW_FREQUENCIES, skip)  # type: ignore[arg-type]
            return torch.cat([settings.scaled(hidden, backbone), crossing], dim=1), *rest

        return scale

    for layer, channels in _joints(variant):
        if channels in factors:
            layer.register_forward_pre_hook(hook(channels))
    return variant


def _joints(unet: Any) -> Iterator[tuple[nn.Module, int]]:
    """The layers of the way up that take the backbone joined with what comes across, and the
    backbone's channels there.
    """
    channels = unet.config.block_out_channels[-1]
    for block in unet.up_blocks:
        for layer in block.resnets:
            yield layer, channels
            channels = layer.out_channels
