"""Weights that stay in the machine's memory and come to the device layer by layer, ahead of use.

diffusers' group offloading does it: while a layer computes, the next one is copied from pinned
memory on a stream of its own, and what was used is dropped. The results are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from diffusers.hooks.group_offloading import apply_group_offloading
from diffusers.hooks.hooks import HookRegistry
from torch import Tensor, nn

from engine.errors import OutOfMemory

M = TypeVar("M", bound=nn.Module)
_HOST = torch.device("cpu")
_USED_SHARE = 0.8
"""Of the free memory of the device. The rest is for the calls."""
_LAYERS_AT_ONCE = 2
"""The one that computes, and the one that is on its way."""
_HOOKS = ("group_offloading", "layer_execution_tracker", "lazy_prefetch_group_offloading")


@dataclass(frozen=True, slots=True)
class Room:
    """How many bytes are free now."""

    device: Callable[[], int]
    host: Callable[[], int]

    def fits(self, size_bytes: int) -> bool:
        """Whether so much fits on the device, with memory left for calls."""
        return size_bytes <= self.device() * _USED_SHARE


@dataclass(frozen=True, slots=True)
class Streamed:
    """A module whose weights are streamed."""

    device: torch.device
    """On which it computes."""
    resident_bytes: int
    """Of its weights, so many are on the device at most at one time."""
    size_bytes: int
    """All of them, in the machine's memory."""


def streamed(module: object) -> Streamed | None:
    """How the weights of a module are streamed; None where they stay on their device."""
    found: Streamed | None = getattr(module, "streamed", None)
    return found


def device_of(module: nn.Module) -> torch.device:
    """That on which a module computes. Streamed weights lie elsewhere."""
    mark = streamed(module)
    # The properties of diffusers look at all weights: a millisecond.
    return next(module.parameters()).device if mark is None else mark.device


def stream(module: M, device: torch.device) -> M:
    """Let the weights come to the device layer by layer, wherever they are; returns the module.

    Once more for one that is streamed, it begins anew: after a call that broke off, some layers are
    on the device still.
    """
    end_streaming(module)
    has_streams = device.type == "cuda"
    # Said before it is done, so that what breaks off half-way can be ended, too.
    found: Any = module
    found.streamed = Streamed(device, resident_bytes(module), _size_bytes(module))
    apply_group_offloading(
        _with_layers(module),
        onload_device=device,
        offload_device=_HOST,
        offload_type="block_level",
        num_blocks_per_group=1,
        use_stream=has_streams,
        record_stream=has_streams,
    )
    return module


def end_streaming(module: nn.Module) -> torch.device | None:
    """Leave the weights of a module where they are. Returns the device that they were streamed to,
    or None where they were not.
    """
    mark = streamed(module)
    if mark is None:
        return None
    registry = HookRegistry.check_if_exists_or_initialize(_with_layers(module))
    for name in _HOOKS:
        registry.remove_hook(name, recurse=True)
    for each in _with_layers(module).modules():
        # What is left of a hook makes a module hold itself, and a copy call what it is a copy of.
        if each.__dict__.pop("_diffusers_hook", None) is not None:
            del each.forward
    del module.streamed
    return mark.device


def resident_bytes(module: nn.Module, dtype: torch.dtype | None = None) -> int:
    """How much of a streamed module is on the device at most at one time: what is in no list of
    layers, and the largest layers that follow each other. With weights of `dtype`, if given.
    """
    layers = [_size_bytes(each, dtype) for each in _layers(module)]
    rest = _size_bytes(module, dtype) - sum(layers)
    return rest + sum(sorted(layers)[-_LAYERS_AT_ONCE:])


def pinned_bytes(module: nn.Module, dtype: torch.dtype | None = None) -> int:
    """What a streamed module takes of the machine's memory. With weights of `dtype`, if given."""
    return sum(
        _pinned_bytes(each.numel() * (each.itemsize if dtype is None else dtype.itemsize))
        for each in _tensors(module)
    )


def require_room(module: nn.Module, name: str, room: Room, dtype: torch.dtype) -> None:
    """Raises OutOfMemory for a module that can neither be on the device nor be streamed."""
    size, resident = _size_bytes(module, dtype), resident_bytes(module, dtype)
    pinned = pinned_bytes(module, dtype)
    text = f"{name} has {_gigabytes(size)} of weights, too many for the memory of the device. "
    if not room.fits(resident):
        raise OutOfMemory(
            f"{text}Layer by layer {_gigabytes(resident)} must be there at once, and "
            f"{_gigabytes(room.device())} are free"
        )
    if pinned > room.host():
        raise OutOfMemory(
            f"{text}To stream them takes {_gigabytes(pinned)} of the machine's memory, and "
            f"{_gigabytes(room.host())} are free"
        )


def _with_layers(module: nn.Module) -> nn.Module:
    """The part that has the lists of layers: a language model keeps a library's inside."""
    inner = getattr(module, "model", None)
    return inner if isinstance(inner, nn.Module) else module


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Those that diffusers takes for layers."""
    for each in _with_layers(module).children():
        if isinstance(each, nn.ModuleList | nn.Sequential):
            yield from each


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _size_bytes(module: nn.Module, dtype: torch.dtype | None = None) -> int:
    return sum(
        each.numel() * (each.itemsize if dtype is None else dtype.itemsize)
        for each in _tensors(module)
    )


def _pinned_bytes(size_bytes: int) -> int:
    """What torch takes for a tensor in pinned memory: a power of two."""
    return 1 << max(0, size_bytes - 1).bit_length()


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
