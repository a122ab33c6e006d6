"""Applies LoRAs to the networks of a model.

A LoRA changes a weight W to W + strength * alpha / rank * up @ down (Hu et al. 2021,
arXiv:2106.09685). `lora_file` describes the other kinds, and what *added by row* means. OFT and
BOFT rotate the weight with the changes of all earlier LoRAs. LoRAs of text encoders, and LoRAs that
cannot be added by row, are merged into copies of the changed weights.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers import UNet2DConditionModel
from torch import Tensor, nn

from engine.diffusion.adapters import Adapter, Adapters, AppliedAdapter, RowUpdates, Update, key_of
from engine.diffusion.families.model_family import ModelFamily
from engine.diffusion.loading.lora_file import Change, LoraFile, Part
from engine.diffusion.loading.lora_layers import JoinedLayers, LayersByName, layers_of, text_layers
from engine.diffusion.loading.networks import prepared
from engine.diffusion.loading.store import Identity, ModelStore
from engine.diffusion.loading.streaming import stream, streamed
from engine.diffusion.patches.variants import sharing_copy
from engine.diffusion.text.language_models import LanguageModel
from engine.diffusion.text.text_encoders import TextEncoder
from engine.errors import EngineError
from engine.graph.models_folder import LORAS

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class AppliedLora:
    path: Path
    identity: Identity
    strength: float


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The base of a merged module, and the LoRAs that were merged into the base.

    To add a LoRA, all LoRAs are merged into the base again, so that weights are rounded only once.
    """

    base: Any
    loras: tuple[AppliedLora, ...]
    merged: weakref.ref[nn.Module]

    def __deepcopy__(self, _memo: Any) -> Origin:
        return self


def is_merged(module: nn.Module) -> bool:
    """Return whether LoRAs are merged into a module. A copy of a merged module is a new base."""
    origin: Origin | None = getattr(module, "origin", None)
    return origin is not None and origin.merged() is module


def merged(store: ModelStore, module: M, loras: tuple[AppliedLora, ...], known: LayersByName) -> M:
    """Return the module with more LoRAs, from the store if the LoRAs were merged before.

    Returns `module` itself if the files do not change any of its layers.
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


def _merge(
    store: ModelStore, base: Any, loras: tuple[AppliedLora, ...], known: LayersByName
) -> Any:
    files = [LoraFile(lora.path) for lora in loras]
    remaining = Counter(name for file in files for name in _touched(base, file, known))
    store.free_for(sum(base.get_parameter(name).nbytes for name in remaining))
    copied = sharing_copy(base)
    # Weights stay in float32 until their last difference is added, so each is rounded once.
    changing: dict[str, Tensor] = {}

    def current(name: str) -> Tensor:
        return changing[name] if name in changing else base.get_parameter(name).float()

    for lora, file in zip(loras, files, strict=True):
        for name, difference in _differences(
            base, file, known, current=current, strength=lora.strength
        ):
            changing[name] = current(name) + difference
            remaining[name] -= 1
            if not remaining[name]:
                _set(copied, name, changing.pop(name))
    copied.origin = Origin(base, loras, weakref.ref(copied))
    return copied if (mark := streamed(base)) is None else stream(copied, mark.device)


def _set(module: Any, name: str, weight: Tensor) -> None:
    """Replace a weight and keep its data type. Text encoders' weights are rounded as in ComfyUI."""
    layer, _, last = name.rpartition(".")
    dtype = module.get_parameter(name).dtype
    is_text = isinstance(module, TextEncoder | LanguageModel)
    rounded = weight.to(module.rounded_to) if is_text else weight
    setattr(module.get_submodule(layer), last, nn.Parameter(rounded.to(dtype), requires_grad=False))


def _differences(
    base: nn.Module,
    file: LoraFile,
    known: LayersByName,
    *,
    current: Callable[[str], Tensor],
    strength: float,
) -> Iterator[tuple[str, Tensor]]:
    """Yield the names of the parameters that the file changes, and the changes in float32."""
    with file.opened() as read:
        for change, joined in file.changes(known):
            for part, names in _parts(base, change, joined):
                rows = zip(joined, map(current, names), strict=True)
                whole = torch.cat([layer_rows.stored(weight) for layer_rows, weight in rows])
                tensors = read(change, whole.device)
                with file.fitting(change, whole.shape):
                    difference = change.difference(part, tensors, whole, strength)
                file.require_finite(change, [difference])
                for layer_rows, name in zip(joined, names, strict=True):
                    yield name, layer_rows.own(difference)


def _touched(base: nn.Module, file: LoraFile, known: LayersByName) -> Iterator[str]:
    """Yield the names of the parameters that the file changes, once for each change."""
    for change, joined in file.changes(known):
        for _, names in _parts(base, change, joined):
            yield from names


def _parts(
    base: nn.Module, change: Change, joined: JoinedLayers
) -> Iterator[tuple[Part, list[str]]]:
    """Yield the parts of a change that all its layers have, with the names of the parameters."""
    for part in change.parts:
        layers = [base.get_submodule(layer_rows.layer) for layer_rows in joined]
        if all(getattr(layer, part, None) is not None for layer in layers):
            yield part, [f"{layer_rows.layer}.{part}" for layer_rows in joined]


_log = logging.getLogger(__name__)
_MOST_SHARE = 0.25
"""The largest total size of a model's adapters, as a share of the weights that they change.

Larger adapters are merged, because their products would take nearly as long as the products of the
weights.
"""
_MOST_BY_ROW = 8
"""The largest number of adapters of a model that are added by row. Each adapter reads and writes
the outputs of its layers again, even if its rank is low. With eight adapters of rank 1, a layer
takes 1.6 times as long as without adapters, also for other jobs in the same call.
"""


@dataclass(frozen=True, slots=True)
class Networks:
    """The networks that a LoRA changes."""

    unet: Any
    """The denoising network."""
    family: ModelFamily
    text_encoders: tuple[nn.Module, ...] = ()
    adapters: Adapters = ()
    """The adapters that are added to the denoising network by row."""

    @property
    def key(self) -> Hashable:
        """A key for these networks and adapters, which does not keep them in memory."""
        modules = tuple(weakref.ref(each) for each in (self.unet, *self.text_encoders))
        return modules, key_of(self.adapters)


def with_lora(
    store: ModelStore,
    name: str,
    networks: Networks,
    *,
    unet_strength: float,
    text_strength: float,
) -> Networks:
    """Return the networks, changed by the LoRA of that name.

    A network for which the file has no layers stays the same. Raises CheckpointUnavailable if the
    file is missing or damaged, and EngineError if it has no layers for any network.
    """
    path = store.models.path(LORAS, name)
    identity = store.identity(path)
    file = LoraFile(path)
    unet_known, text_known = _known(networks)
    _require_some(file, set(unet_known).union(*text_known))
    if unet_strength:
        lora = AppliedLora(path, identity, unet_strength)
        networks = _with_unet(store, networks, lora, file=file, known=unet_known)
    if text_strength:
        lora = AppliedLora(path, identity, text_strength)
        pairs = zip(networks.text_encoders, text_known, strict=True)
        encoders = tuple(merged(store, encoder, (lora,), known) for encoder, known in pairs)
        networks = replace(networks, text_encoders=encoders)
    return networks


def _known(networks: Networks) -> tuple[LayersByName, list[LayersByName]]:
    """Return the layers of the denoising network and of each text encoder."""
    texts = [
        layers_of(encoder, partial(text_layers, at=at))
        for at, encoder in enumerate(networks.text_encoders)
    ]
    return layers_of(networks.unet, networks.family.layers), texts


def _require_some(file: LoraFile, known: set[str]) -> None:
    """Raise EngineError if `known` has none of the file's layers. Logs unknown layers."""
    unknown = sum(name not in known for name in file.layers)
    if unknown == len(file.layers):
        raise EngineError(
            f"none of the {unknown} layers of {file.name} is a layer of this model: the LoRA was "
            "made for a model of another family"
        )
    if unknown:
        _log.info(
            "layers of a LoRA were left out, because the model has no such layers",
            extra={"action": "lora", "file": file.name, "count": unknown},
        )


def _with_unet(
    store: ModelStore,
    networks: Networks,
    lora: AppliedLora,
    *,
    file: LoraFile,
    known: LayersByName,
) -> Networks:
    """Return the networks with one more LoRA in the denoising network.

    If the LoRA cannot be added by row, all LoRAs of the network are merged.
    """
    unet = networks.unet
    if not file.changes(known):
        return networks
    sizes = file.row_sizes(known, unet)
    if sizes and _supports_row_updates(unet, sizes) and _is_small(networks, sizes):
        adapter = _adapter(store, unet, lora, file=file, known=known)
        added = AppliedAdapter(adapter, lora.strength)
        return replace(networks, adapters=(*networks.adapters, added))
    before = (
        AppliedLora(each.adapter.path, each.adapter.identity, each.strength)
        for each in networks.adapters
    )
    return replace(networks, unet=merged(store, unet, (*before, lora), known), adapters=())


def _supports_row_updates(unet: Any, layers: Iterable[str]) -> bool:
    """Return whether adapters can be added to these layers by row."""
    updates: RowUpdates | None = getattr(unet, "row_updates", None)
    return updates is not None and not is_merged(unet) and updates.can_update(layers)


def _is_small(networks: Networks, sizes: Mapping[str, int]) -> bool:
    """Return whether the adapters, with a new one of these sizes, are few and small enough."""
    applied = [each.adapter for each in networks.adapters]
    if len(applied) >= _MOST_BY_ROW:
        return False
    shapes = _shapes(networks.unet, set(sizes).union(*(adapter.layers for adapter in applied)))
    size = sum(sizes.values()) + sum(adapter.size for adapter in applied)
    return size <= _MOST_SHARE * sum(map(math.prod, shapes.values()))


def _shapes(unet: Any, layers: Iterable[str]) -> dict[str, torch.Size]:
    return {name: unet.get_parameter(f"{name}.weight").shape for name in layers}


def _adapter(
    store: ModelStore, unet: Any, lora: AppliedLora, *, file: LoraFile, known: LayersByName
) -> Adapter:
    """Return the adapter of a file, from the store if it was made for the same shapes before."""
    sizes: Mapping[str, int] = file.row_sizes(known, unet) or {}
    shapes = _shapes(unet, sizes)

    def create() -> Adapter:
        store.free_for(sum(sizes.values()) * next(unet.parameters()).itemsize)
        layers: defaultdict[str, tuple[Update, ...]] = defaultdict(tuple)
        for name, update in file.row_updates(known, unet):
            layers[name] += (update,)
        return Adapter(lora.path, lora.identity, dict(layers))

    return store.get_or_create(("adapter", lora.identity, frozenset(shapes.items())), create)
