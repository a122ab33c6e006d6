"""Streams weights that do not fit on the device from the machine's memory, layer by layer.

With the group offloading of diffusers, the next layer is copied from pinned memory on a separate
CUDA stream while a layer computes. The weights of the previous layer are then dropped from the
device. Streaming does not change any bit of the results.
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
"""The share of the device's free memory that weights may use. Calls need the remaining memory."""
_LAYERS_AT_ONCE = 2
"""The number of layers on the device at once. One layer computes while the other is copied."""
_HOOKS = ("group_offloading", "layer_execution_tracker", "lazy_prefetch_group_offloading")


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Functions that return the free memory of the device and of the machine, in bytes."""

    device: Callable[[], int]
    host: Callable[[], int]

    def fits(self, size_bytes: int) -> bool:
        """Return whether weights of this size fit on the device and leave memory for calls."""
        return size_bytes <= self.device() * _USED_SHARE


@dataclass(frozen=True, slots=True)
class Streamed:
    """The mark of a module whose weights are streamed."""

    device: torch.device
    """The device on which the module computes."""
    resident_bytes: int
    """The largest size of the weights on the device at one time."""
    size_bytes: int
    """The size of all weights, which are in the machine's memory."""


def streamed(module: object) -> Streamed | None:
    """Return the mark of a streamed module, or None for any other object."""
    found: Streamed | None = getattr(module, "streamed", None)
    return found


def device_of(module: nn.Module) -> torch.device:
    """Return the device on which a module computes, even if its weights are streamed."""
    mark = streamed(module)
    # The property `device` of a diffusers model searches all submodules, so it is not used here.
    return next(module.parameters()).device if mark is None else mark.device


def stream(module: M, device: torch.device) -> M:
    """Stream the weights of a module to the device layer by layer. Returns the module.

    If the module is already streamed, streaming starts again. This is needed after an interrupted
    call, which leaves some layers on the device.
    """
    end_streaming(module)
    has_streams = device.type == "cuda"
    # The mark is set first, so that `end_streaming` can undo a failed call of this function.
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
    """Stop streaming, without moving the weights of the module.

    Returns the device to which the weights were streamed, or None if they were not streamed.
    """
    mark = streamed(module)
    if mark is None:
        return None
    registry = HookRegistry.check_if_exists_or_initialize(_with_layers(module))
    for name in _HOOKS:
        registry.remove_hook(name, recurse=True)
    for each in _with_layers(module).modules():
        # The library diffusers does not remove these attributes. With them, a module refers to
        # itself, and a copy of the module calls the original.
        if each.__dict__.pop("_diffusers_hook", None) is not None:
            del each.forward
    del module.streamed
    return mark.device


def resident_bytes(module: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Return the most bytes that the weights of a streamed module use on the device at one time.

    These are the weights outside the lists of layers, and the two largest layers. If `dtype` is
    set, the sizes are computed for weights of this type.
    """
    layers = [_size_bytes(each, dtype) for each in _layers(module)]
    rest = _size_bytes(module, dtype) - sum(layers)
    return rest + sum(sorted(layers)[-_LAYERS_AT_ONCE:])


def pinned_bytes(module: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Return the bytes of the machine's memory that a streamed module needs.

    If `dtype` is set, the sizes are computed for weights of this type.
    """
    return sum(
        _pinned_bytes(each.numel() * (each.itemsize if dtype is None else dtype.itemsize))
        for each in _tensors(module)
    )


def require_streaming_memory(
    module: nn.Module, name: str, free_memory_of: FreeMemory, dtype: torch.dtype
) -> None:
    """Raise OutOfMemory if there is not enough memory to stream a module."""
    size, resident = _size_bytes(module, dtype), resident_bytes(module, dtype)
    pinned = pinned_bytes(module, dtype)
    text = (
        f"{name} has {_gigabytes(size)} of weights, which is too much for the memory of the "
        "device. "
    )
    if not free_memory_of.fits(resident):
        raise OutOfMemory(
            f"{text}To stream the weights layer by layer, {_gigabytes(resident)} of that memory "
            f"are needed at once, but {_gigabytes(free_memory_of.device())} are free"
        )
    if pinned > free_memory_of.host():
        raise OutOfMemory(
            f"{text}To stream the weights, {_gigabytes(pinned)} of the machine's memory are "
            f"needed, but {_gigabytes(free_memory_of.host())} are free"
        )


def _with_layers(module: nn.Module) -> nn.Module:
    """Return the module that has the lists of layers. In a `LanguageModel`, this is `model`."""
    inner = getattr(module, "model", None)
    return inner if isinstance(inner, nn.Module) else module


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that diffusers treats as layers."""
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
    """Round a tensor's size up to the power of two that torch allocates in pinned memory."""
    return 1 << max(0, size_bytes - 1).bit_length()


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
