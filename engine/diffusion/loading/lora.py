"""LoRA: low-rank differences, merged into copies of the weights that they change.

Hu et al. 2021 (arXiv:2106.09685): W + strength * alpha / rank * up @ down. The keys in a file are
those of kohya's scripts, with block names of diffusers or of the single file, or diffusers' keys.
"""

from __future__ import annotations

import copy
import logging
import re
import weakref
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from engine.diffusion.loading import layout
from engine.diffusion.loading.store import Identity, ModelStore
from engine.diffusion.loading.unets import prepared
from engine.diffusion.loading.weights import Weights
from engine.diffusion.text.text_encoders import TextEncoder
from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import LORAS

M = TypeVar("M", bound=nn.Module)

_log = logging.getLogger(__name__)
_MATRIX = re.compile(
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


class LoraFile:
    """The layers in the file of a LoRA. Their weights are not read yet."""

    def __init__(self, path: Path) -> None:
        self.weights = Weights(path)
        self.layers: dict[str, dict[str, str]] = {}
        for key in self.weights.shapes:
            self._refuse_other_kind(key)
            if found := _MATRIX.search(key):
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
        """The keys of a layer, whose name may have the form of an old version of diffusers."""
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
    """The networks that a LoRA changes. They are equal only if they are the same objects."""

    unet: Any
    text_encoders: tuple[TextEncoder, ...] = ()

    @property
    def key(self) -> Hashable:
        """Equal for the same networks; it does not keep them in memory."""
        return tuple(weakref.ref(each) for each in (self.unet, *self.text_encoders))


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
    unet, encoders = networks.unet, networks.text_encoders
    unet_known = unet_layers(unet)
    text_known = [text_layers(encoder, at) for at, encoder in enumerate(encoders)]
    _require_some(LoraFile(path), set(unet_known).union(*text_known))
    if unet_strength:
        unet = _merged(store, unet, AppliedLora(path, identity, unet_strength), unet_known)
    if text_strength:
        lora = AppliedLora(path, identity, text_strength)
        pairs = zip(encoders, text_known, strict=True)
        encoders = tuple(_merged(store, encoder, lora, known) for encoder, known in pairs)
    return Networks(unet, encoders)


def _require_some(file: LoraFile, known: set[str]) -> None:
    """Raises CheckpointUnavailable if the model has none of the layers; logs how many it lacks."""
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
    """The layers of a UNet by every name that the file of a LoRA may have for them."""
    layers = list(_layers(unet))
    known = {f"{prefix}{name}": name for prefix in _UNET_PREFIXES for name in layers}
    known |= {f"lora_unet_{_underscored(name)}": name for name in layers}
    in_file = layout.unet_names(layers, unet.config)
    return known | {f"lora_unet_{_underscored(key)}": name for name, key in in_file.items()}


def text_layers(encoder: TextEncoder, at: int) -> dict[str, str]:
    """The same for a text encoder, the first of its model (0) or the second (1)."""
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


def _merged(store: ModelStore, module: M, lora: AppliedLora, known: Mapping[str, str]) -> M:
    """The module with one more LoRA, from the store if it has been merged before.

    It is the module itself if the file has no layers for it.
    """
    if not any(name in known for name in LoraFile(lora.path).layers):
        return module
    origin: Origin = getattr(module, "origin", None) or Origin(module, (), weakref.ref(module))
    if origin.merged() is not module:
        # It is a changed copy of a merged module, so the LoRA is merged into the copy.
        origin = Origin(module, (), weakref.ref(module))
    base, loras = origin.base, (*origin.loras, lora)

    def create() -> Any:
        merged = _merge(base, loras, known)
        return merged if isinstance(merged, TextEncoder) else prepared(merged, store.unets)

    found: M = store.get_or_create(("lora", id(base), loras), create)
    return found


def _merge(base: Any, loras: tuple[AppliedLora, ...], known: Mapping[str, str]) -> Any:
    merged: dict[str, Tensor] = {}
    rounded_to = torch.float16 if isinstance(base, TextEncoder) else None
    for lora in loras:
        for name, difference in _differences(base, lora, known):
            weight = merged.get(name)
            if weight is None:
                weight = base.get_parameter(name).float()
            merged[name] = weight + difference
    copied = sharing_copy(base)
    for name, weight in merged.items():
        layer, _, last = name.rpartition(".")
        dtype = base.get_parameter(name).dtype
        final = (weight if rounded_to is None else weight.to(rounded_to)).to(dtype)
        setattr(copied.get_submodule(layer), last, nn.Parameter(final, requires_grad=False))
    copied.origin = Origin(base, loras, weakref.ref(copied))
    return copied


def sharing_copy(module: M) -> M:
    """A copy of a module that shares all its weights, any of which may be replaced in the copy."""
    shared: dict[int, Any] = {id(each): each for each in module.parameters()}
    shared |= {id(each): each for each in module.buffers()}
    copied = copy.deepcopy(module, shared)
    if isinstance(copied, TextEncoder):
        copied.renew_serial()
    return copied


def _differences(
    base: nn.Module, lora: AppliedLora, known: Mapping[str, str]
) -> Iterator[tuple[str, Tensor]]:
    """Each weight that the LoRA changes, and the difference to add to it, in float32."""
    file = LoraFile(lora.path)
    with file.weights.opened() as read:
        for name, keys in file.layers.items():
            if name not in known:
                continue
            weight_name = f"{known[name]}.weight"
            weight = base.get_parameter(weight_name)
            matrices = {
                role: read(key).to(weight.device, torch.float32) for role, key in keys.items()
            }
            product = _product(matrices)
            if product.numel() != weight.numel():
                raise CheckpointUnavailable(
                    f"{lora.path.name}: {name} is of a weight of {tuple(product.shape)}, and this "
                    f"model's is {tuple(weight.shape)}"
                )
            rank = len(matrices["down"])
            alpha = float(matrices["alpha"]) if "alpha" in matrices else rank
            scale = lora.strength * alpha / rank
            yield weight_name, scale * product.reshape(weight.shape)


def _product(matrices: Mapping[str, Tensor]) -> Tensor:
    """up @ down, also for convolutions. A `mid` between them has the convolution's kernel.

    Yeh et al. 2023 (arXiv:2309.14859), section 3.1.
    """
    up, down = matrices["up"], matrices["down"]
    if (mid := matrices.get("mid")) is not None:
        return torch.einsum("or,rshw,si->oihw", up.flatten(1), mid, down.flatten(1))
    return (up.flatten(1) @ down.flatten(1)).reshape(len(up), *down.shape[1:])
