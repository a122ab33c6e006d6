"""Methods that reduce the work of a UNet's self-attention: HyperTile and token merging.

HyperTile by tfernd (https://github.com/tfernd/HyperTile) cuts the queries of a large picture into
tiles. As in ComfyUI, keys and values are cut into the same number of consecutive parts instead.

Token merging lets similar queries attend as one query (Bolya and Hoffman 2023, arXiv:2303.17604,
section 4). The matching is from section 3.2 of Bolya et al. 2022 (arXiv:2210.09461). As in ComfyUI,
only queries are merged, and only in the largest level.

Both methods draw random numbers, separately for each run. A run therefore gets the same numbers
alone and in calls that it shares with other runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from random import Random
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.host_copies import copied
from engine.diffusion.loading.layers import use_plain_attention
from engine.diffusion.patches.self_guidance import SelfAttentionLayer, self_attention


class CallDraws:
    """The random draws of one run in one call of the model."""

    def __init__(self, number: int, generator: torch.Generator) -> None:
        self.number = number
        """The number of the call within the run."""
        self._generator = generator
        self._drawn: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def integers(self, layer: int, below: int, shape: tuple[int, ...]) -> Tensor:
        """Return random integers from 0 to `below` - 1.

        Within a call, a layer always gets the same numbers for the same shape.
        """
        key = layer, shape
        if key not in self._drawn:
            self._drawn[key] = torch.randint(below, shape, generator=self._generator)
        return self._drawn[key]


class DrawnRows:
    """The rows of each run in the current call of a UNet.

    Only the thread that calls the UNet may use this object.
    """

    def __init__(self) -> None:
        self.size = (0, 0)
        """The height and width of the latents."""
        self.parts: tuple[tuple[slice, CallDraws], ...] = ()

    def assign(self, draws: Sequence[CallDraws], sizes: Sequence[int], x: Tensor) -> None:
        """Assign rows of `x` to the draws in order: `sizes[i]` rows to `draws[i]`."""
        self.size = x.shape[2], x.shape[3]
        parts, start = [], 0
        for own, same in groupby(zip(draws, sizes, strict=True), key=itemgetter(0)):
            end = start + sum(size for _, size in same)
            parts.append((slice(start, end), own))
            start = end
        self.parts = tuple(parts)


_LEAST_TILE = 32
_PIXELS_PER_CELL = 8


@dataclass(frozen=True, slots=True)
class HyperTile:
    """Settings of HyperTile: the levels with tiles, and the sizes of the tiles."""

    tile_size: int
    """The least side of a tile in pixels."""
    swap_size: int
    """The number of tile sizes from which each layer draws one in each call."""
    max_depth: int
    """The number of levels after the largest level that are cut into tiles."""
    scale_depth: bool
    """Whether tiles are larger in deeper levels."""

    def patch(self, unet: Any) -> None:
        """Replace attention layers of a UNet, which must not share its layers with other UNets."""
        unet.drawn_rows = rows = DrawnRows()
        fewest = unet.config.block_out_channels[0]
        widths = {fewest * 2**depth for depth in range(self.max_depth + 1)}
        found = self_attention(use_plain_attention(unet))
        layers = [each for each in found if each[1].to_q.in_features in widths]
        for index, (name, layer) in enumerate(layers):
            depth = layer.to_q.in_features // fewest - 1
            least = max(_LEAST_TILE, self.tile_size) // _PIXELS_PER_CELL
            tiles = _Tiles(
                least * 2**depth if self.scale_depth else least,
                self.swap_size,
                index=index,
                layers=len(layers),
            )
            unet.set_submodule(name, TiledAttention(layer, tiles, rows))


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The tile settings of one layer."""

    least: int
    options: int
    index: int
    """The index of the layer among the layers that are cut, in the order in which they run."""
    layers: int

    def of(self, call: int, sides: tuple[int, int]) -> tuple[int, int]:
        """Return the number of tiles along each side in the model call with the number `call`."""
        seed = 1 + 2 * (call * self.layers + self.index)
        down, across = (
            _parts(side, self.least, self.options, seed + at) for at, side in enumerate(sides)
        )
        return down, across


class TiledAttention(SelfAttentionLayer):
    """Self-attention in which each position attends only to a part of the positions."""

    def __init__(self, layer: Any, tiles: _Tiles, rows: DrawnRows) -> None:
        super().__init__(layer)
        self._tiles, self._rows = tiles, rows

    def attend(self, hidden_states: Tensor) -> Tensor:
        height, width = self._rows.size
        sides = sides_of(hidden_states.shape[1], width / height)
        by_count: defaultdict[tuple[int, int], list[Tensor]] = defaultdict(list)
        positions = torch.arange(len(hidden_states), device=hidden_states.device)
        for rows, draws in self._rows.parts:
            by_count[self._tiles.of(draws.number, sides)].append(positions[rows])
        projected = self.projections(hidden_states)
        found = torch.empty_like(projected[0])
        for counts, rows_of in by_count.items():
            at = torch.cat(rows_of)
            query, key, value = (each[at] for each in projected)
            query = _cut(query, sides, counts)
            parts = math.prod(counts)
            key, value = (each.unflatten(1, (parts, -1)).flatten(0, 1) for each in (key, value))
            found[at] = _joined(self.attended_values(query, key, value), sides, counts)
        return self.output(found)


@lru_cache(maxsize=256)
def sides_of(count: int, ratio: float) -> tuple[int, int]:
    """Return two whole numbers whose product is `count` and whose ratio is about `ratio`.

    As in ComfyUI, the caller passes width / height as `ratio` and uses the first number as height.
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
    """Return the number of parts into which a side is cut.

    The length of a part is drawn from the `options` smallest divisors of `side` that are at least
    `least`.
    """
    sizes = [each for each in range(min(least, side), side + 1) if side % each == 0][:options]
    return side // sizes[Random(seed).randint(0, len(sizes) - 1)]


def _cut(hidden: Tensor, sides: tuple[int, int], counts: tuple[int, int]) -> Tensor:
    """Return the tiles as (batch * tiles, positions of a tile, width)."""
    (height, width), (down, across) = sides, counts
    cut = hidden.view(len(hidden), down, height // down, across, width // across, -1)
    return cut.transpose(2, 3).flatten(0, 2).flatten(1, 2)


def _joined(hidden: Tensor, sides: tuple[int, int], counts: tuple[int, int]) -> Tensor:
    """Undo `_cut`. Returns (batch, positions, width)."""
    (height, width), (down, across) = sides, counts
    tiles = hidden.view(-1, down, across, height // down, width // across, hidden.shape[-1])
    return tiles.transpose(2, 3).flatten(1, 4)


_STRIDE = 2
"""The side of a square of tokens. One token of each square is never merged into another token."""

_LIKENESS_BYTES = 64 * 2**20
"""The largest memory for one comparison of tokens. For an image of 2048 x 2048, a comparison of all
tokens at once would need 3 GiB.
"""


@dataclass(frozen=True, slots=True)
class TokenMerging:
    """Token merging. `ratio` is the share of the queries that are merged into other queries."""

    ratio: float

    def patch(self, unet: Any) -> None:
        """Replace attention layers of a UNet, which must not share its layers with other UNets."""
        unet.drawn_rows = rows = DrawnRows()
        for index, (name, layer) in enumerate(self_attention(use_plain_attention(unet))):
            unet.set_submodule(name, MergingAttention(layer, self.ratio, rows, index))


class MergingAttention(SelfAttentionLayer):
    def __init__(self, layer: Any, ratio: float, rows: DrawnRows, index: int) -> None:
        super().__init__(layer)
        self._ratio, self._rows, self._index = ratio, rows, index

    def attend(self, hidden_states: Tensor) -> Tensor:
        height, width = self._rows.size
        positions = hidden_states.shape[1]
        count = int(positions * self._ratio)
        if count == 0 or positions != height * width or min(height, width) == 1:
            return super().attend(hidden_states)
        matches = [
            (rows, Match.of(hidden_states[rows], target_positions(drawn, width), count))
            for rows, drawn in self._drawn(height // _STRIDE, width // _STRIDE)
        ]
        query, key, value = self.projections(hidden_states)
        query = torch.cat([match.merged(query[rows]) for rows, match in matches])
        found = self.output(self.attended_values(query, key, value))
        return torch.cat([match.unmerged(found[rows]) for rows, match in matches])

    def _drawn(self, down: int, across: int) -> list[tuple[slice, Tensor]]:
        """Return the index of the kept position in each square, for the rows of each run."""
        return [
            (rows, draws.integers(self._index, _STRIDE**2, (down, across, 1))[..., 0])
            for rows, draws in self._rows.parts
        ]


def target_positions(drawn: Tensor, width: int) -> Tensor:
    """Return the positions into which other positions are merged, in ascending order.

    `drawn` has the index of the kept position within each square.
    """
    down, across = (torch.arange(side) * _STRIDE for side in drawn.shape)
    rows, columns = down[:, None] + drawn // _STRIDE, across + drawn % _STRIDE
    return (rows * width + columns).flatten().sort().values


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Says which positions of each row are merged, and into which positions."""

    targets: Tensor
    """(m,): the positions into which other positions may be merged."""
    sources: Tensor
    """All other positions."""
    unmerged_sources: Tensor
    """(batch, n): the indices in `sources` of the positions that are not merged."""
    merged_sources: Tensor
    """(batch, count): the indices in `sources` of the positions that are merged."""
    merge_targets: Tensor
    """(batch, count): the index in `targets` of the target of each of `merged_sources`."""

    @classmethod
    def of(cls, hidden: Tensor, targets: Tensor, count: int) -> Self:
        """Match `count` positions of `hidden` (batch, positions, width) most similar to targets."""
        is_source = torch.ones(hidden.shape[1], dtype=torch.bool)
        is_source[targets] = False
        targets = copied(targets, hidden.device)
        sources = copied(is_source.nonzero()[:, 0], hidden.device)
        directions = functional.normalize(hidden, dim=-1)
        best, targets_of_sources = _most_alike(directions[:, sources], directions[:, targets])
        order = best.argsort(dim=-1, descending=True, stable=True)
        merged, unmerged = order[:, :count], order[:, count:]
        return cls(targets, sources, unmerged, merged, targets_of_sources.gather(1, merged))

    def merged(self, x: Tensor) -> Tensor:
        """Return (batch, positions - count, width).

        Each target becomes the mean of itself and the sources that are merged into it.
        """
        sources, targets = x[:, self.sources], x[:, self.targets]
        found = targets.scatter_reduce(
            1,
            _wide(self.merge_targets, x),
            sources.gather(1, _wide(self.merged_sources, x)),
            "mean",
        )
        return torch.cat([sources.gather(1, _wide(self.unmerged_sources, x)), found], dim=1)

    def unmerged(self, x: Tensor) -> Tensor:
        """Return (batch, positions, width). Each merged source gets the result of its target."""
        count = self.unmerged_sources.shape[1]
        unmerged, targets = x[:, :count], x[:, count:]
        sources = x.new_empty(len(x), len(self.sources), x.shape[-1])
        sources.scatter_(1, _wide(self.unmerged_sources, x), unmerged)
        sources.scatter_(
            1, _wide(self.merged_sources, x), targets.gather(1, _wide(self.merge_targets, x))
        )
        found = x.new_empty(len(x), len(self.sources) + len(self.targets), x.shape[-1])
        found[:, self.targets], found[:, self.sources] = targets, sources
        return found


def _most_alike(sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest similarity of each source to a target, and that target's index."""
    row_bytes = len(targets) * targets.shape[1] * targets.element_size()
    parts = sources.split(max(1, _LIKENESS_BYTES // row_bytes), dim=1)
    likeness, which = zip(*((each @ targets.mT).max(-1) for each in parts), strict=True)
    return torch.cat(likeness, 1), torch.cat(which, 1)


def _wide(positions: Tensor, x: Tensor) -> Tensor:
    return positions[..., None].expand(-1, -1, x.shape[-1])
