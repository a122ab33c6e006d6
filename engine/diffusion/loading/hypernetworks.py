"""Reads hypernetworks: small networks that change what attention layers attend to.

Their files are those of the WebUI: pickled dictionaries, read by the reader of torch that makes
tensors, numbers and texts and calls no code. Under the width of what a network changes there are
the weights of two, one for keys and one for values; beside them stands how they are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from engine.diffusion.loading.weights import first_line
from engine.errors import CheckpointUnavailable

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leakyrelu": nn.LeakyReLU,
    "elu": nn.ELU,
    "swish": nn.Hardswish,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softsign": nn.Softsign,
    "mish": nn.Mish,
}
_NO_ACTIVATION = "linear"
_MOST_LAYERS = 64


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Hypernetwork:
    """The networks for keys and for values, by the width of what they change."""

    by_width: Mapping[int, tuple[nn.Module, nn.Module]]


def read_hypernetwork(path: Path, device: torch.device) -> Hypernetwork:
    """The networks on the device; raises CheckpointUnavailable, which says what is wrong."""
    stored, dtype = _stored(path), torch.float16 if device.type == "cuda" else torch.float32
    form = _Form.of(path.name, stored)
    found: dict[int, tuple[nn.Module, nn.Module]] = {}
    for width, pair in stored.items():
        if not isinstance(width, int):
            continue
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise CheckpointUnavailable(f"{path.name} has no two networks for the width {width}")
        keys, values = (form.network(each, width) for each in pair)
        found[width] = keys.to(device, dtype), values.to(device, dtype)
    if not found:
        raise CheckpointUnavailable(f"{path.name} is no hypernetwork: it has no networks by width")
    return Hypernetwork(found)


def _stored(path: Path) -> Mapping[Any, Any]:
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever a damaged file leads it to
        raise CheckpointUnavailable(
            f"{path.name} cannot be read as a hypernetwork, is damaged or cut short: "
            f"{first_line(error)}"
        ) from error
    if not isinstance(stored, Mapping):
        raise CheckpointUnavailable(f"{path.name} is no hypernetwork: it is no dictionary")
    return stored


@dataclass(frozen=True, slots=True)
class _Form:
    """What the networks of one file have in common."""

    name: str
    activation: type[nn.Module] | None
    activates_output: bool

    @classmethod
    def of(cls, name: str, stored: Mapping[Any, Any]) -> Self:
        activation = stored.get("activation_func") or _NO_ACTIVATION
        if activation != _NO_ACTIVATION and activation not in _ACTIVATIONS:
            known = ", ".join((_NO_ACTIVATION, *_ACTIVATIONS))
            raise CheckpointUnavailable(
                f"{name} has the activation {str(activation)[:40]!r}; {known} are supported"
            )
        return cls(name, _ACTIVATIONS.get(activation), bool(stored.get("activate_output")))

    def network(self, weights: object, width: int) -> nn.Sequential:
        """Linear layers, each but the last with an activation, and norms as they are stored."""
        layers: list[nn.Module] = []
        pairs = list(_pairs(weights, f"{self.name}, width {width}"))
        last = max((at for at, (weight, _) in enumerate(pairs) if weight.ndim == 2), default=0)
        given = width
        for at, (weight, bias) in enumerate(pairs):
            if weight.shape[-1] != given or bias.shape != weight.shape[:1]:
                raise CheckpointUnavailable(
                    f"{self.name}: a layer for the width {width} is {tuple(weight.shape)}, and the "
                    f"one before it gives {given}"
                )
            taken, given = given, len(weight)
            if weight.ndim == 1:
                layers.append(_with(nn.LayerNorm(given, device="meta"), weight, bias))
                continue
            layers.append(_with(nn.Linear(taken, given, device="meta"), weight, bias))
            if self.activation and (at != last or self.activates_output):
                layers.append(self.activation())
        if given != width:
            raise CheckpointUnavailable(
                f"{self.name}: a network for the width {width} gives {given}"
            )
        return nn.Sequential(*layers).eval().requires_grad_(False)


def _with(layer: nn.Module, weight: Tensor, bias: Tensor) -> nn.Module:
    layer.load_state_dict({"weight": weight.float(), "bias": bias.float()}, assign=True)
    return layer


def _pairs(weights: object, where: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Weight and bias of each layer, in the order in which they are stored."""
    if not isinstance(weights, Mapping) or not all(map(_is_tensor, weights.values())):
        raise CheckpointUnavailable(f"{where}: the weights of a network are no tensors by name")
    names = [str(each) for each in weights if str(each).endswith(".weight")]
    if not 0 < len(names) <= _MOST_LAYERS:
        raise CheckpointUnavailable(
            f"{where}: a network has {len(names)} layers, 1 to {_MOST_LAYERS} are taken"
        )
    for name in names:
        weight, bias = weights[name], weights.get(f"{name.removesuffix('weight')}bias")
        if bias is None or weight.ndim not in {1, 2}:
            raise CheckpointUnavailable(f"{where}: {name[:40]} is no layer with a bias")
        yield weight, bias


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
