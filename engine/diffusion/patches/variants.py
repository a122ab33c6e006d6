"""Networks that share the weights of another network but compute differently.

FreeU (Si et al. 2023, arXiv:2309.11497) gives more weight to the backbone of a UNet and less weight
to its skip connections. Seamless networks have circular padding: the image continues at the
opposite edge, so copies of the image can be placed side by side without a seam.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from diffusers.utils.torch_utils import fourier_filter
from torch import Tensor, nn
from torch.nn import functional

from engine.diffusion.loading.networks import require_unet
from engine.diffusion.loading.streaming import end_streaming, stream
from engine.diffusion.model import Model
from engine.diffusion.text.language_models import LanguageModel
from engine.diffusion.text.text_encoders import TextEncoder

M = TypeVar("M", bound=nn.Module)


def sharing_copy(module: M) -> M:
    """Copy a module but share its weights, so that single weights can be replaced in the copy.

    The copy of a streamed module is not streamed.
    """
    shared: dict[int, Any] = {id(each): each for each in module.parameters()}
    shared |= {id(each): each for each in module.buffers()}
    device = end_streaming(module)
    try:
        copied = copy.deepcopy(module, shared)
    # After an error too, the module is streamed again, because its calls need the weights.
    finally:
        if device is not None:
            stream(module, device)
    if device is None:
        both: tuple[Any, Any] = module, copied
        for each in both:
            # Streaming one module would also move the weights of the other.
            each.is_streamable = False
    if isinstance(copied, TextEncoder | LanguageModel):
        copied.renew_serial()
    return copied


@dataclass(frozen=True, slots=True, eq=False)
class _Origin:
    """Keeps the network in memory, so that its id is not reused for another object."""

    network: Any

    def __deepcopy__(self, _memo: Any) -> _Origin:
        return self


_VARIANTS: WeakValueDictionary[tuple[int, Hashable], Any] = WeakValueDictionary()
"""The variants that are in use. Jobs with equal settings get the same variant and share calls."""


def variant_of(network: Any, settings: Hashable, change: Callable[[Any], None]) -> Any:
    """Return a copy of the network with its own layers, changed by `change`.

    Equal settings return the same copy as long as the copy is in use. Raises EngineError for a
    transformer, because the changes are made for UNets and VAEs.
    """
    require_unet(network)
    key = id(network), settings
    found = _VARIANTS.get(key)
    if found is None:
        found = sharing_copy(network)
        found.variant_of = _Origin(network)
        change(found)
        _VARIANTS[key] = found
    return found


def seamless(network: M) -> M:
    """Return the network with circular padding. A seamless network is returned unchanged."""
    if getattr(network, "is_seamless", False):
        return network
    found: M = variant_of(network, "seamless", _pad_around)
    return found


def _pad_around(network: Any) -> None:
    network.is_seamless = True
    for layer in network.modules():
        if not isinstance(layer, nn.Conv2d) or layer.padding in ((0, 0), "valid"):
            continue
        high, wide = (int(side) for side in layer.padding)
        layer.padding = (0, 0)

        def pad(
            _layer: nn.Module,
            inputs: tuple[Any, ...],
            _sides: tuple[Any, ...] = (wide, wide, high, high),
        ) -> tuple[Tensor, ...]:
            x, *rest = inputs
            return functional.pad(x, _sides, mode="circular"), *rest

        layer.register_forward_pre_hook(pad)


_LOW_FREQUENCIES = 1


@dataclass(frozen=True, slots=True)
class FreeU:
    """Factors for the backbone (b) and the skip connections (s) of a UNet.

    `b1` and `s1` apply to layers with four times as many channels as the first level. `b2` and `s2`
    apply to layers with twice as many channels as the first level.
    """

    b1: float
    b2: float
    s1: float
    s2: float
    follows_mean: bool = False
    """Whether the factor has more effect where the mean over the channels is high, as in the second
    version of FreeU.
    """

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
    """Return the model with a changed copy of its UNet. Equal settings give the same copy."""
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
            # The library diffusers types the factor as an int, but it is a float.
            skip = fourier_filter(skip, _LOW_FREQUENCIES, skip_factor)  # type: ignore[arg-type]
            return torch.cat([settings.scaled(hidden, backbone_factor), skip], dim=1), *rest

        return scale

    for layer, channels in _layers_after_skips(unet):
        if channels in factors:
            layer.register_forward_pre_hook(hook(channels))


def _layers_after_skips(unet: Any) -> Iterator[tuple[nn.Module, int]]:
    """Yield the layers after skip connections, and the backbone's channels in their inputs."""
    channels = unet.config.block_out_channels[-1]
    for block in unet.up_blocks:
        for layer in block.resnets:
            yield layer, channels
            channels = layer.out_channels
