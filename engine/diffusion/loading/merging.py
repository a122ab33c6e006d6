"""LoRAs merged into copies of the weights that they change.

Hu et al. 2021 (arXiv:2106.09685): W + strength * alpha / rank * up @ down.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from engine.diffusion.loading.lora_file import LoraFile
from engine.diffusion.loading.store import Identity, ModelStore
from engine.diffusion.loading.streaming import end_streaming, stream, streamed
from engine.diffusion.loading.unets import prepared
from engine.diffusion.text.text_encoders import TextEncoder

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class AppliedLora:
    """The file of a LoRA and its strength."""

    path: Path
    identity: Identity
    strength: float


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The base and the LoRAs that a merged module was made of.

    Merging one more starts from the weights of the base, so that they are rounded only once.
    """

    base: Any
    loras: tuple[AppliedLora, ...]
    merged: weakref.ref[nn.Module]

    def __deepcopy__(self, _memo: Any) -> Origin:
        return self


def is_merged(module: nn.Module) -> bool:
    """Whether LoRAs are merged into it. A changed copy of a merged module counts as a base."""
    origin: Origin | None = getattr(module, "origin", None)
    return origin is not None and origin.merged() is module


def merged(
    store: ModelStore, module: M, loras: tuple[AppliedLora, ...], known: Mapping[str, str]
) -> M:
    """The module with more LoRAs, from the store if they have been merged before.

    It is the module itself if the files have no layers for it.
    """
    if not any(LoraFile(lora.path).ranks(known) for lora in loras):
        return module
    base: Any = module
    if is_merged(module):
        origin: Origin = base.origin
        base, loras = origin.base, (*origin.loras, *loras)

    def create() -> Any:
        made = _merge(base, loras, known)
        return made if isinstance(made, TextEncoder) else prepared(made, store.unets)

    found: M = store.get_or_create(("lora", id(base), loras), create)
    return found


def _merge(base: Any, loras: tuple[AppliedLora, ...], known: Mapping[str, str]) -> Any:
    weights: dict[str, Tensor] = {}
    rounded_to = torch.float16 if isinstance(base, TextEncoder) else None
    for lora in loras:
        for name, difference in _differences(base, lora, known):
            weight = weights.get(name)
            if weight is None:
                weight = base.get_parameter(name).float()
            weights[name] = weight + difference
    copied = sharing_copy(base)
    for name, weight in weights.items():
        layer, _, last = name.rpartition(".")
        dtype = base.get_parameter(name).dtype
        final = (weight if rounded_to is None else weight.to(rounded_to)).to(dtype)
        setattr(copied.get_submodule(layer), last, nn.Parameter(final, requires_grad=False))
    copied.origin = Origin(base, loras, weakref.ref(copied))
    return copied if (mark := streamed(base)) is None else stream(copied, mark.device)


def sharing_copy(module: M) -> M:
    """A copy of a module that shares all its weights, any of which may be replaced in the copy.

    The weights of the copy of a streamed module are not streamed until it is said of it.
    """
    shared: dict[int, Any] = {id(each): each for each in module.parameters()}
    shared |= {id(each): each for each in module.buffers()}
    device = end_streaming(module)
    copied = copy.deepcopy(module, shared)
    if device is not None:
        stream(module, device)
    if isinstance(copied, TextEncoder):
        copied.renew_serial()
    return copied


def _differences(
    base: nn.Module, lora: AppliedLora, known: Mapping[str, str]
) -> Iterator[tuple[str, Tensor]]:
    """Each weight that the LoRA changes, and the difference to add to it, in float32."""
    for name, matrices in LoraFile(lora.path).read(known, base):
        weight_name = f"{name}.weight"
        weight = base.get_parameter(weight_name)
        scale = lora.strength * matrices.alpha / matrices.rank
        yield weight_name, scale * matrices.product().reshape(weight.shape)
