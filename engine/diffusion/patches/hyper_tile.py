"""HyperTile: self-attention within tiles of a picture, for large ones.

By tfernd (https://github.com/tfernd/HyperTile). As in ComfyUI, the queries alone are cut into tiles
of the picture. Keys and values are cut as they lie in memory, into as many parts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import torch
from torch import Tensor

from engine.diffusion.loading.attention import use_plain_attention
from engine.diffusion.patches.call_draws import DrawnRows
from engine.diffusion.patches.self_guidance import SelfAttentionLayer, self_attention

_LEAST_TILE = 32
_PIXELS_PER_CELL = 8


@dataclass(frozen=True, slots=True)
class HyperTile:
    """Where a UNet's self-attention is cut into tiles."""

    tile_size: int
    """The least side of a tile in pixels."""
    swap_size: int
    """Of so many sizes of tiles, each layer draws one in each call."""
    max_depth: int
    """How many levels more than the largest are cut."""
    scale_depth: bool
    """Whether tiles are larger in deeper levels."""

    def patch(self, unet: Any) -> None:
        """Give a UNet, which has its layers for itself, layers that attend in tiles."""
        unet.drawn_rows = rows = DrawnRows()
        fewest = unet.config.block_out_channels[0]
        widths = {fewest * 2**depth for depth in range(self.max_depth + 1)}
        found = self_attention(use_plain_attention(unet))
        layers = [each for each in found if each[1].to_q.in_features in widths]
        for place, (name, layer) in enumerate(layers):
            depth = layer.to_q.in_features // fewest - 1
            least = max(_LEAST_TILE, self.tile_size) // _PIXELS_PER_CELL
            tiles = _Tiles(
                least * 2**depth if self.scale_depth else least,
                self.swap_size,
                place=place,
                layers=len(layers),
            )
            unet.set_submodule(name, TiledAttention(layer, tiles, rows))


@dataclass(frozen=True, slots=True)
class _Tiles:
    """How one layer is cut."""

    least: int
    options: int
    place: int
    """That of the layer among those that are cut, in the order in which they run."""
    layers: int

    def of(self, call: int, sides: tuple[int, int]) -> tuple[int, int]:
        """The number of tiles along both sides in a call of a run."""
        seed = 1 + 2 * (call * self.layers + self.place)
        down, across = (
            _parts(side, self.least, self.options, seed + at) for at, side in enumerate(sides)
        )
        return down, across


class TiledAttention(SelfAttentionLayer):
    """Self-attention where a place attends to a part of the others."""

    def __init__(self, layer: Any, tiles: _Tiles, rows: DrawnRows) -> None:
        super().__init__(layer)
        self._tiles, self._rows = tiles, rows

    def attend(self, hidden_states: Tensor) -> Tensor:
        height, width = self._rows.size
        sides = sides_of(hidden_states.shape[1], width / height)
        by_count: defaultdict[tuple[int, int], list[Tensor]] = defaultdict(list)
        places = torch.arange(len(hidden_states), device=hidden_states.device)
        for rows, draws in self._rows.parts:
            by_count[self._tiles.of(draws.number, sides)].append(places[rows])
        projected = self.projections(hidden_states)
        found = torch.empty_like(projected[0])
        for counts, rows_of in by_count.items():
            at = torch.cat(rows_of)
            query, key, value = (each[at] for each in projected)
            query = _cut(query, sides, counts)
            parts = math.prod(counts)
            key, value = (each.unflatten(1, (parts, -1)).flatten(0, 1) for each in (key, value))
            found[at] = _joined(self.compared(query, key, value), sides, counts)
        return self.output(found)


@lru_cache(maxsize=256)
def sides_of(count: int, ratio: float) -> tuple[int, int]:
    """Two whole numbers whose product is `count`, the first `ratio` times the second, or nearly.

    ComfyUI gives width / height here, and takes the first for the height.
    """
    first, second = (max(1, round(math.sqrt(each))) for each in (count * ratio, count / ratio))
    if count % first == 0:
        return first, count // first
    if count % second == 0:
        return count // second, second
    divisors = (each for each in range(2, count + 1) if count % each == 0)
    nearest = min(divisors, key=lambda each: abs(count / each / each - ratio))
    return nearest, count // nearest


def _parts(side: int, least: int, options: int, seed: int) -> int:
    """Into how many parts of `least` or more a side is cut, drawn of the `options` smallest."""
    sizes = [each for each in range(min(least, side), side + 1) if side % each == 0][:options]
    return side // sizes[Random(seed).randint(0, len(sizes) - 1)]


def _cut(hidden: Tensor, sides: tuple[int, int], counts: tuple[int, int]) -> Tensor:
    """(batch * tiles, places of a tile, width)."""
    (height, width), (down, across) = sides, counts
    cut = hidden.view(len(hidden), down, height // down, across, width // across, -1)
    return cut.transpose(2, 3).flatten(0, 2).flatten(1, 2)


def _joined(hidden: Tensor, sides: tuple[int, int], counts: tuple[int, int]) -> Tensor:
    """(batch, places, width) of tiles."""
    (height, width), (down, across) = sides, counts
    tiles = hidden.view(-1, down, across, height // down, width // across, hidden.shape[-1])
    return tiles.transpose(2, 3).flatten(1, 4)
