"""The layers of a network, by every name that the file of a LoRA may use.

Training programs name a layer as in the network's own file or as in diffusers. The name has dots,
or underscores as in kohya's scripts, and begins with one of a few prefixes.
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
    # Training programs for Flux use both 2 and 3 for the second encoder.
    (("text_encoder_2.",), ("lora_te2_", "lora_te3_")),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A layer of a network, and its rows within the layer of a file."""

    layer: str
    rows: tuple[int, int] | None = None
    """The start and the end of the rows. None: all rows."""
    swapped: bool = False
    """Whether the two halves of the rows are swapped in the file."""

    def own(self, whole: Tensor) -> Tensor:
        """Return the rows of this layer from a tensor with the rows of the file's layer."""
        part = whole if self.rows is None else whole[slice(*self.rows)]
        return torch.cat(part.chunk(2)[::-1]) if self.swapped else part

    def stored(self, own: Tensor) -> Tensor:
        """Return the rows of this layer in the order of the file."""
        return torch.cat(own.chunk(2)[::-1]) if self.swapped else own


Places: TypeAlias = tuple[Place, ...]
"""The layers of a network that are one layer in a file, in the order of the file's rows."""
Known: TypeAlias = Mapping[str, Places]
"""The layers of a network, by their names in files."""


_FOUND: WeakKeyDictionary[nn.Module, Known] = WeakKeyDictionary()
"""The layers of networks in memory. A search for every job would take milliseconds."""


def layers_of(network: nn.Module, find: Callable[[Any], Known]) -> Known:
    """Return the layers of a network. `find` is called once for each network."""
    known = _FOUND.get(network)
    if known is None:
        known = _FOUND[network] = find(network)
    return known


def unet_layers(unet: Any) -> Known:
    """Return the layers of a UNet, by their names in files."""
    names = list(_changeable(unet))
    found: dict[str, Places] = {}
    for name, key in (*((name, name) for name in names), *_in_single_file(unet, names)):
        found |= dict.fromkeys(_spellings(key, *_UNET), (Place(name),))
    return found


def _in_single_file(unet: Any, names: list[str]) -> Iterable[tuple[str, str]]:
    return layout.unet_names(names, unet.config).items()


def text_layers(encoder: nn.Module, at: int) -> Known:
    """Return the layers of a text encoder, by their names in files.

    `at` is 0 for the first encoder of the model and 1 for the second.
    """
    dotted, underscored = _TEXT[at]
    found: dict[str, Places] = {}
    for name in _changeable(encoder):
        key, kind = name, ""
        if isinstance(encoder, LanguageModel):
            key, kind = encoder.layer_key(name), encoder.checkpoint_name
        elif isinstance(encoder, TextEncoder):
            kind = encoder.spec.embedding_key
        prefixes = (*dotted, f"text_encoders.{kind}.transformer.")
        found |= dict.fromkeys(_spellings(key, prefixes, underscored), (Place(name),))
    return found


def transformer_layers(network: Any, file_keys: Callable[[Sequence[str]], KeyMap]) -> Known:
    """Return the layers of a transformer, by their names in files.

    One layer of a file may be several layers of the network. `file_keys` maps weights to the
    tensors in the first publisher's file.
    """
    names = list(_changeable(network))
    found: dict[str, Places] = {}
    for name in names:
        found |= dict.fromkeys(_spellings(name, *_TRANSFORMER), (Place(name),))
    parts: defaultdict[str, list[tuple[str, StoredTensor]]] = defaultdict(list)
    for name, stored in file_keys([f"{each}.weight" for each in names]).items():
        parts[stored.key.removesuffix(".weight")].append((name.removesuffix(".weight"), stored))
    for key, together in parts.items():
        places = tuple(_places(network, together))
        found |= dict.fromkeys(_spellings(key, *_TRANSFORMER), places)
    return found


def _places(network: Any, together: list[tuple[str, StoredTensor]]) -> Iterator[Place]:
    """Yield the places of the network's layers that are one layer in the file."""
    if len(together) == 1:
        ((name, stored),) = together
        yield Place(name, swapped=stored.swapped)
        return
    together = sorted(together, key=lambda each: each[1].third or (each[1].rows or (0,))[0])
    rows = [len(network.get_parameter(f"{name}.weight")) for name, _ in together]
    bounds = pairwise(accumulate(rows, initial=0))
    for (name, stored), span in zip(together, bounds, strict=True):
        yield Place(name, span, stored.swapped)


def _spellings(name: str, dotted: Iterable[str], underscored: Iterable[str]) -> Iterator[str]:
    yield from (f"{prefix}{name}" for prefix in dotted)
    flat = name.replace(".", "_")
    yield from (f"{prefix}{flat}" for prefix in underscored)


def _changeable(module: nn.Module) -> Iterator[str]:
    """Yield the names of the layers with a weight that a file may change."""
    for name, layer in module.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        if "weight" in own and not isinstance(layer, nn.Embedding):
            yield name
