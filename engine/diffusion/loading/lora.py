"""LoRA: low-rank differences, merged into copies of the weights that they touch.

Hu et al. 2021 (arXiv:2106.09685): W + strength * alpha / rank * up @ down. Read by the names that
kohya's scripts write, in diffusers' or the single file's block names, and by diffusers' own.
"""

from __future__ import annotations

import copy
import logging
import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from engine.diffusion.loading import layout
from engine.diffusion.loading.store import Identity, ModelStore, identity_of
from engine.diffusion.loading.unets import prepared
from engine.diffusion.loading.weights import Weights
from engine.diffusion.text.text_encoders import TextEncoder
from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import LORAS

M = TypeVar("M", bound=nn.Module)

_log = logging.getLogger(__name__)
_PART = re.compile(
    r"[._](?:lora\.|lora_linear_layer\.|lora_)(down|up|mid|A|B)(?:\.default)?\.weight$"
)
_ROLES = {"A": "down", "B": "up"}
_ALPHA = ".alpha"
_OTHER_KINDS = {"hada_": "a LoHa", "lokr_": "a LoKr", "dora_scale": "a DoRA", "oft_": "an OFT"}
_OLD_ATTENTION = re.compile(r"\.processor\.to_(q|k|v|out)$")
_UNET_PREFIXES = ("unet.", "")
_TEXT_PREFIXES = (
    (("lora_te_", "lora_te1_"), "text_encoder."),
    (("lora_te2_",), "text_encoder_2."),
)


@dataclass(frozen=True, slots=True)
class Use:
    """A LoRA's file and how strongly it counts."""

    path: Path
    identity: Identity
    strength: float


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What a merged module was made of. Merging more starts from the weights of the base again, so
    that they are rounded once.
    """

    base: Any
    uses: tuple[Use, ...]
    merged: weakref.ref[nn.Module]

    def __deepcopy__(self, _memo: Any) -> Origin:
        return self


class LoraFile:
    """The layers of a LoRA's file, not read yet."""

    def __init__(self, path: Path) -> None:
        self.weights = Weights(path)
        self.layers: dict[str, dict[str, str]] = {}
        for key in self.weights.shapes:
            self._refuse_other_kind(key)
            if found := _PART.search(key):
                role = _ROLES.get(found[1], found[1])
                self._layer(key[: found.start()])[role] = key
            elif key.endswith(_ALPHA):
                self._layer(key.removesuffix(_ALPHA))["alpha"] = key
        self.layers = {
            name: keys for name, keys in self.layers.items() if {"up", "down"} <= set(keys)
        }
        if not self.layers:
            raise CheckpointUnavailable(f"{path.name} is no LoRA: it has no pair of up and down")

    def _layer(self, name: str) -> dict[str, str]:
        """Of old files of diffusers, too, which name the processor of an attention."""
        name = _OLD_ATTENTION.sub(lambda at: f".to_{at[1]}", name)
        name = f"{name}.0" if name.endswith(".to_out") else name
        return self.layers.setdefault(name, {})

    def _refuse_other_kind(self, key: str) -> None:
        for mark, kind in _OTHER_KINDS.items():
            if mark in key:
                raise CheckpointUnavailable(
                    f"{self.weights.name} is {kind}, which is not supported yet; LoRA and LoCon are"
                )


@dataclass(frozen=True, slots=True)
class Networks:
    """What a LoRA changes. Equal ones are the same ones."""

    unet: Any
    text_encoders: tuple[TextEncoder, ...] = ()


def with_lora(
    store: ModelStore, name: str, networks: Networks, strengths: tuple[float, float]
) -> Networks:
    """Both changed by the LoRA of that name, by the strength for each; what it has nothing for
    stays the same.

    Raises CheckpointUnavailable where the file is missing, damaged or fits neither.
    """
    path = store.models.path(LORAS, name)
    identity = identity_of(path)
    of_unet, of_text = (Use(path, identity, strength) for strength in strengths)
    unet, encoders = networks.unet, networks.text_encoders
    unet_known = unet_layers(unet)
    text_known = [text_layers(encoder, at) for at, encoder in enumerate(encoders)]
    _require_some(LoraFile(path), set(unet_known).union(*text_known))
    if of_unet.strength:
        unet = _merged(store, unet, of_unet, unet_known)
    if of_text.strength:
        pairs = zip(encoders, text_known, strict=True)
        encoders = tuple(_merged(store, encoder, of_text, known) for encoder, known in pairs)
    return Networks(unet, encoders)


def _require_some(file: LoraFile, known: set[str]) -> None:
    """Some of the file's layers are the model's. The rest is counted in the log."""
    unknown = sum(name not in known for name in file.layers)
    if unknown == len(file.layers):
        raise CheckpointUnavailable(
            f"none of the {unknown} layers of {file.weights.name} is one of this model: "
            "it was made for another kind of Stable Diffusion"
        )
    if unknown:
        _log.info(
            "layers of a LoRA left out: the model has no such",
            extra={"action": "lora", "file": file.weights.name, "count": unknown},
        )


def unet_layers(unet: Any) -> dict[str, str]:
    """The UNet's own layer for every name that a LoRA may have for it."""
    layers = list(_layers(unet))
    known = {f"{prefix}{name}": name for prefix in _UNET_PREFIXES for name in layers}
    known |= {f"lora_unet_{_underscored(name)}": name for name in layers}
    in_file = layout.unet_names(layers, unet.config)
    return known | {f"lora_unet_{_underscored(key)}": name for name, key in in_file.items()}


def text_layers(encoder: TextEncoder, at: int) -> dict[str, str]:
    """The same of the text encoder in that place."""
    kohya, dotted = _TEXT_PREFIXES[at]
    known = {}
    for name in _layers(encoder):
        known[f"{dotted}{name}"] = name
        known |= {f"{prefix}{_underscored(name)}": name for prefix in kohya}
    return known


def _layers(module: nn.Module) -> Iterator[str]:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            yield name


def _underscored(name: str) -> str:
    return name.replace(".", "_")


def _merged(store: ModelStore, module: M, use: Use, known: Mapping[str, str]) -> M:
    """The module with one LoRA more, made once for all who want the same; itself where the file
    has nothing for it.
    """
    if not any(name in known for name in LoraFile(use.path).layers):
        return module
    origin: Origin = getattr(module, "origin", None) or Origin(module, (), weakref.ref(module))
    if origin.merged() is not module:
        # A copy of a merged one, with something else about it: merge into that.
        origin = Origin(module, (), weakref.ref(module))
    base, uses = origin.base, (*origin.uses, use)

    def make() -> Any:
        merged = _merge(base, uses, known)
        return merged if isinstance(merged, TextEncoder) else prepared(merged, store.unets)

    made: M = store.made(("lora", id(base), uses), make)
    return made


def _merge(base: Any, uses: tuple[Use, ...], known: Mapping[str, str]) -> Any:
    merged: dict[str, Tensor] = {}
    rounded = torch.float16 if isinstance(base, TextEncoder) else None
    for use in uses:
        for name, difference in _differences(base, use, known):
            weight = merged.get(name)
            if weight is None:
                weight = base.get_parameter(name).float()
            merged[name] = weight + difference
    copied = sharing_copy(base)
    for name, weight in merged.items():
        layer, _, last = name.rpartition(".")
        dtype = base.get_parameter(name).dtype
        final = (weight if rounded is None else weight.to(rounded)).to(dtype)
        setattr(copied.get_submodule(layer), last, nn.Parameter(final, requires_grad=False))
    # Not a module's attribute in torch's sense: the base is no part of the copy.
    object.__setattr__(copied, "origin", Origin(base, uses, weakref.ref(copied)))
    return copied


def sharing_copy(module: M) -> M:
    """A copy of a module whose weights are the module's own, until one is put in its place."""
    shared: dict[int, Any] = {id(each): each for each in module.parameters()}
    shared |= {id(each): each for each in module.buffers()}
    copied = copy.deepcopy(module, shared)
    if isinstance(copied, TextEncoder):
        copied.renew_serial()
    return copied


def _differences(
    base: nn.Module, use: Use, known: Mapping[str, str]
) -> Iterator[tuple[str, Tensor]]:
    """Each weight that the LoRA touches, and what is to be added to it, in float32."""
    file = LoraFile(use.path)
    with file.weights.opened() as read:
        for name, keys in file.layers.items():
            if name not in known:
                continue
            weight_name = f"{known[name]}.weight"
            weight = base.get_parameter(weight_name)
            parts = {role: read(key).to(weight.device, torch.float32) for role, key in keys.items()}
            product = _product(parts)
            if product.numel() != weight.numel():
                raise CheckpointUnavailable(
                    f"{use.path.name}: {name} is of a weight of {tuple(product.shape)}, and this "
                    f"model's is {tuple(weight.shape)}"
                )
            rank = len(parts["down"])
            alpha = float(parts["alpha"]) if "alpha" in parts else rank
            scale = use.strength * alpha / rank
            yield weight_name, scale * product.reshape(weight.shape)


def _product(parts: Mapping[str, Tensor]) -> Tensor:
    """up @ down, of convolutions too; with a `mid` the kernel is between them (Yeh et al. 2023,
    arXiv:2309.14859, section 3.1).
    """
    up, down = parts["up"], parts["down"]
    if (mid := parts.get("mid")) is not None:
        return torch.einsum("or,rshw,si->oihw", up.flatten(1), mid, down.flatten(1))
    return (up.flatten(1) @ down.flatten(1)).reshape(len(up), *down.shape[1:])
