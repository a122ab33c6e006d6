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
from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.conditioning.guidance import rescaled
from engine.diffusion.conditioning.placement import Guide, Placed
from engine.diffusion.control.control_net import Control, residuals
from engine.diffusion.cross_attention_cache import joined
from engine.diffusion.model import Model
from engine.diffusion.out_of_memory import memory_checked
from engine.diffusion.samplers.noise_levels import NoiseLevels

_MOST_REPEATS = 4
_SHARED_TOKENS = 4 * 77
"""Longer prompts share calls with their like only, for they would slow the others down."""


@dataclass(slots=True, eq=False)
class Denoise(Request):
    """One sampler's question: x0 of `x` (batch, 4, h, w) at `sigma`, guided by `cfg`.

    Every condition of both halves of the guidance is a row of the same call; a `cfg` of exactly 1
    has the positive half only. `both`: the answer is (2, batch, 4, h, w), x0 and what it would be
    under the negative half alone. `beside`: channels (batch, n, h, w) that are shown with x.
    """

    model: Model
    x: Tensor
    sigma: Tensor
    positive: Guide
    negative: Guide
    cfg: float
    both: bool = False
    beside: Tensor | None = None

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        return len(self.x) * sum(len(half) for half in self.halves)

    @property
    def key(self) -> Hashable:
        lengths = (each.condition.tokens.shape[1] for half in self.halves for each in half)
        longest = max(lengths, default=0)
        own = longest if longest > _SHARED_TOKENS else None
        model = self.model
        return "denoise", id(model.unet), id(model.levels), model.prediction, self.x.shape[1:], own

    @property
    def halves(self) -> tuple[Guide, ...]:
        """What counts at this level."""
        sigma = float(self.sigma)
        is_guided = self.cfg != 1.0 or self.both
        halves = (self.positive, self.negative) if is_guided else (self.positive,)
        return tuple(tuple(each for each in half if each.counts_at(sigma)) for half in halves)

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Tensor]:
        """The answer to every request."""
        with memory_checked():
            asked = [[request._rows(half) for half in request.halves] for request in requests]
            rows = [row for halves in asked for half in halves for row in half]
            answers = iter(_predict(requests[0].model, rows))
            return [
                request._guide([request._mean(half, answers) for half in halves])
                for request, halves in zip(requests, asked, strict=True)
            ]

    def _rows(self, half: Guide) -> list[_Row]:
        return [_Row(self, each) for each in half]

    def _mean(self, rows: Sequence[_Row], answers: Iterator[Tensor]) -> Tensor:
        """x0 under one half of the guidance: the weighted mean of those of its conditions."""
        if len(rows) == 1 and rows[0].placed.weight is None:
            return next(answers)
        total, weights = torch.zeros_like(self.x), torch.full_like(self.x, _NO_WEIGHT)
        for row in rows:
            weight = 1.0 if row.placed.weight is None else row.placed.weight
            row.placed.window(total).add_(next(answers) * weight)
            row.placed.window(weights).add_(weight)
        return total / weights

    def _guide(self, halves: Sequence[Tensor]) -> Tensor:
        if len(halves) == 1:
            return halves[0]
        conditional, unconditional = halves
        x0 = unconditional + (conditional - unconditional) * self.cfg
        if self.model.rescaled:
            x0 = rescaled(x0, conditional, (self.x, self.sigma), self.model.rescaled)
        return torch.stack([x0, unconditional]) if self.both else x0


_NO_WEIGHT = 1e-37
"""Where no condition counts, the estimate is 0 and not 0 / 0."""


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """A latent (or a batch of them, or a window of it) with one noise level and one condition."""

    request: Denoise
    placed: Placed

    @property
    def x(self) -> Tensor:
        return self.placed.window(self.request.x)

    @property
    def sigma(self) -> Tensor:
        return self.request.sigma

    @property
    def beside(self) -> Tensor | None:
        beside = self.request.beside
        return None if beside is None else self.placed.window(beside)

    @property
    def condition(self) -> Condition:
        return self.placed.condition

    @property
    def length(self) -> int:
        return self.condition.tokens.shape[1]

    def controls(self, levels: NoiseLevels) -> list[Control]:
        """The ControlNets that count now."""
        sigma = float(self.sigma)
        return [each for each in self.condition.controls if each.counts_at(sigma, levels)]


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
    """One UNet call."""
    sizes = [len(row.x) for row in rows]
    x = torch.cat([row.x for row in rows])
    levels = torch.cat([row.sigma.expand(size) for row, size in zip(rows, sizes, strict=True)])
    timesteps = model.levels.timestep_of(levels).to(model.device)
    sigma = levels.to(model.device)[:, None, None, None]
    shown = model.scaled(x, sigma).to(model.dtype)
    join = model.unet.kept_texts.joined if hasattr(model.unet, "kept_texts") else joined
    tokens = join([row.condition.tokens for row in rows], sizes, length).to(model.dtype)
    inputs = model.unet_inputs([row.condition for row in rows], sizes)
    controls = [row.controls(model.levels) for row in rows]
    inputs |= residuals(controls, sizes, x=shown, timesteps=timesteps, tokens=tokens, inputs=inputs)
    # The weights are the same, so that all rows have such channels or none has.
    if beside := [row.beside for row in rows if row.beside is not None]:
        shown = torch.cat([shown, torch.cat(beside).to(model.dtype)], dim=1)
    output = model.unet(shown, timesteps, tokens, return_dict=False, **inputs)[0].float()
    return list(model.denoised(x, output, sigma).split(sizes))
