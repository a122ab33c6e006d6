"""LoRAs and their kin merged into copies of the weights that they change.

A LoRA is W + strength * alpha / rank * up @ down: Hu et al. 2021 (arXiv:2106.09685). For the others
see `changes.kinds`; those that turn a weight turn what the ones before them made of it.
"""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers import UNet2DConditionModel
from torch import Tensor, nn

from engine.diffusion.loading.changes.change import Change, Part
from engine.diffusion.loading.changes.layers import Known, Places
from engine.diffusion.loading.lora_file import LoraFile
from engine.diffusion.loading.memory.streaming import end_streaming, stream, streamed
from engine.diffusion.loading.store import Identity, ModelStore
from engine.diffusion.loading.unets import prepared
from engine.diffusion.text.language_models import LanguageModel
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


def merged(store: ModelStore, module: M, loras: tuple[AppliedLora, ...], known: Known) -> M:
    """The module with more LoRAs, from the store if they have been merged before.

    It is the module itself if the files have no layers for it.
    """
    if not any(LoraFile(lora.path).changes(known) for lora in loras):
        return module
    base: Any = module
    if is_merged(module):
        origin: Origin = base.origin
        base, loras = origin.base, (*origin.loras, *loras)

    def create() -> Any:
        made = _merge(store, base, loras, known)
        return prepared(made, store.unets) if isinstance(made, UNet2DConditionModel) else made

    found: M = store.get_or_create(("lora", id(base), loras), create)
    return found


def _merge(store: ModelStore, base: Any, loras: tuple[AppliedLora, ...], known: Known) -> Any:
    files = [LoraFile(lora.path) for lora in loras]
    ahead = Counter(name for file in files for name in _touched(base, file, known))
    store.make_room(sum(base.get_parameter(name).nbytes for name in ahead))
    copied = sharing_copy(base)
    # In float32, as long as another difference is to come: each weight is rounded once.
    changing: dict[str, Tensor] = {}

    def current(name: str) -> Tensor:
        return changing[name] if name in changing else base.get_parameter(name).float()

    for lora, file in zip(loras, files, strict=True):
        for name, difference in _differences(
            base, file, known, current=current, strength=lora.strength
        ):
            changing[name] = current(name) + difference
            ahead[name] -= 1
            if not ahead[name]:
                _set(copied, name, changing.pop(name))
    copied.origin = Origin(base, loras, weakref.ref(copied))
    return copied if (mark := streamed(base)) is None else stream(copied, mark.device)


def _set(module: Any, name: str, weight: Tensor) -> None:
    """Give a module another weight, of the type of the one that it has."""
    layer, _, last = name.rpartition(".")
    dtype = module.get_parameter(name).dtype
    rounded = weight.to(torch.float16) if isinstance(module, TextEncoder) else weight
    setattr(module.get_submodule(layer), last, nn.Parameter(rounded.to(dtype), requires_grad=False))


def sharing_copy(module: M) -> M:
    """A copy of a module that shares all its weights, any of which may be replaced in the copy.

    The weights of the copy of a streamed module are not streamed until it is said of it.
    """
    shared: dict[int, Any] = {id(each): each for each in module.parameters()}
    shared |= {id(each): each for each in module.buffers()}
    device = end_streaming(module)
    try:
        copied = copy.deepcopy(module, shared)
    finally:  # else the next call would find the weights where they are not used
        if device is not None:
            stream(module, device)
    if device is None:
        both: tuple[Any, Any] = module, copied
        for each in both:
            each.is_streamable = False  # to stream one would take the weights of the other
    if isinstance(copied, TextEncoder | LanguageModel):
        copied.renew_serial()
    return copied


def _differences(
    base: nn.Module,
    file: LoraFile,
    known: Known,
    *,
    current: Callable[[str], Tensor],
    strength: float,
) -> Iterator[tuple[str, Tensor]]:
    """What the file adds to each weight that it changes, in float32."""
    with file.opened() as read:
        for change, places in file.changes(known):
            for part, names in _parts(base, change, places):
                rows = zip(places, map(current, names), strict=True)
                whole = torch.cat([place.stored(weight) for place, weight in rows])
                tensors = read(change, whole.device)
                with file.fitting(change, whole.shape):
                    difference = change.difference(part, tensors, whole, strength)
                file.require_finite(change, [difference])
                for place, name in zip(places, names, strict=True):
                    yield name, place.own(difference)


def _touched(base: nn.Module, file: LoraFile, known: Known) -> Iterator[str]:
    """The weights that the file changes, each as often as it does."""
    for change, places in file.changes(known):
        for _, names in _parts(base, change, places):
            yield from names


def _parts(base: nn.Module, change: Change, places: Places) -> Iterator[tuple[Part, list[str]]]:
    """What a change is for, and the names of it; a bias only where the layers have one."""
    for part in change.parts:
        layers = [base.get_submodule(place.layer) for place in places]
        if all(getattr(layer, part, None) is not None for layer in layers):
            yield part, [f"{place.layer}.{part}" for place in places]
