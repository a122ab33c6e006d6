"""Hypernetworks: small networks that change the keys and values of a UNet's attention layers.

Hypernetworks are a method of the WebUI. The width of the context (text or picture) selects a pair
of networks: one for the keys and one for the values. The files are pickled dictionaries. They are
read with torch's `weights_only`, so no code of a file is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from zipfile import ZIP_STORED, ZipFile, is_zipfile

import torch
from torch import Tensor, nn

from engine.diffusion.loading.layers import PlainAttention, use_plain_attention
from engine.diffusion.loading.weights import first_line
from engine.diffusion.model import Model
from engine.diffusion.patches.variants import variant_of
from engine.errors import CheckpointUnavailable, EngineError
from engine.graph.models_folder import require_file

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
    """The networks for keys and for values, by the width of their inputs."""

    by_width: Mapping[int, tuple[nn.Module, nn.Module]]


def read_hypernetwork(path: Path, device: torch.device) -> Hypernetwork:
    """Load the networks onto the device. Raises CheckpointUnavailable for an invalid file."""
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
        raise CheckpointUnavailable(
            f"{path.name} is not a hypernetwork: it has no networks by width"
        )
    return Hypernetwork(found)


def _stored(path: Path) -> Mapping[Any, Any]:
    require_file(path)
    try:
        if is_zipfile(path):
            with ZipFile(path) as archive:
                if any(each.compress_type != ZIP_STORED for each in archive.infolist()):
                    # PyTorch compresses nothing. A small file could need all memory.
                    raise CheckpointUnavailable(f"{path.name} is compressed")
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointUnavailable:
        raise
    except Exception as error:  # torch raises many kinds of errors for a damaged file.
        raise CheckpointUnavailable(
            f"{path.name} cannot be read as a hypernetwork. It is damaged or incomplete: "
            f"{first_line(error)}"
        ) from error
    if not isinstance(stored, Mapping):
        raise CheckpointUnavailable(f"{path.name} is not a hypernetwork: it is not a dictionary")
    return stored


@dataclass(frozen=True, slots=True)
class _Form:
    """The structure that all networks of one file share."""

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
        """Return the linear layers and norms of a network, in the order in which they are stored.

        An activation follows each linear layer except the last one. If `activates_output`, an
        activation follows the last one too.
        """
        layers: list[nn.Module] = []
        pairs = list(_pairs(weights, f"{self.name}, width {width}"))
        last = max((at for at, (weight, _) in enumerate(pairs) if weight.ndim == 2), default=0)
        out_width = width
        for at, (weight, bias) in enumerate(pairs):
            if weight.shape[-1] != out_width or bias.shape != weight.shape[:1]:
                raise CheckpointUnavailable(
                    f"{self.name}: a layer for the width {width} has the shape "
                    f"{tuple(weight.shape)}, but the layer before it returns {out_width}"
                )
            in_width, out_width = out_width, len(weight)
            if weight.ndim == 1:
                layers.append(_with(nn.LayerNorm(out_width, device="meta"), weight, bias))
                continue
            layers.append(_with(nn.Linear(in_width, out_width, device="meta"), weight, bias))
            if self.activation and (at != last or self.activates_output):
                layers.append(self.activation())
        if out_width != width:
            raise CheckpointUnavailable(
                f"{self.name}: a network for the width {width} returns {out_width}"
            )
        return nn.Sequential(*layers).eval().requires_grad_(False)


def _with(layer: nn.Module, weight: Tensor, bias: Tensor) -> nn.Module:
    layer.load_state_dict({"weight": weight.float(), "bias": bias.float()}, assign=True)
    return layer


def _pairs(weights: object, where: str) -> Iterator[tuple[Tensor, Tensor]]:
    if not isinstance(weights, Mapping) or not all(map(_is_tensor, weights.values())):
        raise CheckpointUnavailable(
            f"{where}: the weights of a network must be a dictionary of contiguous floating-point "
            "tensors"
        )
    names = [str(each) for each in weights if str(each).endswith(".weight")]
    if not 0 < len(names) <= _MOST_LAYERS:
        raise CheckpointUnavailable(
            f"{where}: a network has {len(names)} layers, but must have 1 to {_MOST_LAYERS}"
        )
    for name in names:
        weight, bias = weights[name], weights.get(f"{name.removesuffix('weight')}bias")
        if bias is None or weight.ndim not in {1, 2}:
            raise CheckpointUnavailable(f"{where}: {name[:40]} is not a layer with a bias")
        yield weight, bias


def _is_tensor(value: object) -> bool:
    # A view with strides may be far larger than what is stored.
    return isinstance(value, Tensor) and value.is_floating_point() and value.is_contiguous()


@dataclass(frozen=True, slots=True)
class _Applied:
    """A hypernetwork at a strength. Copies of a UNet share this object."""

    network: Hypernetwork
    strength: float

    def __deepcopy__(self, _memo: Any) -> Self:
        return self

    def changed(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        pair = self.network.by_width.get(keys.shape[-1])
        if pair is None:
            return keys, values
        dtype = next(pair[0].parameters()).dtype
        more = (one(each.to(dtype)) for one, each in zip(pair, (keys, values), strict=True))
        first, second = (each.to(keys.dtype) * self.strength for each in more)
        return keys + first, values + second

    def patch(self, unet: Any) -> None:
        for layer in use_plain_attention(unet).modules():
            if isinstance(layer, PlainAttention):
                layer.changes = (*layer.changes, self)


def with_hypernetwork(model: Model, network: Hypernetwork, strength: float) -> Model:
    """Return the model with a changed copy of its UNet. The copy shares the UNet's weights.

    Equal settings give the same copy. With the strength 0, `model` is returned. Raises EngineError
    if the hypernetwork has no networks for the width of the model's texts.
    """
    if not strength:
        return model
    applied = _Applied(network, strength)
    unet = variant_of(model.unet, applied, applied.patch)
    width = unet.config.cross_attention_dim
    if width not in network.by_width:
        widths = ", ".join(map(str, sorted(network.by_width)))
        raise EngineError(
            f"the hypernetwork is for another model: it changes inputs of width {widths}, but the "
            f"texts of this model ({model.family}) have the width {width}"
        )
    return replace(model, unet=unet)
