"""The model's estimate of a clean latent, for all rows that wait for the same weights at once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from engine.batcher import Request
from engine.diffusion.memory import memory_checked
from engine.diffusion.schedules import timestep_of

_MOST_REPEATS = 4
_SHARED_TOKENS = 4 * 77
"""Longer prompts share calls with their like only, for they would slow the others down."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A UNet that predicts the noise, and what its latents are multiplied with."""

    unet: Any
    latent_scale: float

    @property
    def device(self) -> torch.device:
        device: torch.device = self.unet.device
        return device


@dataclass(frozen=True, slots=True, eq=False)
class Conditioning:
    """An encoded text: (1, tokens, width) float32."""

    tokens: Tensor


@dataclass(slots=True, eq=False)
class Denoise(Request):
    """One sampler's question: x0 of `x` (batch, 4, h, w) at `sigma`, guided by `cfg`.

    Both halves of the guidance are rows of the same call; a `cfg` of exactly 1 has only one.
    """

    model: Model
    x: Tensor
    sigma: Tensor
    positive: Conditioning
    negative: Conditioning
    cfg: float

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        return len(self.x) * len(self.halves)

    @property
    def key(self) -> Hashable:
        longest = max(half.tokens.shape[1] for half in self.halves)
        own = longest if longest > _SHARED_TOKENS else None
        return "denoise", id(self.model.unet), self.x.shape[1:], own

    @property
    def halves(self) -> tuple[Conditioning, ...]:
        return (self.positive,) if self.cfg == 1.0 else (self.positive, self.negative)

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Tensor]:
        """x0 of every request, each (batch, 4, h, w)."""
        with memory_checked():
            rows = [_Row(r.x, r.sigma, half) for r in requests for half in r.halves]
            answers = iter(_predict(requests[0].model, rows))
            return [request._guide(answers) for request in requests]

    def _guide(self, answers: Iterator[Tensor]) -> Tensor:
        conditional = next(answers)
        if self.cfg == 1.0:
            return conditional
        unconditional = next(answers)
        return unconditional + (conditional - unconditional) * self.cfg


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """A latent (or a batch of them) with one noise level and one conditioning."""

    x: Tensor
    sigma: Tensor
    conditioning: Conditioning

    @property
    def length(self) -> int:
        return self.conditioning.tokens.shape[1]


def _predict(model: Model, rows: Sequence[_Row]) -> list[Tensor]:
    """x0 of each row. Texts of unlike length share a call unless that would blow it up."""
    lengths = {row.length for row in rows}
    common = math.lcm(*lengths)
    if common <= _MOST_REPEATS * min(lengths):
        return _call(model, rows, common)
    found: dict[int, Tensor] = {}
    for length in lengths:
        places = [place for place, row in enumerate(rows) if row.length == length]
        answers = _call(model, [rows[place] for place in places], length)
        found.update(zip(places, answers, strict=True))
    return [found[place] for place in range(len(rows))]


def _call(model: Model, rows: Sequence[_Row], length: int) -> list[Tensor]:
    """One UNet call. Tokens repeated to `length` weigh in attention as they did once."""
    sizes = [len(row.x) for row in rows]
    x = torch.cat([row.x for row in rows])
    levels = torch.stack([row.sigma for row in rows]).repeat_interleave(torch.tensor(sizes))
    tokens = torch.cat(
        [
            row.conditioning.tokens.expand(len(row.x), -1, -1).repeat(1, length // row.length, 1)
            for row in rows
        ]
    )
    timesteps = timestep_of(levels).to(model.device)
    sigma = levels.to(model.device)[:, None, None, None]
    unet = model.unet
    scaled = (x / (sigma**2 + 1).sqrt()).to(unet.dtype)
    noise = unet(scaled, timesteps, tokens.to(unet.dtype), return_dict=False)[0].float()
    return list((x - sigma * noise).split(sizes))
