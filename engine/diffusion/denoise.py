"""Calls of a denoising model. Rows of several requests share a call of the network."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar, Self

import torch
from torch import Tensor

from engine.batcher import Request
from engine.diffusion.adapters import Adapters
from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.conditioning.fitting import FittedCondition, FittedConditioning
from engine.diffusion.conditioning.guidance import Rule, rescaled_cfg
from engine.diffusion.device_error import memory_checked
from engine.diffusion.families.model_family import Call, CallRows, ModelFamily
from engine.diffusion.host_copies import copied
from engine.diffusion.model import Model
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.vision.row_prompts import fitted_prompts
from engine.stages import Stage

_MAX_REPEATS = 4


@dataclass(slots=True, eq=False)
class Denoise(Request):
    """A sampler's request for x0 of `x` (batch, channels, h, w) at `sigma`, guided by `cfg`.

    Each condition of `cond` and `uncond` is a row of a network call. If `cfg` is exactly 1,
    `uncond` is left out, unless the sampler, self-attention guidance or the `rule` needs it.
    """

    stage: ClassVar[Stage | None] = Stage.DENOISE
    model: Model
    x: Tensor
    sigma: Tensor
    cond: FittedConditioning
    uncond: FittedConditioning
    cfg: float
    needs_uncond: bool = False
    """If true, the result is (2, batch, channels, h, w): the guided x0, then the x0 of `uncond`."""
    needs_parts: bool = False
    """If true, the result is (n, batch, ...): the guided x0, then the x0 of each conditioning."""
    rule: Rule | None = None
    """A rule of guidance that also uses `third_conditioning`."""
    third_conditioning: FittedConditioning = ()
    level: float = field(init=False)
    """`sigma` as a float."""
    conditionings: tuple[FittedConditioning, ...] = field(init=False)
    """`cond`, then `uncond` and `third_conditioning` if the call uses them.

    Each has only the conditions that apply at `sigma`.
    """
    attended: Tensor | None = field(init=False, default=None)
    """The attention map for the first condition of `uncond`, if the UNet keeps a map."""

    def __post_init__(self) -> None:
        self.level = sigma = float(self.sigma)
        needs_uncond = self.needs_uncond or self.model.self_attention is not None
        uses_uncond = self.cfg != 1.0 or needs_uncond
        used = [self.cond]
        if self.rule is not None:
            used += [self.uncond, self.third_conditioning]
        elif uses_uncond:
            used.append(self.uncond)
        self.conditionings = tuple(
            tuple(each for each in one if each.applies_at(sigma)) for one in used
        )

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        return len(self.x) * sum(map(len, self.conditionings))

    @property
    def key(self) -> Hashable:
        conditions = [each.condition for one in self.conditionings for each in one]
        longest = max((each.tokens.shape[1] for each in conditions), default=0)
        model = self.model
        means = model.prediction, model.sigma_data
        shared = model.family.sharing(model.levels, longest)
        kinds = frozenset(map(model.family.row_sharing, conditions))
        return "denoise", id(model.unet), means, self.x.shape[1:], shared, kinds

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Tensor]:
        with memory_checked():
            batches = [
                [request._rows(each) for each in request.conditionings] for request in requests
            ]
            rows = [row for batch in batches for conditioning in batch for row in conditioning]
            x0s = iter(_predict(requests[0].model, rows))
            return [
                request._guided([request._mean(each, x0s) for each in batch])
                for request, batch in zip(requests, batches, strict=True)
            ]

    def _rows(self, conditioning: FittedConditioning) -> list[_Row]:
        return [_Row(self, each) for each in conditioning]

    def _mean(self, rows: Sequence[_Row], x0s: Iterator[Tensor]) -> Tensor:
        """Return x0 of one conditioning: the weighted mean of the x0s of its conditions."""
        if len(rows) == 1 and rows[0].fitted.weight is None:
            return next(x0s)
        # The windows of the conditions may overlap. Each position gets the weighted mean of the x0s
        # that cover the position.
        total, weights = torch.zeros_like(self.x), torch.full_like(self.x, _NO_WEIGHT)
        for row in rows:
            weight = 1.0 if row.fitted.weight is None else row.fitted.weight
            row.fitted.window(total).add_(next(x0s) * weight)
            row.fitted.window(weights).add_(weight)
        return total / weights

    def _guided(self, x0s: Sequence[Tensor]) -> Tensor:
        x0 = self._combined(*x0s)
        if self.needs_parts:
            return torch.stack([x0, *x0s])
        return torch.stack([x0, x0s[1]]) if self.needs_uncond else x0

    def _combined(
        self, cond: Tensor, uncond: Tensor | None = None, third: Tensor | None = None
    ) -> Tensor:
        """Return the guided x0, as in Ho and Salimans 2022 (arXiv:2207.12598)."""
        if uncond is None:
            return cond
        if self.rule is not None and third is not None:
            return self.rule.guided(cond, uncond, third, self.cfg)
        x0 = uncond + (cond - uncond) * self.cfg
        if phi := self.model.guidance_rescale:
            x0 = rescaled_cfg(x0, cond, x=self.x, sigma=self.sigma, phi=phi)
        return x0

    def with_one(self, conditioning: FittedConditioning, *, model: Model, x: Tensor) -> Denoise:
        """Return a request for `x` with only one conditioning."""
        return replace(
            self,
            model=model,
            x=x,
            cond=conditioning,
            uncond=(),
            cfg=1.0,
            needs_uncond=False,
            needs_parts=False,
            rule=None,
            third_conditioning=(),
        )

    def note_attended(self, fitted: FittedCondition, attended: Tensor) -> None:
        """Keep the attention map of the first negative condition; ignore all other maps."""
        if len(self.conditionings) > 1 and fitted in self.conditionings[1][:1]:
            self.attended = attended


_NO_WEIGHT = 1e-37
"""The initial sum of weights. It prevents 0 / 0 at positions to which no condition applies."""


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """A batch of latents, or a window of the batch, with one sigma and one condition."""

    request: Denoise
    fitted: FittedCondition

    @property
    def x(self) -> Tensor:
        return self.fitted.window(self.request.x)

    @property
    def concat_latent(self) -> Tensor | None:
        whole = self.condition.concat_latent
        return None if whole is None else self.fitted.window(whole)

    @property
    def condition(self) -> Condition:
        return self.fitted.condition

    @property
    def adapters(self) -> Adapters:
        return self.request.model.adapters

    @property
    def length(self) -> int:
        return self.condition.tokens.shape[1]

    def in_call(self, levels: NoiseLevels) -> CallRows:
        """Return the row's inputs of the network, without latents and sigma."""
        sigma = self.request.level
        controls = [each for each in self.condition.controls if each.applies_at(sigma, levels)]
        own = self.request.model.image_prompts
        prompts = [each for each in own if each.applies_at(sigma, levels)]
        return CallRows(
            len(self.x),
            self.condition,
            controls,
            self.adapters,
            concat_latent=self.concat_latent,
            prompts=fitted_prompts(prompts, self.fitted, self.request.x),
        )


def _predict(model: Model, rows: Sequence[_Row]) -> list[Tensor]:
    """Return x0 of each row. Rows share calls as far as the sizes and text lengths allow."""
    found: dict[int, Tensor] = {}
    for indices, length in _calls(rows, model.family):
        x0s = _call(model, [rows[index] for index in indices], length)
        found.update(zip(indices, x0s, strict=True))
    return [found[index] for index in range(len(rows))]


def _calls(rows: Sequence[_Row], family: ModelFamily) -> Iterator[tuple[list[int], int]]:
    """Yield the indices of the rows of each call, and the length to which their texts are repeated.

    If the family does not repeat texts, texts of any length share calls.
    """
    # Rows with equal adapters are sorted together to share one product: see `RowUpdates.applied`.
    by_adapters: defaultdict[Adapters, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_adapters[row.adapters].append(index)
    by_size: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index in chain.from_iterable(by_adapters.values()):
        kind = family.row_sharing(rows[index].condition)
        by_size[rows[index].x.shape[1:], kind].append(index)
    for indices in by_size.values():
        # Texts are repeated to the least common multiple of their lengths. The repetition does not
        # change the result of attention. If the multiple is too large, separate calls cost less.
        lengths = {rows[index].length if family.repeats_texts else 1 for index in indices}
        common = math.lcm(*lengths)
        if common <= _MAX_REPEATS * min(lengths):
            yield indices, common
            continue
        for length in lengths:
            yield [index for index in indices if rows[index].length == length], length


def _call(model: Model, rows: Sequence[_Row], length: int) -> list[Tensor]:
    windows = [row.x for row in rows]
    sizes, x = [len(each) for each in windows], torch.cat(windows)
    requests = [row.request for row, size in zip(rows, sizes, strict=True) for _ in range(size)]
    times = [float(each.model.timestep_of(each.level)) for each in requests]
    levels = [each.level for each in requests]
    # One copy for all small inputs: see `copied`.
    sigmas, timesteps = copied(torch.tensor([levels, times]), x.device)
    sigma = sigmas[:, None, None, None].to(x.dtype)
    call = Call(
        model.scaled_input(x, sigma).to(model.dtype),
        timesteps,
        [row.in_call(model.levels) for row in rows],
        length,
    )
    if drawn_rows := getattr(model.unet, "drawn_rows", None):
        drawn_rows.assign([row.request.model.draws for row in rows], sizes, x)
    output = model.family.output(model.unet, call).float()
    if watched := getattr(model.unet, "watched", None):
        attended = model.unet.get_submodule(watched).attended
        for row, own in zip(rows, attended.split(sizes), strict=True):
            row.request.note_attended(row.fitted, own)
    return list(model.denoised(x, output, sigma).split(sizes))
