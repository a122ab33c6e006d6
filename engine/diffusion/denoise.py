"""The model's estimate of a clean latent, for all rows that wait for the same weights at once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.batcher import Request
from engine.diffusion.conditioning import Condition, Conditioning
from engine.diffusion.memory import memory_checked
from engine.diffusion.model import Model

_MOST_REPEATS = 4
_SHARED_TOKENS = 4 * 77
"""Longer prompts share calls with their like only, for they would slow the others down."""


@dataclass(slots=True, eq=False)
class Denoise(Request):
    """One sampler's question: x0 of `x` (batch, 4, h, w) at `sigma`, guided by `cfg`.

    Every condition of both halves of the guidance is a row of the same call; a `cfg` of exactly 1
    has the positive half only.
    """

    model: Model
    x: Tensor
    sigma: Tensor
    positive: Conditioning
    negative: Conditioning
    cfg: float

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        return len(self.x) * sum(len(half) for half in self.halves)

    @property
    def key(self) -> Hashable:
        longest = max((each.tokens.shape[1] for half in self.halves for each in half), default=0)
        own = longest if longest > _SHARED_TOKENS else None
        model = self.model
        return "denoise", id(model.unet), id(model.levels), model.prediction, self.x.shape[1:], own

    @property
    def halves(self) -> tuple[Conditioning, ...]:
        return (self.positive,) if self.cfg == 1.0 else (self.positive, self.negative)

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Tensor]:
        """x0 of every request, each (batch, 4, h, w)."""
        with memory_checked():
            asked = [[request._rows(half) for half in request.halves] for request in requests]
            rows = [row for halves in asked for half in halves for row in half]
            answers = iter(_predict(requests[0].model, rows))
            return [
                request._guide([request._mean(half, answers) for half in halves])
                for request, halves in zip(requests, asked, strict=True)
            ]

    def _rows(self, half: Conditioning) -> list[_Row]:
        sigma = float(self.sigma)
        return [_row(self, each) for each in half if each.counts_at(sigma)]

    def _mean(self, rows: Sequence[_Row], answers: Iterator[Tensor]) -> Tensor:
        """x0 under one half of the guidance: that of each condition, weighted by its strength."""
        if len(rows) == 1 and rows[0].condition.area is None:
            return next(answers)
        total, weights = torch.zeros_like(self.x), torch.full_like(self.x, _NO_WEIGHT)
        for row in rows:
            weight = row.condition.strength
            row.window(total).add_(next(answers) * weight)
            row.window(weights).add_(weight)
        return total / weights

    def _guide(self, halves: Sequence[Tensor]) -> Tensor:
        if len(halves) == 1:
            return halves[0]
        conditional, unconditional = halves
        return unconditional + (conditional - unconditional) * self.cfg


_NO_WEIGHT = 1e-37
"""Where no condition counts, the estimate is 0 and not 0 / 0."""


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """A latent (or a batch of them, or a window of it) with one noise level and one condition."""

    x: Tensor
    sigma: Tensor
    condition: Condition

    @property
    def length(self) -> int:
        return self.condition.tokens.shape[1]

    def window(self, whole: Tensor) -> Tensor:
        """The part of a latent where the condition counts."""
        area = self.condition.area
        if area is None:
            return whole
        return whole[..., area.y : area.y + area.height, area.x : area.x + area.width]


def _row(request: Denoise, condition: Condition) -> _Row:
    whole = _Row(request.x, request.sigma, condition)
    return _Row(whole.window(request.x), request.sigma, condition)


def _predict(model: Model, rows: Sequence[_Row]) -> list[Tensor]:
    """x0 of each row, in as few calls as their sizes and the lengths of their texts allow."""
    found: dict[int, Tensor] = {}
    for places, length in _calls(rows):
        answers = _call(model, [rows[place] for place in places], length)
        found.update(zip(places, answers, strict=True))
    return [found[place] for place in range(len(rows))]


def _calls(rows: Sequence[_Row]) -> Iterator[tuple[list[int], int]]:
    """The places of rows that share a call, and the length that their texts are brought to.

    Texts of unlike length share one unless that would blow it up.
    """
    by_size: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        by_size[row.x.shape[1:]].append(place)
    for places in by_size.values():
        lengths = {rows[place].length for place in places}
        common = math.lcm(*lengths)
        if common <= _MOST_REPEATS * min(lengths):
            yield places, common
            continue
        for length in lengths:
            yield [place for place in places if rows[place].length == length], length


def _call(model: Model, rows: Sequence[_Row], length: int) -> list[Tensor]:
    """One UNet call. Tokens repeated to `length` weigh in attention as they did once."""
    sizes = [len(row.x) for row in rows]
    x = torch.cat([row.x for row in rows])
    levels = torch.cat([row.sigma.expand(size) for row, size in zip(rows, sizes, strict=True)])
    tokens = torch.cat(
        [
            row.condition.tokens.expand(len(row.x), -1, -1).repeat(1, length // row.length, 1)
            for row in rows
        ]
    )
    timesteps = model.levels.timestep_of(levels).to(model.device)
    sigma = levels.to(model.device)[:, None, None, None]
    shown = model.scaled(x, sigma).to(model.dtype)
    inputs = model.unet_inputs([row.condition for row in rows], sizes)
    output = model.unet(shown, timesteps, tokens.to(model.dtype), return_dict=False, **inputs)[
        0
    ].float()
    return list(model.denoised(x, output, sigma).split(sizes))
