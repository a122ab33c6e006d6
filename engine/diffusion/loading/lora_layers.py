"""Finds the layers of a network by the names that LoRA files use.

A LoRA file names layers as the network's own file does or as diffusers does, with dots or (as in
kohya's scripts) with underscores. Each name begins with one of several prefixes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from engine.diffusion.loading import layout
from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.text.language_models import LanguageModel
from engine.diffusion.text.text_encoders import TextEncoder

_UNET = (("unet.", "diffusion_model.", ""), ("lora_unet_", "lycoris_"))
_TRANSFORMER = (
    ("transformer.", "diffusion_model.", "model.diffusion_model.", "base_model.model.", ""),
    ("lora_unet_", "lora_transformer_", "lycoris_"),
)
"""The prefixes of names with dots, and the prefixes of names with underscores."""
_TEXT = (
    (("text_encoder.",), ("lora_te_", "lora_te1_")),
    # Some training programs for Flux number the second encoder 2, and others 3.
    (("text_encoder_2.",), ("lora_te2_", "lora_te3_")),
)


@dataclass(frozen=True, slots=True)
class LayerRows:
    """A layer of a network, and its position in a layer of a file."""

    layer: str
    rows: tuple[int, int] | None = None
    """The start and the end of this layer's rows in the file's layer. None: all rows."""
    swapped: bool = False
    """Whether the file stores the second half of these rows before the first half."""

    def own(self, whole: Tensor) -> Tensor:
        """Return this layer's rows of `whole`, which has all rows of the file's layer."""
        part = whole if self.rows is None else whole[slice(*self.rows)]
        return torch.cat(part.chunk(2)[::-1]) if self.swapped else part

    def stored(self, own: Tensor) -> Tensor:
        """Return `own`, a tensor of this layer, with its rows in the file's order."""
        return torch.cat(own.chunk(2)[::-1]) if self.swapped else own


JoinedLayers: TypeAlias = tuple[LayerRows, ...]
"""The layers of a network that a file stores as one layer, in the order of the file's rows."""
LayersByName: TypeAlias = Mapping[str, JoinedLayers]
"""The layers of a network, by their names in files."""


_KNOWN_LAYERS: WeakKeyDictionary[nn.Module, LayersByName] = WeakKeyDictionary()
"""The results of `layers_of`. A search at each job would take milliseconds."""


def layers_of(network: nn.Module, find: Callable[[Any], LayersByName]) -> LayersByName:
    """Return the layers of a network. `find` is called once for each network."""
    known = _KNOWN_LAYERS.get(network)
    if known is None:
        known = _KNOWN_LAYERS[network] = find(network)
    return known


def unet_layers(unet: Any) -> LayersByName:
    names = list(_changeable(unet))
    found: dict[str, JoinedLayers] = {}
    for name, key in (*((name, name) for name in names), *_in_single_file(unet, names)):
        found |= dict.fromkeys(_spellings(key, *_UNET), (LayerRows(name),))
    return found


def _in_single_file(unet: Any, names: list[str]) -> Iterable[tuple[str, str]]:
    return layout.unet_names(names, unet.config).items()


def text_layers(encoder: nn.Module, at: int) -> LayersByName:
    """Return the layers of the model's first (`at` = 0) or second (`at` = 1) text encoder."""
    dotted, underscored = _TEXT[at]
    found: dict[str, JoinedLayers] = {}
    for name in _changeable(encoder):
        key, kind = name, ""
        if isinstance(encoder, LanguageModel):
            key, kind = encoder.layer_key(name), encoder.checkpoint_name
        elif isinstance(encoder, TextEncoder):
            kind = encoder.spec.embedding_key
        prefixes = (*dotted, f"text_encoders.{kind}.transformer.")
        found |= dict.fromkeys(_spellings(key, prefixes, underscored), (LayerRows(name),))
    return found


def transformer_layers(network: Any, file_keys: Callable[[Sequence[str]], KeyMap]) -> LayersByName:
    """Return the layers of a transformer.

    `file_keys` maps names of weights to the tensors in the file of the model's authors.
    """
    names = list(_changeable(network))
    found: dict[str, JoinedLayers] = {}
    for name in names:
        found |= dict.fromkeys(_spellings(name, *_TRANSFORMER), (LayerRows(name),))
    parts: defaultdict[str, list[tuple[str, StoredTensor]]] = defaultdict(list)
    for name, stored in file_keys([f"{each}.weight" for each in names]).items():
        parts[stored.key.removesuffix(".weight")].append((name.removesuffix(".weight"), stored))
    for key, together in parts.items():
        joined = tuple(_layer_rows(network, together))
        found |= dict.fromkeys(_spellings(key, *_TRANSFORMER), joined)
    return found


def _layer_rows(network: Any, together: list[tuple[str, StoredTensor]]) -> Iterator[LayerRows]:
    """Yield the layers in `together`, which the file stores as one layer, with their rows."""
    if len(together) == 1:
        ((name, stored),) = together
        yield LayerRows(name, swapped=stored.swapped)
        return
    together = sorted(together, key=lambda each: each[1].third or (each[1].rows or (0,))[0])
    rows = [len(network.get_parameter(f"{name}.weight")) for name, _ in together]
    bounds = pairwise(accumulate(rows, initial=0))
    for (name, stored), span in zip(together, bounds, strict=True):
        yield LayerRows(name, span, stored.swapped)


def _spellings(name: str, dotted: Iterable[str], underscored: Iterable[str]) -> Iterator[str]:
    yield from (f"{prefix}{name}" for prefix in dotted)
    flat = name.replace(".", "_")
    yield from (f"{prefix}{flat}" for prefix in underscored)


def _changeable(module: nn.Module) -> Iterator[str]:
    """Yield the names of the layers whose weight a LoRA can change."""
    for name, layer in module.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        if "weight" in own and not isinstance(layer, nn.Embedding):
            yield name
