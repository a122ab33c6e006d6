"""Token merging: queries that are alike attend as one.

Bolya and Hoffman 2023 (arXiv:2303.17604), section 4; the matching of Bolya et al. 2022
(arXiv:2210.09461), section 3.2. As in ComfyUI, the queries alone are merged, in the largest level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.loading.attention import use_plain_attention
from engine.diffusion.patches.call_draws import DrawnRows
from engine.diffusion.patches.self_guidance import SelfAttentionLayer, self_attention

_STRIDE = 2
"""Of each square of so many places one stays, and others are merged into it."""

_LIKENESS_BYTES = 64 * 2**20
"""What comparing places may take at a time. All at once they would take 3 GiB at 2048 x 2048."""


@dataclass(frozen=True, slots=True)
class TokenMerging:
    """Which share of the queries is merged into others."""

    ratio: float

    def patch(self, unet: Any) -> None:
        """Give a UNet, which has its layers for itself, layers that merge queries."""
        unet.drawn_rows = rows = DrawnRows()
        for place, (name, layer) in enumerate(self_attention(use_plain_attention(unet))):
            unet.set_submodule(name, MergingAttention(layer, self.ratio, rows, place))


class MergingAttention(SelfAttentionLayer):
    """Self-attention with fewer queries."""

    def __init__(self, layer: Any, ratio: float, rows: DrawnRows, place: int) -> None:
        super().__init__(layer)
        self._ratio, self._rows, self._place = ratio, rows, place

    def attend(self, hidden_states: Tensor) -> Tensor:
        height, width = self._rows.size
        places = hidden_states.shape[1]
        count = int(places * self._ratio)
        if count == 0 or places != height * width or min(height, width) == 1:
            return super().attend(hidden_states)
        matches = [
            (rows, Match.of(hidden_states[rows], kept_places(drawn, width), count))
            for rows, drawn in self._drawn(height // _STRIDE, width // _STRIDE)
        ]
        query, key, value = self.projections(hidden_states)
        query = torch.cat([match.merged(query[rows]) for rows, match in matches])
        found = self.output(self.compared(query, key, value))
        return torch.cat([match.unmerged(found[rows]) for rows, match in matches])

    def _drawn(self, down: int, across: int) -> list[tuple[slice, Tensor]]:
        """Which place of each square stays, for the rows of each run."""
        return [
            (rows, draws.integers(self._place, _STRIDE**2, (down, across, 1))[..., 0])
            for rows, draws in self._rows.parts
        ]


def kept_places(drawn: Tensor, width: int) -> Tensor:
    """The places that others are merged into, in order: one of each square, as `drawn`."""
    down, across = (torch.arange(side) * _STRIDE for side in drawn.shape)
    rows, columns = down[:, None] + drawn // _STRIDE, across + drawn % _STRIDE
    return (rows * width + columns).flatten().sort().values


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Which places are merged into which others, in each row."""

    targets: Tensor
    """The places that others are merged into."""
    sources: Tensor
    """All others."""
    apart: Tensor
    """(batch, n): which of the sources are merged into none."""
    gone: Tensor
    """(batch, count): which are."""
    into: Tensor
    """(batch, count): into which of the targets."""

    @classmethod
    def of(cls, hidden: Tensor, targets: Tensor, count: int) -> Self:
        """The `count` places of (batch, places, width) that are most like one of the targets."""
        is_source = torch.ones(hidden.shape[1], dtype=torch.bool)
        is_source[targets] = False
        targets = targets.to(hidden.device)
        sources = is_source.nonzero()[:, 0].to(hidden.device)
        directions = functional.normalize(hidden, dim=-1)
        best, into = _most_alike(directions[:, sources], directions[:, targets])
        order = best.argsort(dim=-1, descending=True, stable=True)
        gone, apart = order[:, :count], order[:, count:]
        return cls(targets, sources, apart, gone, into.gather(1, gone))

    def merged(self, x: Tensor) -> Tensor:
        """(batch, places - count, width): what is merged into one place is its mean."""
        sources, targets = x[:, self.sources], x[:, self.targets]
        found = targets.scatter_reduce(
            1, _wide(self.into, x), sources.gather(1, _wide(self.gone, x)), "mean"
        )
        return torch.cat([sources.gather(1, _wide(self.apart, x)), found], dim=1)

    def unmerged(self, x: Tensor) -> Tensor:
        """(batch, places, width): what was merged gets what came of its place."""
        count = self.apart.shape[1]
        apart, targets = x[:, :count], x[:, count:]
        sources = x.new_empty(len(x), len(self.sources), x.shape[-1])
        sources.scatter_(1, _wide(self.apart, x), apart)
        sources.scatter_(1, _wide(self.gone, x), targets.gather(1, _wide(self.into, x)))
        found = x.new_empty(len(x), len(self.sources) + len(self.targets), x.shape[-1])
        found[:, self.targets], found[:, self.sources] = targets, sources
        return found


def _most_alike(sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, n): how much each of the sources is like the target that it is most like; which."""
    row_bytes = len(targets) * targets.shape[1] * targets.element_size()
    parts = sources.split(max(1, _LIKENESS_BYTES // row_bytes), dim=1)
    likeness, which = zip(*((each @ targets.mT).max(-1) for each in parts), strict=True)
    return torch.cat(likeness, 1), torch.cat(which, 1)


def _wide(places: Tensor, x: Tensor) -> Tensor:
    return places[..., None].expand(-1, -1, x.shape[-1])
