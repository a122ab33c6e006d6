"""Enlarges images tile by tile with upscale models.

The sizes of a network are derived from the shapes of its weights.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.batcher import Request, Work
from engine.diffusion.device_error import memory_checked
from engine.diffusion.images.compositing import ramp
from engine.diffusion.images.latents import Images
from engine.diffusion.loading.weights import read_tensors
from engine.errors import CheckpointUnavailable, OutOfMemory
from engine.graph.limits import Limits
from engine.stages import Stage

_COLOURS = 3
_UNSHUFFLE_MULTIPLE = 4
_SLOPE = 0.2
_RESIDUAL = 0.2


class UpscaleNetwork(nn.Module):
    """Enlarges the sides of images (batch, 3, height, width) of 0..1 by the factor `scale`."""

    scale: int


class Rrdb(UpscaleNetwork):
    """The network of ESRGAN: Wang et al. 2018 (arXiv:1809.00219), section 3.1.

    If `unshuffle` > 1, blocks of pixels become channels, as in Wang et al. 2021 (arXiv:2107.10833).
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
        """Pad images to multiples of 4 pixels if `unshuffle` > 1, as the package spandrel does."""
        height, width = images.shape[-2:]
        block = _UNSHUFFLE_MULTIPLE if self.unshuffle > 1 else 1
        rest = (0, -width % block, 0, -height % block)
        mode = "reflect" if min(height, width) > max(rest) else "replicate"
        return functional.pad(images, rest, mode=mode) if any(rest) else images


class _Dense(nn.Module):
    """Five convolutions. Each gets the features and the outputs of all convolutions before it."""

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
    """The small network of Real-ESRGAN. It adds a residual to the enlarged image."""

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
    """Return the network for these weights, or None if the kind of network is not known.

    Raises RuntimeError or KeyError if weights are missing or have unexpected shapes.
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
    _require_layers(last + 1, weights)
    with torch.device("meta"):
        network = Compact(features=features, depth=(last - 2) // 2, scale=scale)
    network.load_state_dict(weights, strict=True, assign=True)
    return network


def _rrdb(weights: Mapping[str, Tensor]) -> Rrdb:
    features, seen = weights["first.weight"].shape[:2]
    blocks = 1 + max(int(key.split(".")[1]) for key in weights if key.startswith("body."))
    _require_layers(blocks, weights)
    with torch.device("meta"):
        network = Rrdb(
            features=features,
            growth=len(weights["body.0.0.convolutions.0.weight"]),
            blocks=blocks,
            doublings=sum(each.startswith("ends.") and each.endswith("weight") for each in weights)
            - 1,
            unshuffle=isqrt(seen // _COLOURS),
        )
    network.load_state_dict(weights, strict=True, assign=True)
    return network


def _require_layers(layers: int, weights: Mapping[str, Tensor]) -> None:
    """Raise KeyError if a number in a name promises more layers than the file can have."""
    if layers > len(weights):
        raise KeyError(f"{layers} layers have only {len(weights)} weights")


_BLOCK = re.compile(
    r"(?:model\.1\.sub|RRDB_trunk|body)\.(\d+)\.(?:RDB|rdb)(\d)\.conv(\d)(?:\.0)?\.(\w+)"
)
_NAMES = (
    (re.compile(r"(?:conv_first|model\.0)\.(\w+)"), "first"),
    (re.compile(r"(?:trunk_conv|conv_body|model\.1\.sub\.\d+)\.(\w+)"), "body_end"),
)
_END = re.compile(r"(?:(?:upconv|conv_up|model\.)(?P<number>\d+)|HRconv|conv_hr|conv_last)\.(\w+)")


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights by the names of `Rrdb`.

    The file has the names of ESRGAN's old code, ESRGAN's new code or Real-ESRGAN.
    """
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
    """Return the names in `Rrdb` of the layers after the body, by their names in the file."""
    layers = sorted({key.rpartition(".")[0] for key in ends}, key=_order)
    *others, last = layers
    return {layer: f"ends.{n}" for n, layer in enumerate(others)} | {last: "last"}


def _order(layer: str) -> tuple[bool, bool, int]:
    number = re.search(r"\d+$", layer)
    return layer == "conv_last", number is None, int(number[0]) if number else 0


_LARGEST_TILE = 512
_SMALLEST_TILE = 128
_OVERLAP = 32
_PIXELS_PER_ROW = 8192


def read_upscale_model(path: Path, device: torch.device) -> UpscaleNetwork:
    """Return the network in float32. Raises CheckpointUnavailable."""
    try:
        network = network_of(read_tensors(path))
    except (ValueError, RuntimeError, KeyError) as error:
        raise CheckpointUnavailable(f"The upscale model {path.name} is damaged: {error}") from error
    if network is None:
        raise CheckpointUnavailable(
            f"{path.name} is not an upscale model of a supported kind, which are ESRGAN and "
            "Real-ESRGAN."
        )
    return network.to(device, torch.float32).eval().requires_grad_(False)


@dataclass(slots=True, eq=False)
class Upscale(Request):
    """Enlarges a tile (1, 3, height, width). Only small tiles become faster in a shared call."""

    stage: ClassVar[Stage | None] = Stage.UPSCALE
    network: UpscaleNetwork
    tile: Tensor

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        height, width = self.tile.shape[-2:]
        return max(1, height * width // _PIXELS_PER_ROW)

    @property
    def key(self) -> Hashable:
        return "upscale", id(self.network), self.tile.shape

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Tensor]:
        """Return the enlarged tiles, (1, 3, height, width), on the CPU."""
        network = requests[0].network
        device = next(network.parameters()).device
        with memory_checked():
            enlarged: Tensor = network(torch.cat([each.tile for each in requests]).to(device))
            return list(enlarged.cpu().split(1))


def upscaled(network: UpscaleNetwork, images: Images, limits: Limits) -> Work[Images]:
    """Enlarge images one after the other. Raises TooLarge, OutOfMemory."""
    count, height, width, _ = images.shape
    scale = network.scale
    limits.require_batch(count, width=width * scale, height=height * scale)
    found: list[Images] = []
    for image in images.movedim(-1, 1).split(1):
        enlarged = yield from _in_tiles_that_fit(network, image)
        found.append(enlarged.clamp(0, 1).movedim(1, -1))
    return torch.cat(found)


def _in_tiles_that_fit(network: UpscaleNetwork, image: Tensor) -> Work[Tensor]:
    # Tiles with half the side need a quarter of the memory. All tiles of the image are computed
    # again, because tiles of the former size overlap at other positions.
    side = _LARGEST_TILE
    while True:
        try:
            return (yield from _in_tiles(network, image, side))
        except OutOfMemory:
            side //= 2
            if side < _SMALLEST_TILE:
                raise


def _in_tiles(network: UpscaleNetwork, image: Tensor, side: int) -> Work[Tensor]:
    """Enlarge an image in tiles with sides up to `side`, and blend them where they overlap."""
    scale = network.scale
    feather = _OVERLAP * scale
    height, width = (length * scale for length in image.shape[-2:])
    total, weight = (
        image.new_zeros(1, image.shape[1], height, width),
        image.new_zeros(height, width),
    )
    for y in _starts(image.shape[-2], side):
        for x in _starts(image.shape[-1], side):
            # At the end, the sum is divided by the sum of the ramps. So the border of the image,
            # which only one tile covers, keeps its full value.
            tile: Tensor = yield Upscale(network, image[..., y : y + side, x : x + side])
            shares = [ramp(length, feather, first=True, last=True) for length in tile.shape[-2:]]
            share = torch.outer(*shares)
            rows = slice(y * scale, y * scale + len(share))
            columns = slice(x * scale, x * scale + share.shape[1])
            total[..., rows, columns] += tile * share
            weight[rows, columns] += share
    return total / weight


def _starts(length: int, side: int) -> Iterator[int]:
    if length <= side:
        yield 0
    else:
        yield from range(0, length - _OVERLAP, side - _OVERLAP)
