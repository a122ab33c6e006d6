"""The file of a LoRA: the layers that it changes, and their matrices.

The keys in a file are those of kohya's scripts, with block names of diffusers or of the single
file, or diffusers' keys.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.diffusion.loading import layout
from engine.diffusion.loading.weights import Weights
from engine.diffusion.text.text_encoders import TextEncoder
from engine.errors import CheckpointUnavailable

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


@dataclass(frozen=True, slots=True, eq=False)
class Matrices:
    """The matrices of one layer in float32: its weight changes by `alpha / rank * up @ down`.

    Those of a convolution have its kernel in `down`, or in a `mid` between 1 x 1 convolutions:
    Yeh et al. 2023 (arXiv:2309.14859), section 3.1.
    """

    down: Tensor
    up: Tensor
    mid: Tensor | None
    alpha: float

    @property
    def rank(self) -> int:
        return len(self.down)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the weight that they change, as the file has it."""
        kernel = self.down.shape[2:] if self.mid is None else self.mid.shape[2:]
        return (*self.up.shape[:1], *self.down.shape[1:2], *kernel)

    def fit(self, weight: Tensor) -> bool:
        """Whether they can be multiplied, and change a weight of that size."""
        parts = [self.up, self.down] if self.mid is None else [self.up, self.mid, self.down]
        if any(each.ndim < 2 or not each.numel() for each in parts):
            return False
        inner = [self.up.flatten(1).shape[1], *(() if self.mid is None else self.mid.shape[:2])]
        return (
            all(each == self.rank for each in inner)
            and len(self.up) == len(weight)
            and math.prod(self.shape) == weight.numel()
        )

    def product(self) -> Tensor:
        """The change of the weight, without alpha and rank."""
        up, down = self.up, self.down
        if self.mid is not None:
            return torch.einsum("or,rshw,si->oihw", up.flatten(1), self.mid, down.flatten(1))
        return (up.flatten(1) @ down.flatten(1)).reshape(self.shape)

    def with_kernel_in_down(self) -> Tensor:
        """`down` with the kernel in it: (rank, in) or (rank, in, height, width)."""
        if self.mid is None:
            return self.down
        return torch.einsum("rshw,si->rihw", self.mid, self.down.flatten(1))


class LoraFile:
    """The layers in the file of a LoRA. Their weights are not read yet."""

    def __init__(self, path: Path) -> None:
        self._weights = Weights(path)
        self.name = self._weights.name
        self.layers: dict[str, dict[str, str]] = {}
        for key in self._weights.shapes:
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

    def ranks(self, known: Mapping[str, str]) -> Counter[str]:
        """The rank of each layer among the `known`, by its name in the module."""
        ranks: Counter[str] = Counter()
        for name, keys in self.layers.items():
            if name in known:
                ranks[known[name]] += next(iter(self._weights.shapes[keys["down"]]), 0)
        return ranks

    def read(self, known: Mapping[str, str], module: nn.Module) -> Iterator[tuple[str, Matrices]]:
        """The matrices of each layer among the `known`, and its name in the module.

        Raises CheckpointUnavailable if they do not fit the weight that they change.
        """
        with self._weights.opened() as read:
            for name, keys in self.layers.items():
                if name not in known:
                    continue
                weight = module.get_parameter(f"{known[name]}.weight")
                tensors = {
                    role: read(key).to(weight.device, torch.float32) for role, key in keys.items()
                }
                matrices = _matrices(tensors)
                if not matrices.fit(weight):
                    raise CheckpointUnavailable(
                        f"{self.name}: {name} is of a weight of {matrices.shape}, and this "
                        f"model's is {tuple(weight.shape)}"
                    )
                yield known[name], matrices

    def _layer(self, name: str) -> dict[str, str]:
        """The keys of a layer, whose name may have the form of an old version of diffusers."""
        name = _OLD_ATTENTION.sub(lambda at: f".to_{at[1]}", name)
        name = f"{name}.0" if name.endswith(".to_out") else name
        return self.layers.setdefault(name, {})

    def _refuse_other_kind(self, key: str) -> None:
        for mark, kind in _OTHER_KINDS.items():
            if mark in key:
                raise CheckpointUnavailable(
                    f"{self.name} is {kind}, which is not supported yet; LoRA and LoCon are"
                )


def _matrices(tensors: Mapping[str, Tensor]) -> Matrices:
    down = tensors["down"]
    alpha = float(tensors["alpha"]) if "alpha" in tensors else float(down.shape[0])
    return Matrices(down, tensors["up"], tensors.get("mid"), alpha)


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
