"""LoRAs applied to the networks of a model: added by row in the one that denoises, merged into text
encoders.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from engine.diffusion.adapters import Adapter, Adapters, AppliedAdapter, Update, key_of
from engine.diffusion.families.family import ModelFamily
from engine.diffusion.loading.changes.layers import Known, layers_of, text_layers
from engine.diffusion.loading.lora_file import LoraFile
from engine.diffusion.loading.merging import AppliedLora, is_merged, merged
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.row_updates import RowUpdates
from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import LORAS

_log = logging.getLogger(__name__)
_MOST_SHARE = 0.25
"""The most that the tensors of a model's adapters may take, as a share of the weights that they
change. Beyond it they are merged: they would cost much of what the base costs."""
_MOST_BY_ROW = 8
"""Each adapter reads and writes the outputs of its layers once more, however low its rank: eight of
rank 1 cost 1.6 times the layer alone. The rows of neighbours wait for that."""


@dataclass(frozen=True, slots=True)
class Networks:
    """The networks that a LoRA changes. They are equal only if they are the same objects."""

    unet: Any
    """The network that denoises."""
    family: ModelFamily
    text_encoders: tuple[nn.Module, ...] = ()
    adapters: Adapters = ()
    """Those that are added to that network by row."""

    @property
    def key(self) -> Hashable:
        """Equal for the same networks and adapters; it does not keep them in memory."""
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
    """The networks changed by the LoRA of that name; one for which it has no layers stays the same.

    Raises CheckpointUnavailable if the file is missing, damaged or has layers for none of them.
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


def _known(networks: Networks) -> tuple[Known, list[Known]]:
    """The layers of the network that denoises, and of each text encoder."""
    texts = [
        layers_of(encoder, partial(text_layers, at=at))
        for at, encoder in enumerate(networks.text_encoders)
    ]
    return layers_of(networks.unet, networks.family.layers), texts


def _require_some(file: LoraFile, known: set[str]) -> None:
    """Raises CheckpointUnavailable if the model has none of the layers; logs how many it lacks."""
    unknown = sum(name not in known for name in file.layers)
    if unknown == len(file.layers):
        raise CheckpointUnavailable(
            f"none of the {unknown} layers of {file.name} is one of this model: "
            "it was made for a model of another family"
        )
    if unknown:
        _log.info(
            "layers of a LoRA left out: the model has no such",
            extra={"action": "lora", "file": file.name, "count": unknown},
        )


def _with_unet(
    store: ModelStore,
    networks: Networks,
    lora: AppliedLora,
    *,
    file: LoraFile,
    known: Known,
) -> Networks:
    """The networks with one more LoRA in the one that denoises: added by row, or all merged."""
    unet = networks.unet
    if not file.changes(known):
        return networks
    sizes = file.row_sizes(known, unet)
    if sizes and _can_have(unet, sizes) and _is_low(networks, sizes):
        adapter = _adapter(store, unet, lora, file=file, known=known)
        added = AppliedAdapter(adapter, lora.strength)
        return replace(networks, adapters=(*networks.adapters, added))
    before = (
        AppliedLora(each.adapter.path, each.adapter.identity, each.strength)
        for each in networks.adapters
    )
    return replace(networks, unet=merged(store, unet, (*before, lora), known), adapters=())


def _can_have(unet: Any, layers: Iterable[str]) -> bool:
    """Whether adapters can be added to these layers of a network by row."""
    updates: RowUpdates | None = getattr(unet, "row_updates", None)
    return updates is not None and not is_merged(unet) and updates.cover(layers)


def _is_low(networks: Networks, sizes: Mapping[str, int]) -> bool:
    """Whether all adapters are few, and small beside the weights that they change."""
    applied = [each.adapter for each in networks.adapters]
    if len(applied) >= _MOST_BY_ROW:
        return False
    shapes = _shapes(networks.unet, set(sizes).union(*(adapter.layers for adapter in applied)))
    size = sum(sizes.values()) + sum(adapter.size for adapter in applied)
    return size <= _MOST_SHARE * sum(map(math.prod, shapes.values()))


def _shapes(unet: Any, layers: Iterable[str]) -> dict[str, torch.Size]:
    return {name: unet.get_parameter(f"{name}.weight").shape for name in layers}


def _adapter(
    store: ModelStore, unet: Any, lora: AppliedLora, *, file: LoraFile, known: Known
) -> Adapter:
    """What a file adds, from the store if a network of the same shapes has asked for it."""
    sizes: Mapping[str, int] = file.row_sizes(known, unet) or {}
    shapes = _shapes(unet, sizes)

    def create() -> Adapter:
        store.make_room(sum(sizes.values()) * next(unet.parameters()).itemsize)
        layers: defaultdict[str, tuple[Update, ...]] = defaultdict(tuple)
        for name, update in file.row_updates(known, unet):
            layers[name] += (update,)
        return Adapter(lora.path, lora.identity, dict(layers))

    return store.get_or_create(("adapter", lora.identity, frozenset(shapes.items())), create)
