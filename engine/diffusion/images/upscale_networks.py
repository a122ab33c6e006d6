"""Networks that enlarge images. Their sizes follow from the shapes of their weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

_COLOURS = 3
_UNSHUFFLE_MULTIPLE = 4
_SLOPE = 0.2
_RESIDUAL = 0.2


class UpscaleNetwork(nn.Module):
    """Enlarges the sides of images (batch, 3, height, width) of 0..1 by the factor `scale`."""

    scale: int


class Rrdb(UpscaleNetwork):
    """ESRGAN: Wang et al. 2018 (arXiv:1809.00219), section 3.1.

    With `unshuffle` > 1 blocks of pixels become channels: Wang et al. 2021 (arXiv:2107.10833).
    """

    def __init__(
        self, *, features: int, growth: int, blocks: int, doublings: int, unshuffle: int
    ) -> None:
        super().__init__()
        self.scale = 2**doublings // unshuffle
        self.unshuffle = unshuffle
        self.first = nn.Conv2d(_COLOURS * unshuffle**2, features, 3, padding=1)
        self.body = nn.Sequential(
            *(nn.Sequential(*(_Dense(features, growth) for _ in range(3))) for _ in range(blocks))
        )
        self.body_end = nn.Conv2d(features, features, 3, padding=1)
        self.ends = nn.ModuleList(
            nn.Conv2d(features, features, 3, padding=1) for _ in range(doublings + 1)
        )
        self.last = nn.Conv2d(features, _COLOURS, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        height, width = (side * self.scale for side in images.shape[-2:])
        seen: Tensor = self.first(functional.pixel_unshuffle(self._padded(images), self.unshuffle))
        features = seen
        for block in self.body:
            features = features + _RESIDUAL * block(features)
        features = seen + self.body_end(features)
        *doublings, end = self.ends
        for convolution in doublings:
            features = functional.interpolate(features, scale_factor=2, mode="nearest")
            features = functional.leaky_relu(convolution(features), _SLOPE)
        enlarged: Tensor = self.last(functional.leaky_relu(end(features), _SLOPE))
        return enlarged[..., :height, :width]

    def _padded(self, images: Tensor) -> Tensor:
        """Pad to whole blocks: of 4 pixels whenever the network unshuffles, as spandrel does."""
        height, width = images.shape[-2:]
        block = _UNSHUFFLE_MULTIPLE if self.unshuffle > 1 else 1
        rest = (0, -width % block, 0, -height % block)
        mode = "reflect" if min(height, width) > max(rest) else "replicate"
        return functional.pad(images, rest, mode=mode) if any(rest) else images


class _Dense(nn.Module):
    """Five convolutions, each of which takes the outputs of all before it."""

    def __init__(self, features: int, growth: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(features + n * growth, growth if n < 4 else features, 3, padding=1)
            for n in range(5)
        )

    def forward(self, features: Tensor) -> Tensor:
        seen = features
        *inner, last = self.convolutions
        for convolution in inner:
            grown = functional.leaky_relu(convolution(seen), _SLOPE)
            seen = torch.cat((seen, grown), dim=1)
        ended: Tensor = features + _RESIDUAL * last(seen)
        return ended


class Compact(UpscaleNetwork):
    """The small network of Real-ESRGAN: convolutions that give a residual for every new pixel."""

    def __init__(self, *, features: int, depth: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        layers: list[nn.Module] = [nn.Conv2d(_COLOURS, features, 3, padding=1), nn.PReLU(features)]
        for _ in range(depth):
            layers += [nn.Conv2d(features, features, 3, padding=1), nn.PReLU(features)]
        layers.append(nn.Conv2d(features, _COLOURS * scale**2, 3, padding=1))
        self.body = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        residual: Tensor = functional.pixel_shuffle(self.body(images), self.scale)
        return residual + functional.interpolate(images, scale_factor=self.scale, mode="nearest")


def network_of(weights: Mapping[str, Tensor]) -> UpscaleNetwork | None:
    """The network of these weights, or None if they are of no known kind.

    Raises RuntimeError or KeyError if some are missing or have other sizes.
    """
    weights = {key.removeprefix("params_ema."): value for key, value in weights.items()}
    if {"body.0.weight", "body.1.weight"} <= weights.keys():
        return _compact(weights)
    if weights.keys() & {"conv_first.weight", "model.0.weight"}:
        return _rrdb(_renamed(weights))
    return None


def _compact(weights: Mapping[str, Tensor]) -> Compact:
    last = max(int(key.split(".")[1]) for key in weights)
    features = len(weights["body.0.weight"])
    scale = isqrt(len(weights[f"body.{last}.weight"]) // _COLOURS)
    network = Compact(features=features, depth=(last - 2) // 2, scale=scale)
    network.load_state_dict(weights, strict=True)
    return network


def _rrdb(weights: Mapping[str, Tensor]) -> Rrdb:
    features, seen = weights["first.weight"].shape[:2]
    network = Rrdb(
        features=features,
        growth=len(weights["body.0.0.convolutions.0.weight"]),
        blocks=1 + max(int(key.split(".")[1]) for key in weights if key.startswith("body.")),
        doublings=sum(key.startswith("ends.") and key.endswith("weight") for key in weights) - 1,
        unshuffle=isqrt(seen // _COLOURS),
    )
    network.load_state_dict(weights, strict=True)
    return network


_BLOCK = re.compile(
    r"(?:model\.1\.sub|RRDB_trunk|body)\.(\d+)\.(?:RDB|rdb)(\d)\.conv(\d)(?:\.0)?\.(\w+)"
)
_NAMES = (
    (re.compile(r"(?:conv_first|model\.0)\.(\w+)"), "first"),
    (re.compile(r"(?:trunk_conv|conv_body|model\.1\.sub\.\d+)\.(\w+)"), "body_end"),
)
_END = re.compile(r"(?:(?:upconv|conv_up|model\.)(?P<number>\d+)|HRconv|conv_hr|conv_last)\.(\w+)")


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by our names; theirs are those of ESRGAN (old and new code) or Real-ESRGAN."""
    renamed, ends = {}, {}
    for key, value in weights.items():
        if match := _BLOCK.fullmatch(key):
            block, dense, convolution = (int(match[n]) for n in (1, 2, 3))
            name = f"body.{block}.{dense - 1}.convolutions.{convolution - 1}.{match[4]}"
            renamed[name] = value
            continue
        for pattern, name in _NAMES:
            if match := pattern.fullmatch(key):
                renamed[f"{name}.{match[1]}"] = value
                break
        else:
            ends[key] = value
    for key, name in _ends(ends).items():
        for kind in ("weight", "bias"):
            renamed[f"{name}.{kind}"] = ends.pop(f"{key}.{kind}")
    return renamed | ends


def _ends(ends: Mapping[str, Tensor]) -> dict[str, str]:
    """Our names of the layers after the body, which are in the order of their numbers."""
    layers = sorted({key.rpartition(".")[0] for key in ends}, key=_place)
    *others, last = layers
    return {layer: f"ends.{n}" for n, layer in enumerate(others)} | {last: "last"}


def _place(layer: str) -> tuple[bool, bool, int]:
    number = re.search(r"\d+$", layer)
    return layer == "conv_last", number is None, int(number[0]) if number else 0
